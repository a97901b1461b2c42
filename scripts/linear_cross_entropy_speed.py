"""Times F.cross_entropy(x @ w.T, target) through `nl.from_torch` against eager PyTorch and torch.compile, with the peak
memory beyond inputs and outputs of each.

    python scripts/linear_cross_entropy_speed.py [--size 8192x4096x128256] [--out FILE]

A size is rows x features x vocabulary, in bfloat16. Needs a GPU and TVM. Each loss is checked against float64.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.bench.clock import GpuTimer
from neptune_lab.files import write_text

# The logits of eager PyTorch are rounded to bfloat16, and so is every result.
WITHIN = 4e-3
PART = 512  # rows of the reference at a time
MIB = 1 << 20


def loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w.T, target)


def reference(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> float:
    """The loss in float64, a few rows at a time."""
    wide, total = w.double(), 0.0
    for start in range(0, len(x), PART):
        rows = slice(start, start + PART)
        total += float(F.cross_entropy(x[rows].double() @ wide.T, target[rows], reduction="sum"))
    return total / len(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="8192x4096x128256")
    parser.add_argument("--out", default="linear_cross_entropy_speed.jsonl")
    chosen = parser.parse_args()
    rows, features, vocabulary = map(int, chosen.size.split("x"))
    torch.manual_seed(0)
    half = {"dtype": torch.bfloat16, "device": "cuda"}
    x, w = torch.randn(rows, features, **half), torch.randn(vocabulary, features, **half) / features**0.5
    inputs = x, w, torch.randint(vocabulary, (rows,), device="cuda")
    wanted = reference(*inputs)
    torch.cuda.empty_cache()
    calls: dict[str, Callable[..., Any]] = {
        "ours": nl.compile(nl.from_torch(loss, *inputs), tuned=True),
        "eager": loss,
        "torch.compile": torch.compile(loss, dynamic=False),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, call in calls.items():
        call(*inputs)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with torch.inference_mode():
            error = abs(float(call(*inputs)) - wanted) / abs(wanted)
        peak = torch.cuda.max_memory_allocated() - before
        found[name] = {"name": name, "size": chosen.size, "error": error, "peak_mib": round(peak / MIB, 2)}
        if error > WITHIN:
            raise SystemExit(f"{name}: the relative error is {error:.1e}, so it has no time")
    timed = {name: (lambda call=call: call(*inputs)) for name, call in calls.items()}
    for name, samples in GpuTimer(seconds=1.0, most=20).times(timed, cold=False).items():
        found[name]["us"] = sorted(samples.us)[len(samples.us) // 2]
    for line in found.values():
        print(f"{line['name']:14} {line['us']:9.0f} us  error {line['error']:.1e}  peak {line['peak_mib']} MiB")
    write_text(Path(chosen.out), "".join(json.dumps(line) + "\n" for line in found.values()))


if __name__ == "__main__":
    main()
