"""The float64 answer, computed on the tensors' device in parts, and the error of an answer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from neptune_lab.bench.definitions import attention, definition
from neptune_lab.bench.measured import BLOCK_ROWS, SAMPLED
from neptune_lab.bench.setups import Setup
from neptune_lab.runtime.torch_relative_error import squared_norms

# Up to this many scores, every row is checked; with more, `SAMPLED` blocks of rows.
CHECKED_SCORES = 1 << 33

# Scores in memory at once in float64: 256 MiB, in a few arrays of that size.
_HELD_SCORES = 1 << 25

Index = tuple[slice | int | torch.Tensor, ...]


@dataclass(frozen=True)
class Reference:
    """Blocks of the float64 answer.

    Args:
        blocks: (number of the output, index of the part, right values).
        checked: a description of the part of the answer that they cover.
    """

    blocks: tuple[tuple[int, Index, torch.Tensor], ...]
    checked: str

    def error(self, answer: Any) -> float:
        """The relative error (Frobenius norm) of the worst block of `BLOCK_ROWS` rows; infinite if NaN or infinities
        differ."""
        outputs = answer if isinstance(answer, tuple | list) else (answer,)
        return _worst((outputs[output][index], want) for output, index, want in self.blocks)

    def rounding(self, dtype: torch.dtype) -> float:
        """The `error` of the float64 answer itself when it is rounded to a dtype; it is large where elements are near
        the dtype's least number, as those of a softmax of 200,000 columns are in float16."""
        return _worst((want.to(dtype), want) for _, _, want in self.blocks)


def _worst(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    worst = 0.0
    for found, want in pairs:
        for part, wanted in zip(_by_rows(found), _by_rows(want), strict=True):
            off, size = squared_norms(part, wanted, dim=(-2, -1))
            worst = max(worst, float((off / size.clamp_min(1e-60)).max()) ** 0.5)
    return worst


def reference(setup: Setup, tensors: Sequence[torch.Tensor], scores: int = CHECKED_SCORES) -> Reference:
    """The setup's answer for these inputs, computed in float64.

    Args:
        scores: an attention operator with more scores than this is checked on a sample of its rows.
    """
    if setup.is_attention:
        return _attention(setup, tensors, scores)
    wide = tuple(t.to(torch.float64) for t in tensors)
    if setup.group == "performer":  # head by head: features are wider than the inputs
        heads = wide[0].shape[1]
        run = definition(setup, torch.float64)
        parts = [run(*(t[:, h : h + 1] for t in wide[:3]), wide[3])[0] for h in range(heads)]
        return Reference(
            tuple((0, (slice(None), slice(h, h + 1)), part) for h, part in enumerate(parts)), "every element"
        )
    outputs = definition(setup, torch.float64)(*wide)
    return Reference(tuple((n, (slice(None),), o.to(torch.float64)) for n, o in enumerate(outputs)), "every element")


def _attention(setup: Setup, tensors: Sequence[torch.Tensor], scores: int) -> Reference:
    q, k, v = tensors[:3]
    batch, heads, rows, _ = q.shape
    kv_heads, kv_len = k.shape[1], k.shape[2]
    group = heads // kv_heads
    every = batch * heads * rows * kv_len <= scores
    at_once = BLOCK_ROWS if not every else max(1, min(rows, _HELD_SCORES // (group * kv_len)))
    places = [(b, h, r) for b in range(batch) for h in range(kv_heads) for r in range(0, rows, at_once)]
    chosen = places if every else _sample(places)
    blocks = tuple(
        (0, index, attention(setup.case, *parts, torch.float64, first_head=head * group, first_row=row))
        for (_, head, row), (index, parts) in zip(chosen, _pieces(chosen, q, k, v, group, at_once), strict=True)
    )
    said = "every element" if every else f"{len(chosen)} of {len(places)} blocks of {at_once} rows"
    return Reference(blocks, said)


def _pieces(
    places: Sequence[tuple[int, int, int]], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: int, rows: int
) -> Iterator[tuple[Index, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """The position of a part of the result, and the queries, keys and values that it needs, in float64."""
    for b, head, row in places:
        index = (slice(b, b + 1), slice(head * group, (head + 1) * group), slice(row, row + rows))
        own = (slice(b, b + 1), slice(head, head + 1))
        yield index, (q[index].double(), k[own].double(), v[own].double())


def _sample(places: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The first and the last block, and others drawn with a fixed seed."""
    between = random.Random(0).sample(places[1:-1], min(SAMPLED, len(places)) - 2)
    return [places[0], *sorted(between), places[-1]]


def _by_rows(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(..., rows, width) in blocks of `BLOCK_ROWS` rows; a vector is one block."""
    return (values[None],) if values.dim() == 1 else values.split(BLOCK_ROWS, dim=-2)
