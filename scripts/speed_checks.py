"""What the scripts that time `nl.attention` share: tensors, a reference in float64 on rows drawn at random, times."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch

from neptune_lab.bench.clock import GpuTimer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """A query attends to the keys up to its own."""
    return q >= kv


def tensors(shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    """Random tensors."""
    return [torch.randn(shape, dtype=dtype, device=DEVICE) for shape in shapes]


def worst(errors: Iterable[float]) -> float:
    """The largest error, NaN if one is NaN: comparisons alone, as in max(), pass over NaN."""
    return max(errors, key=lambda error: (error != error, error))


def wrong(
    out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ordered: bool,
    documents: torch.Tensor | None = None,
) -> float:
    """The relative error of a few rows against float64.

    Args:
        ordered: queries attend to the keys up to their own.
        documents: the document of each position; queries attend to keys of their own.
    """
    some = {0, q.shape[2] - 1, *(random.randrange(q.shape[2]) for _ in range(6))}
    rows = torch.tensor(sorted(some), device=q.device)
    group = q.shape[1] // k.shape[1]
    keys, values = (t.double().repeat_interleave(group, 1) for t in (k, v))
    scores = q[:, :, rows].double() @ keys.transpose(-1, -2) / q.shape[3] ** 0.5
    if ordered:
        scores.masked_fill_(torch.arange(k.shape[2], device=q.device) > rows[:, None], -torch.inf)
    if documents is not None:
        scores.masked_fill_(documents[rows][:, None] != documents, -torch.inf)
    want = scores.softmax(-1) @ values
    return float((out[:, :, rows].double() - want).norm() / want.norm())


def times(calls: dict[str, Callable[[], Any]], *, cold: bool = False) -> dict[str, float]:
    """Median microseconds of each call, taken in turns; none of a call that fails, and none on a CPU."""
    if DEVICE == "cpu":
        return {}
    found = GpuTimer(seconds=0.3, most=30).times(calls, cold=cold)
    return {name: median(samples.us) for name, samples in found.items() if samples.us}
