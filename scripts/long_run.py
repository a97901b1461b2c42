"""Runs that take hours, and that resume after an interruption: `make fuzz` and `make nightly`.

`make nightly` runs the tests that are marked `nightly`, file by file, and then the fuzzer. The names of steps that
passed are kept in build/long-runs/CODE/, where CODE is a digest of the sources: with other sources everything is run
again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neptune_lab.files import write_text

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("neptune_lab", "widgets/neptune_widgets", "tests")
NIGHTLY_CASES = 10_000
# Files with fewer tests run in one process: to import TVM and torch in each worker would take longer than the tests.
SPREAD = 24
# These share a browser or the run of a notebook, which each worker would need for itself.
TOGETHER = ("tests/browser/", "tests/notebooks/")


@dataclass(frozen=True)
class Step:
    """A command of a long run; its name is also its key in the file of passed steps.

    Args:
        resumes: it keeps its own progress, so that it is started again to print its result.
    """

    name: str
    command: tuple[str, ...]
    resumes: bool = False


def digest(root: Path) -> str:
    """Of every Python file under `SOURCES`, and of the pinned dependencies: 12 hexadecimal digits."""
    found = hashlib.sha256()
    files = [root / "pyproject.toml", root / "constraints.txt"]
    for path in (*files, *sorted(p for folder in SOURCES for p in (root / folder).rglob("*.py"))):
        found.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return found.hexdigest()[:12]


def fuzz_step(cases: int, seed: str, state: Path) -> Step:
    """The fuzzer, which has a file of its own for what it has tried."""
    file = state / f"fuzz-{re.sub(r'[^A-Za-z0-9]', '-', seed)}.jsonl"
    command = (sys.executable, "-m", "fuzz", str(cases), "--seed", seed, "--state", str(file))
    return Step(f"fuzz {cases} --seed {seed}", command, resumes=True)


def nightly_steps(root: Path, seed: str, state: Path) -> list[Step]:
    """One step per file with tests that are marked `nightly`, and the fuzzer.

    Raises:
        SystemExit: pytest cannot collect the tests.
    """
    pytest = (sys.executable, "-m", "pytest", "-m", "nightly")
    listed = subprocess.run(
        [*pytest, "--collect-only", "-q", "-p", "no:cacheprovider"], cwd=root, capture_output=True, text=True
    )
    if listed.returncode:
        raise SystemExit(f"pytest could not collect the nightly tests:\n{listed.stdout[-3000:]}{listed.stderr[-1000:]}")
    tests_of = Counter(re.findall(r"^([\w./-]+\.py)(?=::)", listed.stdout, re.MULTILINE))
    workers = ("-n", "logical", "--maxprocesses", "8", "--dist", "loadgroup")

    def step(file: str) -> Step:
        spread = tests_of[file] >= SPREAD and not file.startswith(TOGETHER)
        return Step(f"pytest {file}", (*pytest, *(workers if spread else ()), file))

    return [*map(step, sorted(tests_of)), fuzz_step(NIGHTLY_CASES, seed, state)]


def run(steps: Sequence[Step], root: Path, state: Path) -> int:
    """Runs the steps that have not passed yet and prints what it does; 0 if all have passed."""
    state.mkdir(parents=True, exist_ok=True)
    kept = state / "passed.json"
    passed: dict[str, float] = json.loads(kept.read_text()) if kept.is_file() else {}
    left = [step for step in steps if step.resumes or step.name not in passed]
    skipped = [step.name for step in steps if step not in left]
    print("\n".join([f"results are kept in {state}", *(f"passed before: {name}" for name in skipped)]))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "tests"), os.environ.get("PYTHONPATH", "")])}
    failed = []
    for n, step in enumerate(left, 1):
        print(f"\n[{n}/{len(left)}] {step.name}", flush=True)
        began = time.monotonic()
        try:
            status = subprocess.run(step.command, cwd=root, env=environment).returncode
        except KeyboardInterrupt:
            print(f"\ninterrupted in {step.name!r}; the same command goes on from there")
            return 130
        if status:
            failed.append(step.name)
        else:
            passed[step.name] = round(time.monotonic() - began, 1)
            write_text(kept, json.dumps(passed, indent=1))
    print(
        f"\n{len(steps) - len(failed)} of {len(steps)} steps passed" + "".join(f"\nfailed: {name}" for name in failed)
    )
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(description="Runs that take hours, and that resume.")
    parser.add_argument("what", choices=["fuzz", "nightly"])
    parser.add_argument("--cases", type=int, default=2000, help="how many programs `fuzz` tries")
    parser.add_argument("--seed", default="0", help="of the fuzzer")
    given = parser.parse_args(arguments)
    state = ROOT / "build" / "long-runs" / digest(ROOT)
    if given.what == "fuzz":
        return run([fuzz_step(given.cases, given.seed, state)], ROOT, state)
    return run(nightly_steps(ROOT, given.seed, state), ROOT, state)


if __name__ == "__main__":
    sys.exit(main())
