"""Times first calls of drawn attention problems, ours and FlexAttention's, each in a new process with empty caches.

    python scripts/first_calls.py 20261126:0 20261126:7 3:10

An argument is a seed and the number of an attention problem in it, as `neptune-lab bench --drawn` draws them.  Before
the problem, both compilers compile a tiny one.  The last line has geometric means.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean

from neptune_lab.bench.drawn.run import CACHES


def seconds(seed: int, index: int) -> tuple[str, float, float]:
    """The problem's name, and the seconds of our first call and of FlexAttention's."""
    import torch

    from neptune_lab.bench.drawn import attention
    from neptune_lab.bench.drawn.measure import _load_compilers
    from neptune_lab.bench.drawn.problems import draw

    _load_compilers()
    problem = draw(seed, index + 1)[index]
    given = attention.inputs(problem)
    torch.compiler.reset()
    torch.cuda.synchronize()
    took: list[float] = []
    for one in attention.contestants(problem, given)[:2]:
        began = time.perf_counter()
        one.make(None, (), None).call()  # type: ignore[arg-type]
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return problem.name, took[0], took[1]


def main() -> None:
    """Prints a line per problem."""
    if sys.argv[1] == "--one":
        print(json.dumps(seconds(int(sys.argv[2]), int(sys.argv[3]))))
        return
    ours, flex = [], []
    for wanted in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            caches = {name: str(Path(folder) / name.lower()) for name in CACHES}
            command = [sys.executable, __file__, "--one", *wanted.split(":")]
            done = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True, check=False)
        if done.returncode:
            print(wanted, done.stderr.strip().splitlines()[-1:])
            continue
        name, mine, theirs = json.loads(done.stdout.splitlines()[-1])
        ours.append(mine)
        flex.append(theirs)
        print(f"{wanted:12} {name:90} {mine:5.2f} s, FlexAttention {theirs:5.2f} s: {mine / theirs:.2f}", flush=True)
    if ours:
        ratios = [mine / theirs for mine, theirs in zip(ours, flex, strict=True)]
        print(
            f"geometric means: {geometric_mean(ours):.2f} s, {geometric_mean(flex):.2f} s: {geometric_mean(ratios):.2f}"
        )


if __name__ == "__main__":
    main()
