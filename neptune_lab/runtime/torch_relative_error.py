"""How far torch tensors are from a reference, as the parts of a relative error (Frobenius norm)."""

from __future__ import annotations

from typing import Any

# Elements that are compared at a time; a float64 copy of all of a large output would take much memory.
_PART = 1 << 26


def squared_norms(computed: Any, wanted: Any, dim: Any = None) -> tuple[Any, Any]:
    """The squared norms of `found` - `wanted` and of `wanted`, in float64.

    Elements that are NaN, or the same infinity, in both count as 0. The first norm is infinite if NaN or infinities
    differ.

    Args:
        found: a tensor of any dtype.
        wanted: the reference, of the same shape.
        dim: the dimensions to sum over; None: all.

    Returns:
        two float64 tensors without the dimensions `dim`.
    """
    import torch

    computed, wanted = computed.double(), wanted.double()
    finite = wanted.isfinite()
    same = torch.where(finite, computed.isfinite(), (computed == wanted) | (computed.isnan() & wanted.isnan()))
    off = torch.where(same, torch.where(finite, computed - wanted, 0.0), torch.inf)
    return off.square().sum(dim), torch.where(finite, wanted, 0.0).square().sum(dim)


def relative_error(computed: Any, wanted: Any) -> float:
    """The relative error of a tensor; infinite if NaN or infinities differ.  A reference of zeros counts as 1."""
    off = size = 0.0
    for a, b in zip(computed.reshape(-1).split(_PART), wanted.reshape(-1).split(_PART), strict=True):
        off, size = (total + float(part) for total, part in zip((off, size), squared_norms(a, b), strict=True))
    return (off / (size or 1.0)) ** 0.5
