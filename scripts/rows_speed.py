"""Times row operators on a GPU against torch.compile, eager PyTorch and the copy rate; nothing is tuned.

    python scripts/rows_speed.py [cross_entropy:493x174042:float16 softmax:8192x12345:bfloat16 …] [--seconds 100]

Without arguments, problems past 64 MiB of every operator: odd and even columns, few and many rows. Answers are checked
against float64 before they are timed. The share of the copy rate counts the bytes that must be read and written, at the
rate of a copy of 1 GiB that is measured first. What does not start within --seconds is left out, and listed.
"""

from __future__ import annotations

import argparse
import time

from neptune_lab.bench.available import check_device
from neptune_lab.bench.drawn.problems import DTYPES, ROWS, Problem

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


def main() -> None:
    """Measures the problems of the command line, and prints a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("problems", nargs="*", default=USUAL_PROBLEMS, help="operator:ROWSxCOLUMNS[:dtype]")
    parser.add_argument("--seconds", type=float, default=600.0, help="start nothing after these")
    given = parser.parse_args()
    chosen = [problem(text, index) for index, text in enumerate(given.problems)]
    began = time.monotonic()
    check_device(tiny=False)
    from neptune_lab.bench.drawn.measure import USUAL, measure
    from neptune_lab.runtime.ceilings import measure_ceilings

    rate = measure_ceilings().gbps
    print(f"copy {rate / 1e3:.2f} TB/s")
    print("| problem | µs | of the copy rate | torch.compile | eager |\n| --- | --- | --- | --- | --- |")
    for one in chosen:
        if time.monotonic() - began > given.seconds:
            print(f"left out: {one.name}")
            continue
        found = {e.name: e for e in measure(one, peers=USUAL).entries}
        ours, *peers = found.values()
        name = one.name.partition(" ")[2]
        if ours.us is None:
            print(f"| {name} | {ours.status}: {ours.note} | | | |", flush=True)
            continue
        ratios = " | ".join(f"{e.us / ours.us:.2f}" if e.us else f"{e.status}" for e in peers)
        print(f"| {name} | {ours.us:.1f} | {one.moved / ours.us / 1e3 / rate:.2f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
