"""Strides of q, k and v of which some are multiples of the length: views (batch, length, heads, head_dim), parts of a
packed projection.

Of one call, a stride that is a multiple of the length may be so by accident: a cache of 512 places of which 128 are
filled.  So a call has several layouts, and the lengths of later calls tell which of them they have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from neptune_lab.tensor_spec import Strides

# For each dimension: its stride (0 if its size is 1), or ("length", factor): so many times the span of the length.
Layout: TypeAlias = tuple[int | tuple[str, int], ...] | None
Layouts: TypeAlias = tuple[Layout, Layout, Layout]
_LENGTH = 2  # the dimension of the length


def fixed_layout(shape: Sequence[int], strides: Sequence[int] | None) -> Layout:
    """The strides as they are; None for a contiguous tensor.

    >>> fixed_layout((2, 4, 16, 8), (1536, 8, 96, 1)), fixed_layout((1, 4, 16, 8), (1536, 8, 96, 1))
    ((1536, 8, 96, 1), (0, 8, 96, 1))
    """
    if strides is None:
        return None
    return tuple([step if n > 1 else 0 for step, n in zip(strides, shape, strict=True)])


def moving_layout(shape: Sequence[int], strides: Sequence[int] | None) -> Layout:
    """The strides, with multiples of what all positions span as such.

    >>> moving_layout((2, 4, 16, 8), (1536, 8, 96, 1)), moving_layout((2, 4, 16, 8), (0, 8, 96, 1))
    ((('length', 1), 8, 96, 1), (0, 8, 96, 1))
    """
    if strides is None or shape[_LENGTH] == 1 or strides[_LENGTH] == 0:
        return fixed_layout(shape, strides)
    spanned = shape[_LENGTH] * strides[_LENGTH]
    found: list[int | tuple[str, int]] = []
    for dim, (step, n) in enumerate(zip(strides, shape, strict=True)):
        moves = dim != _LENGTH and n > 1 and step > 0 and step % spanned == 0
        found.append(("length", step // spanned) if moves else step if n > 1 else 0)
    return tuple(found)


def layouts_of(shapes: Sequence[Sequence[int]], strides: Sequence[Sequence[int] | None] | None) -> tuple[Layouts, ...]:
    """The layouts that a call of these shapes may have in common with calls of other lengths, the fixed one first."""
    if strides is None:
        return ((None, None, None),)
    pairs = list(zip(shapes, strides, strict=True))
    q, k, v = (fixed_layout(shape, own) for shape, own in pairs)
    moving_q, moving_k, moving_v = (moving_layout(shape, own) for shape, own in pairs)
    every = (q, k, v), (moving_q, k, v), (q, moving_k, moving_v), (moving_q, moving_k, moving_v)
    return tuple(dict.fromkeys(every))


def strides_at(layout: Layout, strides: Strides | None, length: int) -> Strides | None:
    """The strides of a tensor at another length.

    Args:
        strides: at the call.

    >>> strides_at((("length", 1), 8, 96, 1), (1536, 8, 96, 1), 10)
    (960, 8, 96, 1)
    """
    if layout is None or strides is None:
        return strides
    spanned = strides[_LENGTH] * length
    return tuple(s[1] * spanned if isinstance(s, tuple) else own for s, own in zip(layout, strides, strict=True))


def moves(layouts: Layouts) -> bool:
    """Whether a stride is a multiple of a length."""
    return any(isinstance(step, tuple) for layout in layouts for step in layout or ())


__all__ = ["Layout", "Layouts", "fixed_layout", "layouts_of", "moves", "moving_layout", "strides_at"]
