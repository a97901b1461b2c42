"""Definitions of ATen operations by others, where torch has none that suits: functions of two numbers, and products.

Each has PyTorch's values, and its derivative is PyTorch's, also at zeros and ties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from neptune_lab.torch_to_stages.pooling import POOLING


def _negative(x: Tensor) -> Tensor:
    """Whether a number is below 0; -0.0 is, too."""
    return (x < 0) | (1.0 / x < 0) if x.is_floating_point() else x < 0


def _as_float(x: Tensor, other: Tensor) -> Tensor:
    """x in the dtype that torch promotes both numbers to, a float."""
    dtype = torch.result_type(x, other)
    return x.to(dtype) if dtype.is_floating_point else x * 1.0


def _copysign(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        size = (x * 1.0).abs()
        return -size if math.copysign(1.0, y) < 0 else size
    size = _as_float(x, y).abs()
    return torch.where(_negative(y), -size, size)


def _atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of (x, y), by the quotient that is at most 1; (0, 0) has the angle 0 or pi, and no gradient."""
    y, x = _as_float(y, x), _as_float(x, y)
    steep, nowhere = y.abs() > x.abs(), (x == 0) & (y == 0)
    above, below = torch.where(steep, x, y), torch.where(steep, y, x)
    both = x.isinf() & y.isinf()
    quotient = torch.where(both, torch.sign(x) * torch.sign(y), above / torch.where(nowhere, 1.0, below))
    flat = torch.atan(quotient)
    pi = flat.new_full((), math.pi)  # (two numbers would be chosen from in torch's default dtype)
    half = torch.where(_negative(y), -pi, pi)
    angle = torch.where(steep, half / 2 - flat, torch.where(x < 0, half + flat, flat))
    return torch.where(nowhere, torch.where(_negative(x), half, 0.0), angle)


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """sqrt(x * x + y * y), whose squares do not overflow; infinite if one of them is, also beside NaN."""
    a, b = (x * 1.0).abs(), (y * 1.0).abs()
    swapped = b > a
    large, small = torch.where(swapped, b, a), torch.where(swapped, a, b)
    ratio = small / torch.where(large == 0, 1.0, large)
    infinite = (a == math.inf) | (b == math.inf)
    length = large * torch.sqrt(1.0 + ratio * ratio)
    # At (0, 0), PyTorch's derivative is 0 / 0, and so is that of this root.
    return torch.where(infinite, math.inf, torch.where(large == 0, torch.sqrt(x * y), length))


def _unless_nan(first: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """torch.fmax and torch.fmin: the other operand beside NaN; of equal ones, the first has all of the gradient."""

    def chosen(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(first(a, b) | b.isnan(), a, b)

    return chosen


def _round(x: Tensor, *, decimals: int) -> Tensor:
    factor = 10.0 ** abs(decimals)
    return torch.round(x * factor) / factor if decimals >= 0 else torch.round(x / factor) * factor


def _addmv(bias: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = torch.mv(matrix, vector)
    product = product if alpha == 1 else alpha * product
    return product if beta == 0 else product + (bias if beta == 1 else beta * bias)


def _addbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = torch.einsum("bij,bjk->ik", a, b)
    product = product if alpha == 1 else alpha * product
    return product if beta == 0 else product + (bias if beta == 1 else beta * bias)


def _multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    product = tensors[0]
    for factor in tensors[1:]:
        product = product @ factor
    return product


def _bilinear(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = torch.einsum("...i,oij->...oj", a, weight)
    product = (rows * b.unsqueeze(-2)).sum(-1)
    return product if bias is None else product + bias


def _trilinear(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    first: Sequence[int],
    second: Sequence[int],
    third: Sequence[int],
    folded: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The sum of a product of three tensors, each with further dimensions of size 1; that of `bilinear`."""
    for dims, n in ((first, 0), (second, 1), (third, 2)):
        for dim in sorted(dims):
            a, b, c = (t.unsqueeze(dim) if m == n else t for m, t in enumerate((a, b, c)))
    return (a * b * c).sum(list(folded)) if folded else a * b * c


def _dist(a: Tensor, b: Tensor, p: float = 2) -> Tensor:
    return torch.linalg.vector_norm(a - b, p)


def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter(dim, _along(index, dim, source), source)


def _index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    index = torch.where(index < 0, index + x.shape[dim], index)
    shape = [index.numel() if d == dim % x.ndim else n for d, n in enumerate(x.shape)]
    return x.scatter(dim, _along(index, dim, x.new_empty(shape)), value)


def _along(index: Tensor, dim: int, like: Tensor) -> Tensor:
    """Positions of one dimension in the shape of `like`."""
    shape = [-1 if d == dim % like.ndim else 1 for d in range(like.ndim)]
    return index.reshape(shape).expand(like.shape)


DEFINITIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **POOLING,
        "addmv.default": _addmv,
        "addbmm.default": _addbmm,
        "linalg_multi_dot.default": _multi_dot,
        "bilinear.default": _bilinear,
        "_trilinear.default": _trilinear,
        "dist.default": _dist,
        "signbit.default": _negative,
        "copysign.Tensor": _copysign,
        "copysign.Scalar": _copysign,
        "atan2.default": _atan2,
        "hypot.default": _hypot,
        "fmax.default": _unless_nan(torch.ge),
        "fmin.default": _unless_nan(torch.le),
        "round.decimals": _round,
        "index_copy.default": _index_copy,
        "index_fill.int_Scalar": _index_fill,
    }
)
"""By the operation's name and its overload's."""

__all__ = ["DEFINITIONS"]
