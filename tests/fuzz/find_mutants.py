"""Which checks find which planted bug: `python -m fuzz.find_mutants` from tests/, for all mutations or those named.

Each check runs in a copy of this process, in which the bug is planted: validation of the battery's operators as they
are compiled; the tests that the mutation names, also those of the night, up to the first that fails; and, for what
neither finds, fuzz cases.  What was found is kept in build/mutants.json, so that a run that was interrupted goes on.
Write it into the mutation's file: the test as one of `tests`, and what validation says as `validation`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fuzz.battery import fuzzed, validation
from fuzz.mutants import ROOT, Mutation, mutations, plant

STATE = ROOT / "build" / "mutants.json"
CHECKS = ("validation", "tests", "fuzz")
# CPU seconds of a check without an end; each takes a tenth of it where nothing is planted.
_ENDLESS = 600


def in_a_copy(check: Callable[[], str], mutation: Mutation | None, seconds: int = _ENDLESS) -> str:
    """What `check` says in a copy of this process with the mutation planted; "" where it finds nothing.

    A copy that dies, or that takes `seconds` of CPU time, has found the mutation.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "the process dies"
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds + int(sum(os.times()[:2])), resource.RLIM_INFINITY))
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            if mutation is not None:
                plant(mutation)
            said = check()
        finally:
            os.write(writer, said.encode()[:4000])
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return "no end"
    return said or ("the process dies" if status else "")


def failing_test(tests: Sequence[str]) -> str:
    """The first of the tests, or of files of tests, that fails; "" if none does, or there are none."""
    if not tests:
        return ""
    import pytest

    class Failed:
        first = ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            self.first = self.first or (report.nodeid if report.failed else "")

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            self.first = self.first or (report.nodeid if report.failed else "")

    os.chdir(ROOT)
    failed = Failed()
    status = pytest.main(["-n0", "-x", "-q", "-m", "", "-p", "no:cacheprovider", *tests], plugins=[failed])
    ends = pytest.ExitCode
    nothing = (ends.OK, ends.NO_TESTS_COLLECTED, ends.USAGE_ERROR)  # the last: there is no such test
    return failed.first or ("" if status in nothing else f"pytest ends with {status}")


def fuzzing(mutation: Mutation, cases: int, seconds: float) -> str:
    """The first fuzz case that fails with the mutation and not without it."""
    first = 0
    while said := in_a_copy(partial(fuzzed, cases, seconds, first), mutation, int(seconds) + _ENDLESS):
        if not said.startswith("mutants:"):
            return said
        n = int(said.split(" ")[0].partition(":")[2])
        if not in_a_copy(partial(fuzzed, n + 1, seconds, n), None):
            return said
        first = n + 1
    return ""


class State:
    """What was found so far, by mutation and check; a mutation whose file has changed is looked for again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.is_file() else {}

    def of(self, mutation: Mutation) -> dict[str, str]:
        """Check -> what it said, "" where it found nothing."""
        return self.found.setdefault(f"{mutation.name} {_digest(mutation)}", {})

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.found, indent=1))


def _digest(mutation: Mutation) -> str:
    text = repr((mutation.function, mutation.old, mutation.new, mutation.tests))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def look(mutation: Mutation, check: str, state: State, cases: int, seconds: float) -> None:
    """Runs the check if it has not been run; fuzz cases only for what nothing else has found."""
    known = state.of(mutation)
    if check in known or (check == "fuzz" and any(known.values())):
        return
    match check:
        case "validation":
            known[check] = in_a_copy(validation, mutation)
        case "tests":
            known[check] = in_a_copy(partial(failing_test, mutation.tests), mutation)
        case _:
            known[check] = fuzzing(mutation, cases, seconds)
    state.save()
    print(f"{mutation.name}: {check}: {known[check] or 'nothing'}", flush=True)


def main() -> int:
    """Looks for all mutations, or those that are named; 0 where each was found."""
    parser = argparse.ArgumentParser("fuzz.find_mutants", description="Which checks find which planted bug.")
    parser.add_argument("names", nargs="*", help="mutations (default: all)")
    parser.add_argument("--cases", type=int, default=5000, help="fuzz cases at most")
    parser.add_argument("--seconds", type=float, default=3600.0, help="CPU seconds of fuzzing at most")
    parser.add_argument("--checks", default=",".join(CHECKS), help="which checks")
    parser.add_argument("--again", action="store_true", help="forget what was found before of those named")
    given = parser.parse_args()
    state = State(STATE)
    if said := validation():  # it also imports what all copies share
        raise SystemExit(f"without any mutation, the battery fails: {said}")
    chosen = [m for m in mutations() if not given.names or m.name in given.names]
    if given.again:
        for mutation in chosen:
            state.of(mutation).clear()
    for check in given.checks.split(","):
        for mutation in sorted(chosen, key=lambda m: any(state.of(m).values())):
            look(mutation, check, state, given.cases, given.seconds)
    missing = [mutation.name for mutation in chosen if not any(state.of(mutation).values())]
    print(f"not found: {', '.join(missing) or 'none'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
