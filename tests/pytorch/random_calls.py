"""Random calls of `nl.attention` beside FlexAttention's eager arithmetic: drawn from a seed, judged, shrunk.

    python tests/pytorch/random_calls.py 2000 0 STATE            # cases, first seed
    python tests/pytorch/random_calls.py 2000 0 STATE --jobs 8   # in that many processes
    python tests/pytorch/random_calls.py 1 2639                  # one case; --no-shrink leaves it as it was drawn
    python tests/pytorch/random_calls.py 500 1000000             # seeds from 1,000,000 on: sizes for a GPU

It prints counts, refusals and what is not right, and exits with 1 if anything is wrong, unclear or crashed.  STATE is
a file with a line per seed that was judged; a run skips these seeds, so it resumes.  A process that dies, or that takes
longer than LIMIT_S for one case, is counted as a crash of that case and replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from call_attempt import BAD, Judged, attempt
from call_cases import draw
from call_judge import Verdict

from neptune_lab.bench.workers import run_apart

LIMIT_S = 300.0
# The processes are replaced after so many cases.
BATCH = 1000


def judged_by(seeds: Sequence[int], jobs: int, shrink: bool) -> Iterator[Judged]:
    """Every seed's verdict, as they come, from so many processes."""
    tasks = [(seed, shrink) for seed in seeds]
    if jobs <= 1:
        yield from map(attempt, tasks)
        return
    for first in range(0, len(tasks), BATCH):
        some = tasks[first : first + BATCH]
        for (seed, _), found in run_apart(attempt, some, workers=jobs, timeout_s=LIMIT_S):
            yield (
                found if isinstance(found, Judged) else Judged(seed, Verdict("crashed", found.reason), str(draw(seed)))
            )


def run(cases: int, seed: int = 0, state: Path | None = None, jobs: int = 1, shrink: bool = True) -> Counter[str]:
    """Judges the cases and prints what is not right; the counts by verdict, those of `state` among them."""
    words: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    lines = state.read_text().splitlines() if state is not None and state.exists() else []
    done = {int(number): word for number, word in (line.split()[:2] for line in lines)}
    wanted = range(seed, seed + cases)
    words.update(done[n] for n in wanted if n in done)
    for one in judged_by([n for n in wanted if n not in done], jobs, shrink):
        word = one.verdict.word
        words[word] += 1
        if state is not None:
            with state.open("a") as file:
                print(one.seed, word, file=file)
        if word == "refused":
            reasons[one.verdict.told.split("\n")[0][:160]] += 1
        elif word in BAD:
            print(f"{word} (seed {one.seed}): {one.verdict.told}\n  {one.text}", flush=True)
    for reason, count in reasons.most_common():
        print(f"refused {count} times: {reason}")
    print(f"{cases} cases: {dict(words)}", flush=True)
    return words


def main(arguments: Sequence[str] | None = None) -> int:
    """The command's exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("state", type=Path, nargs="?")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--no-shrink", dest="shrink", action="store_false")
    given = parser.parse_args(arguments)
    words = run(given.cases, given.seed, given.state, given.jobs, given.shrink)
    return 1 if any(words[word] for word in BAD) else 0


if __name__ == "__main__":
    sys.exit(main())
