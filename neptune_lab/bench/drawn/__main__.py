"""The drawn benchmark without the command line's packages: python -m neptune_lab.bench.drawn 60 --seed 1 --out FILE."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from neptune_lab.errors import NeptuneError


def main() -> None:
    """Measures, or with --report reads, a results file, and prints its summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=60, help="number of problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("drawn.jsonl"))
    parser.add_argument("--budget", type=float, default=1200.0, help="seconds after which no problem is started")
    parser.add_argument("--tune", type=int, default=0, help="so many of them are tuned too, for --seconds each")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--report", action="store_true", help="only print the summary of the file")
    given = parser.parse_args()
    if given.count < 1 or given.seed < 0:
        parser.error("the number of problems is at least 1, and the seed at least 0")
    try:
        sys.stdout.write(_summary(given))
    except NeptuneError as error:
        parser.error(str(error))


def _summary(given: argparse.Namespace) -> str:
    from neptune_lab.bench.drawn.results import read
    from neptune_lab.bench.drawn.summary import to_markdown

    if given.report:
        return to_markdown(read(given.out))
    from neptune_lab.bench.available import check_device

    check_device(tiny=False)
    from neptune_lab.bench.drawn.run import DrawnPlan, run

    plan = DrawnPlan(given.count, given.seed, given.out, given.budget, tuned=given.tune, seconds=given.seconds)
    return to_markdown(run(plan, progress=lambda line: print(line, file=sys.stderr, flush=True)))


if __name__ == "__main__":
    main()
