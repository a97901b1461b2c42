"""The problems of `from_torch_speed.py`: a pattern at a size, its inputs, and rows of its result in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# As tests/torch_to_stages/patterns.py has them.
WINDOW, PREFIX, CAP, WEIGHT = 16, 24, 20.0, 0.3
DOCUMENTS = 8


@dataclass(frozen=True)
class Problem:
    """A pattern at a size."""

    pattern: str
    batch: int
    heads: int
    length: int
    width: int

    @property
    def size(self) -> str:
        return f"{self.batch}x{self.heads}x{self.length}x{self.width}"


def inputs(problem: Problem, device: str) -> tuple[Any, ...]:
    """Random inputs of a pattern."""
    import torch

    torch.manual_seed(0)
    b, h, n, d = problem.batch, problem.heads, problem.length, problem.width

    def half(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.float16, device=device)

    if problem.pattern == "document_mask":
        ids = torch.arange(n, dtype=torch.int32, device=device) // math.ceil(n / DOCUMENTS)
        return half(b, h, n, d), half(b, h, n, d), half(b, h, n, d), ids.expand(b, n).contiguous()
    if problem.pattern == "gqa":
        return half(b, h, n, d), half(b, h // 4, n, d), half(b, h // 4, n, d)
    if problem.pattern == "differential":
        return (*(half(b, h, n, d) for _ in range(4)), half(b, h, n, 2 * d))
    if problem.pattern == "evoformer":
        return (*(half(1, b, h, n, d) for _ in range(3)), half(1, b, n), half(1, h, n, n), half(1, b, h, n, d))
    if problem.pattern == "invariant_point":
        points = half(b, h, n, 4, 3), half(b, h, n, 4, 3)
        return half(b, h, n, d), half(b, h, n, d), half(b, h, n, d), *points, half(h).abs()
    return half(b, h, n, d), half(b, h, n, d), half(b, h, n, d)


def slopes(problem: Problem, device: str) -> Any:
    import torch

    return (2.0 ** (-8.0 * torch.arange(1, problem.heads + 1, device=device) / problem.heads)).half()


def visible(problem: Problem) -> Callable[..., Any] | None:
    """The mask of a pattern over positions, for FlexAttention and for the reference."""
    masks: dict[str, Callable[..., Any]] = {
        "causal": lambda i, j: i >= j,
        "alibi": lambda i, j: i >= j,
        "sliding_window": lambda i, j: (j <= i) & (i - j < WINDOW),
        "prefix_lm": lambda i, j: (j <= i) | (j < PREFIX),
    }
    return masks.get(problem.pattern)


def reference(problem: Problem, tensors: tuple[Any, ...], rows: Any) -> Any:
    """The rows of a pattern's result, in float64: (batch, heads, rows, width)."""
    import torch

    pattern = problem.pattern
    if pattern == "evoformer":
        q, k, v, mask, pair, gate = (t[0] for t in tensors)
        extra = mask.double()[:, None, None, :] + pair.double()[None, :, rows]
        return torch.sigmoid(gate.double()[:, :, rows]) * attended(q, k, v, rows, lambda s: s + extra)
    if pattern == "differential":
        q1, q2, k1, k2, v = tensors
        return attended(q1, k1, v, rows) - WEIGHT * attended(q2, k2, v, rows)
    q, k, v, *rest = tensors
    if pattern == "gqa":
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    i, j = rows[:, None], torch.arange(problem.length, device=q.device)[None, :]

    def modified(scores: Any) -> Any:
        if pattern == "alibi":
            scores = scores - slopes(problem, q.device).double()[:, None, None] * (i - j)
        if pattern == "softcap":
            scores = CAP * torch.tanh(scores / CAP)
        if pattern == "invariant_point":
            first, second, weight = (t.double() for t in rest)
            distance = ((first[:, :, rows][:, :, :, None] - second[:, :, None]) ** 2).sum((-1, -2))
            scores = scores - 0.5 * weight[:, None, None] * distance
        seen = visible(problem)
        if seen is not None:
            scores = scores.masked_fill(~seen(i, j), -math.inf)
        if pattern == "document_mask":
            same = rest[0][:, rows][:, None, :, None] == rest[0][:, None, None, :]
            scores = scores.masked_fill(~same, -math.inf)
        return scores

    return attended(q, k, v, rows, modified)


def attended(q: Any, k: Any, v: Any, rows: Any, modified: Callable[[Any], Any] = lambda s: s) -> Any:
    scores = modified(q[:, :, rows].double() @ k.double().mT / math.sqrt(q.shape[-1]))
    return scores.softmax(-1) @ v.double()
