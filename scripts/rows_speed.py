"""Times row operators on a GPU against torch.compile, eager PyTorch and the copy rate; nothing is tuned.

    python scripts/rows_speed.py [cross_entropy:493x174042:float16 softmax:8192x12345:bfloat16 …] [--seconds 100]
    python scripts/rows_speed.py --drawn 12 --seeds 1 2 [--alone]

Without arguments, problems past 64 MiB of every operator: odd and even columns, few and many rows; with --drawn, the
first such problems of each seed of the drawn benchmark. Answers are checked against float64 before they are timed. The
share of the copy rate counts the bytes that must be read and written, at the rate of a copy of 1 GiB that is measured
first. What does not start within --seconds is left out, and listed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from itertools import islice
from statistics import geometric_mean, median

from neptune_lab.bench.available import check_device
from neptune_lab.bench.drawn.problems import DTYPES, ROWS, Problem, draw
from neptune_lab.bench.drawn.summary import LARGE

# So many problems of a seed are looked through.
DRAWN = 1000

USUAL_PROBLEMS = (
    "cross_entropy:493x174042",
    "cross_entropy:9076x7352",
    "cross_entropy:4096x32001",
    "log_sum_exp:200x200001",
    "log_sum_exp:6095x16723",
    "log_sum_exp:2000x65536",
    "l2_norm:4096x9001",
    "l2_norm:739x100001",
    "rms_norm_max:512x200001",
    "rms_norm_max:4096x20001",
    "softmax:16384x2055",
    "softmax:8192x12345",
    "softmax:8192x16384",
    "softmax:3000x33333",
    "softmax:4096x50257",
    "softmax:1024x100001",
    "softmax:300x131072",
    "layer_norm:16384x3001",
    "layer_norm:8192x9001",
    "layer_norm:4096x16384",
    "layer_norm:4096x50257",
    "layer_norm:1882x118665",
)


def problem(text: str, index: int) -> Problem:
    """The problem that an argument names; ValueError for another text."""
    operator, size, dtype = (*text.split(":"), "float16")[:3]
    if operator not in ROWS or dtype not in DTYPES:
        raise ValueError(f"{text}: expected an operator of {', '.join(ROWS)} and a dtype of {', '.join(DTYPES)}")
    rows, cols = map(int, size.split("x"))
    return Problem(index, "rows", operator, dtype, {"rows": rows, "cols": cols})


def drawn(count: int, seeds: Iterable[int]) -> list[Problem]:
    """The first row problems past 64 MiB of each seed."""
    found: list[Problem] = []
    for seed in seeds:
        own = (p for p in draw(seed, DRAWN) if p.kind == "rows" and 2 * p.sizes["rows"] * p.sizes["cols"] > LARGE)
        found += islice(own, count)
    return found


def main() -> None:
    """Measures the problems of the command line, and prints a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("problems", nargs="*", default=USUAL_PROBLEMS, help="operator:ROWSxCOLUMNS[:dtype]")
    parser.add_argument("--seconds", type=float, default=600.0, help="start nothing after these")
    parser.add_argument("--drawn", type=int, default=0, help="so many problems of each of the seeds instead")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0,))
    parser.add_argument("--alone", action="store_true", help="without torch.compile and eager PyTorch")
    given = parser.parse_args()
    texts = [problem(text, index) for index, text in enumerate(given.problems)]
    chosen = drawn(given.drawn, given.seeds) if given.drawn else texts
    began = time.monotonic()
    check_device(tiny=False)
    from neptune_lab.bench.drawn.measure import ALONE, USUAL, measure
    from neptune_lab.runtime.ceilings import measure_ceilings

    rate = measure_ceilings().gbps
    print(f"copy {rate / 1e3:.2f} TB/s")
    print("| problem | µs | of the copy rate | torch.compile | eager |\n| --- | --- | --- | --- | --- |")
    shares: list[float] = []
    for one in chosen:
        if time.monotonic() - began > given.seconds:
            print(f"left out: {one.name}")
            continue
        found = {e.name: e for e in measure(one, peers=ALONE if given.alone else USUAL).entries}
        ours, *peers = found.values()
        name = one.name.partition(" ")[2]
        if ours.us is None:
            print(f"| {name} | {ours.status}: {ours.note} | | | |", flush=True)
            continue
        ratios = " | ".join(f"{e.us / ours.us:.2f}" if e.us else f"{e.status}" for e in peers)
        shares.append(one.moved / ours.us / 1e3 / rate)
        print(f"| {name} | {ours.us:.1f} | {shares[-1]:.2f} | {ratios} |", flush=True)
    if shares:
        print(f"{len(shares)} problems, geometric mean {geometric_mean(shares):.3f}, median {median(shares):.3f}")


if __name__ == "__main__":
    main()
