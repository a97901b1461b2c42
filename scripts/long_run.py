"""Runs that take long, and that resume after an interruption: `make fuzz` and `make nightly`.

`make nightly` checks types, runs the tests that are marked `nightly` and whose turn it is, and then the fuzzer. The
names of tests that passed and the results of the fuzzer's cases are kept in build/long-runs/CODE/, where CODE is a
digest of the sources: with other sources everything is run again.

The seed of `make nightly` is the night: a number, which the day gives. Nights in a row have other tests (`NIGHTS` of
tests/conftest.py says after how many all have been run) and other cases.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("neptune_lab", "widgets/neptune_widgets", "tests", "notebooks", "docs", "scripts")
# What Python, Jupyter and `make docs` write beside the sources.
MADE = re.compile("__pycache__/|[.]ipynb_checkpoints/|^docs/(course|generated)/")
NIGHTLY_CASES = 2_500
# With the variables of the `make` that runs this, if one does.
TYPES = ("make", "--no-print-directory", "types")
# pytest's status where nothing is left to run.
NO_TESTS = 5


def digest(root: Path) -> str:
    """Of every file under `SOURCES`, and of the pinned dependencies: 12 hexadecimal digits."""
    found = hashlib.sha256()
    files = [root / "pyproject.toml", root / "constraints.txt"]
    for path in (*files, *sorted(p for folder in SOURCES for p in (root / folder).rglob("*"))):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not MADE.search(name):
            found.update(f"{name}\0".encode() + path.read_bytes())
    return found.hexdigest()[:12]


def fuzz_command(cases: int, seed: str, state: Path) -> tuple[str, ...]:
    """The fuzzer, which keeps what it has tried in a file of the seed."""
    file = state / f"fuzz-{re.sub(r'[^A-Za-z0-9]', '-', seed)}.jsonl"
    return (sys.executable, "-m", "fuzz", str(cases), "--seed", seed, "--state", str(file))


def nightly_command(night: int, state: Path) -> tuple[str, ...]:
    """One run of pytest, of the tests whose turn it is: a worker takes whole files, those with most tests first."""
    which = ("-m", "nightly", "--night", str(night), "--resume", str(state / "passed.txt"))
    return (sys.executable, "-m", "pytest", *which, "-n", "logical", "--maxprocesses", "8", "--dist", "loadfile")


def run(commands: Mapping[str, Sequence[str]], root: Path, state: Path) -> int:
    """Runs the commands, each by its name, and prints what failed and how long each took; 0 if all passed."""
    print(f"results are kept in {state}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "tests"), os.environ.get("PYTHONPATH", "")])}
    said = []
    failed = False
    for name, command in commands.items():
        print(f"\n{name}", flush=True)
        began = time.monotonic()
        try:
            status = subprocess.run(command, cwd=root, env=environment).returncode
        except KeyboardInterrupt:
            print(f"\ninterrupted in {name!r}; the same command goes on from there")
            return 130
        passed = status in (0, NO_TESTS)
        failed |= not passed
        said.append(f"{name}: {'passed' if passed else 'FAILED'} after {(time.monotonic() - began) / 60:.1f} minutes")
    print("\n" + "\n".join(said))
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(description="Runs that take long, and that resume.")
    parser.add_argument("what", choices=["fuzz", "nightly"])
    parser.add_argument("--cases", type=int, default=2000, help="how many programs `fuzz` tries")
    parser.add_argument("--seed", default="", help="of the fuzzer (0), or the night (the number of the day)")
    given = parser.parse_args(arguments)
    if given.what == "nightly" and not given.seed.isdecimal() and given.seed:
        parser.error(f"--seed {given.seed!r} of nightly: expected a whole number, which says whose turn it is")
    seed = given.seed or (str(date.today().toordinal()) if given.what == "nightly" else "0")
    state = ROOT / "build" / "long-runs" / digest(ROOT)
    cases = given.cases if given.what == "fuzz" else NIGHTLY_CASES
    commands = {f"{cases} fuzz cases of seed {seed}": fuzz_command(cases, seed, state)}
    if given.what == "nightly":
        commands = {"types": TYPES, f"nightly tests of SEED={seed}": nightly_command(int(seed), state), **commands}
    return run(commands, ROOT, state)


if __name__ == "__main__":
    sys.exit(main())
