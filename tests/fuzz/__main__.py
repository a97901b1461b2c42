"""The command: `python -m fuzz 2000 --seed 0 --jobs 2 --state build/fuzz.jsonl` from tests/, or `make fuzz N=2000`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from fuzz.report import Report
from fuzz.workers import run_cases


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases; 0 where nothing wrong, foreign, crashed or unclear was found."""
    parser = argparse.ArgumentParser("fuzz", description="Random programs through every stage of the compiler.")
    parser.add_argument("cases", type=int, help="how many cases")
    parser.add_argument("--seed", default="0", help="of the whole run; case n is drawn from SEED:n")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--state", type=Path, help="a file of results; a run that is started again goes on from it")
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds for one case")
    parser.add_argument("--shrink", type=int, default=5, help="how many failures are shrunk to a few lines")
    parser.add_argument("--only", type=int, help="run this one case here, without workers, and print it")
    given = parser.parse_args(arguments)
    if given.only is not None:
        from fuzz.shrink import show_one

        return show_one(f"{given.seed}:{given.only}")
    report = Report(given.seed)
    run_cases(given.cases, given.seed, given.jobs, given.state, given.limit, report)
    print(report.text())
    if given.shrink and report.failures:
        from fuzz.shrink import shrunk_text

        for failure in report.failures[: given.shrink]:
            print(shrunk_text(failure.seed, failure.verdict), flush=True)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
