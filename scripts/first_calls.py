"""Times first calls of drawn attention problems, ours and FlexAttention's, each in a new process with empty caches.

    python scripts/first_calls.py 20261126:0 20261126:7 3:10 [--side 4]

An argument is a seed and the number of an attention problem in it, as `neptune-lab bench --drawn` draws them.  Before
the problem, both compilers compile a tiny one.  The last line has geometric means.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
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


def in_new_process(wanted: str) -> tuple[str, float, float] | str:
    """`seconds` of a new process with empty caches; why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: str(Path(folder) / name.lower()) for name in CACHES}
        command = [sys.executable, __file__, "--one", wanted]
        done = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True, check=False)
    if done.returncode:
        return " ".join(done.stderr.strip().splitlines()[-1:])
    name, ours, flex = json.loads(done.stdout.splitlines()[-1])
    return name, ours, flex


def main() -> None:
    """Prints a line per problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", help="seed:number")
    parser.add_argument("--side", type=int, default=1, help="processes side by side")
    parser.add_argument("--one", help="in this process, as JSON")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(seconds(*map(int, chosen.one.split(":")))))
        return
    ratios, ours, flex = [], [], []
    with ThreadPoolExecutor(chosen.side) as pool:
        for wanted, found in zip(chosen.problems, pool.map(in_new_process, chosen.problems), strict=True):
            if isinstance(found, str):
                print(f"{wanted:12} failed: {found}", flush=True)
                continue
            name, mine, theirs = found
            ours.append(mine)
            flex.append(theirs)
            ratios.append(mine / theirs)
            print(
                f"{wanted:12} {name:90} {mine:5.2f} s, FlexAttention {theirs:5.2f} s: {mine / theirs:.2f}", flush=True
            )
    if ratios:
        means = [f"{geometric_mean(values):.2f}" for values in (ours, flex, ratios)]
        print(f"geometric means: {means[0]} s, {means[1]} s: {means[2]}; the worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
