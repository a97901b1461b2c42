"""Definitions of ATen operations by others, where torch has none that suits: functions of two numbers, and products.

Each has PyTorch's values, and its derivative is PyTorch's, also at zeros and ties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neptune_lab.torch_to_stages.pooling import POOLING
from neptune_lab.torch_to_stages.resampling import RESAMPLING


def _negative(x: Tensor) -> Tensor:
    """Whether a number is below 0; -0.0 is, too."""
    return (x < 0) | (1.0 / x < 0) if x.is_floating_point() else x < 0


def _as_float(x: Tensor, other: Tensor) -> Tensor:
    """x in the dtype that torch promotes both numbers to, a float."""
    dtype = torch.result_type(x, other)
    return x.to(dtype) if dtype.is_floating_point else x * 1.0


def _size(x: Tensor) -> Tensor:
    """|x|, whose derivative at NaN is NaN; that of `abs` is 0 there."""
    return torch.where(x == x, x.abs(), x * x)


def _copysign(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        size = _size(x * 1.0)
        return -size if math.copysign(1.0, y) < 0 else size
    size = _size(_as_float(x, y))
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


def _angle(x: Tensor) -> Tensor:
    if x.is_complex():
        return torch.atan2(x.imag, x.real)
    x = x * 1.0
    return torch.where(x != x, math.nan, torch.where(x < 0, math.pi, x.new_zeros(())))


def _ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    return x * torch.pow(2.0, exponent)


def _diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    replaced = torch.diagonal(x, offset, dim1, dim2)
    if source.shape != replaced.shape:
        shapes = f"{tuple(source.shape)}, expected {tuple(replaced.shape)}, which the diagonal has"
        raise RuntimeError(f"diagonal_scatter got values of the shape {shapes}")
    order = [d for d in range(x.ndim) if d not in (dim1 % x.ndim, dim2 % x.ndim)]
    order += [dim1 % x.ndim, dim2 % x.ndim]
    back = sorted(range(x.ndim), key=order.__getitem__)
    rows, columns = x.shape[dim1], x.shape[dim2]
    row, column = torch.arange(rows, device=x.device)[:, None], torch.arange(columns, device=x.device)
    place = (row if offset >= 0 else column.expand(rows, -1)).clamp(max=source.shape[-1] - 1).expand(rows, columns)
    spread = source[..., place]
    return torch.where(column - row == offset, spread, x.permute(order)).permute(back)


def _as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    return x.reshape(-1)[_places(x, size, stride, storage_offset)]


def _as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    places = _places(x, size, stride, storage_offset)
    return x.reshape(-1).scatter(0, places.reshape(-1), source.reshape(-1)).reshape(x.shape)


def _places(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Tensor:
    """The numbers of the elements that a strided view of a contiguous tensor reads."""
    places = torch.full((), offset or 0, dtype=torch.int64, device=x.device)
    for n, step in zip(size, stride, strict=True):
        places = places[..., None] + torch.arange(n, device=x.device) * step
    return places


def _rrelu(x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


def _matrix_power(x: Tensor, n: int) -> Tensor:
    """By squares."""
    if n == 0:
        return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape)
    half = x if n < 4 else _matrix_power(x, n // 2)
    square = x if n == 1 else half @ half
    return square @ x if n % 2 and n > 1 else square


def _pdist(x: Tensor, p: float = 2.0) -> Tensor:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    return _size(x[first] - x[second]).sum(-1) if p == 1 else torch.linalg.vector_norm(x[first] - x[second], p, -1)


def _middle(of: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    """`median` or `nanmedian` of all elements; those that equal it share its gradient, as those of a maximum do."""

    def whole(x: Tensor) -> Tensor:
        found = of(x.flatten(), 0)[0]
        if not x.is_floating_point():
            return found
        return torch.where((x == found) | (x.isnan() & found.isnan()), x, -math.inf).amax()

    return whole


def _quantile(
    x: Tensor, q: float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """Between the elements before and after a place in the sorted row; the last one, a NaN, if there is a NaN."""
    row = x.flatten() if dim is None or x.ndim == 0 else x.movedim(dim, 0)
    last = len(row) - 1
    place = float(np.float32(q) * np.float32(last)) if x.dtype == torch.float32 else q * last  # (rounded as torch's)
    if interpolation == "nearest":
        place = round(place)
    before, after = (round_to(place) for round_to in (math.floor, math.ceil))
    if interpolation in ("lower", "higher"):
        before = after = before if interpolation == "lower" else after
    weight = 0.5 if interpolation == "midpoint" else place - before
    ends = [torch.kthvalue(row, rank + 1, 0).values for rank in dict.fromkeys((before, after, last))]
    found = ends[0] if before == after else torch.lerp(ends[0], ends[1], weight)
    found = torch.where(ends[-1].isnan(), ends[-1], found)
    if not keepdim:
        return found
    return found.reshape((1,) * x.ndim) if dim is None else found.unsqueeze(dim)


def _huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    z = x - target
    # (a comparison that NaN fails leads to the square, whose derivative is NaN too)
    far = delta * (z.abs() - 0.5 * delta)
    return _reduced(torch.where(z.abs() >= delta, far, 0.5 * z * z), reduction)


def _smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    z = x - target
    return _reduced(torch.where(z.abs() >= beta, z.abs() - 0.5 * beta, 0.5 * z * z / beta), reduction)


def _reduced(losses: Tensor, reduction: int) -> Tensor:
    """The losses, their mean or their sum, by torch's number of a reduction."""
    return losses if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()


def _bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _searchsorted(boundaries, x, out_int32=out_int32, right=right)


def _searchsorted(
    sorted_sequence: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many elements of a sorted row are before x; NaN is after all of them, also in the row.

    torch halves the row, and goes on to the right of a middle that is not after x, as a NaN at the end of the row never
    is.  So it finds the first element after x if one of the middles to the right is after x, and the end otherwise.
    """
    if sorter is not None:
        sorted_sequence = torch.gather(sorted_sequence, -1, sorter)
    row = sorted_sequence if sorted_sequence.ndim == 1 else sorted_sequence.unsqueeze(-2)
    after = torch.gt if right or side == "right" else torch.ge
    kind = torch.int32 if out_int32 else torch.int64
    afterwards = after(row, x.unsqueeze(-1))
    count = row.shape[-1]
    if not row.is_floating_point() or not count:
        return (~afterwards).sum(-1, dtype=kind)
    found, start = torch.zeros_like(x, dtype=torch.bool), 0
    while start < count:
        middle = (start + count) // 2
        found, start = found | after(row[..., middle], x), middle + 1
    first = torch.where(afterwards, torch.arange(count, device=x.device), count).amin(-1)
    return torch.where(found, first, count).to(kind)


def refused_arguments(node: torch.fx.Node) -> str:
    """Why a definition below is not for a node of a graph, as `refused_operation` says it; "" if it is."""
    name = str(getattr(node.target, "_opname", "")) if node.op == "call_function" else ""
    if name in ("as_strided", "as_strided_scatter"):
        x: Any = node.args[0]
        value = x.meta.get("val") if isinstance(x, torch.fx.Node) else None
        if not isinstance(value, Tensor) or not value.is_contiguous() or value.storage_offset():
            return "of a view, or of a tensor that is not contiguous: write it as slices and permutations"
        sizes: Any = node.args[-3:] if isinstance(node.args[-1], int) else (*node.args[-2:], 0)
        last = sizes[2] + sum((n - 1) * step for n, step in zip(sizes[0], sizes[1], strict=True))
        return "" if last < value.numel() else "where it reads beyond the tensor"
    if name == "linalg_matrix_power" and int(node.args[1]) < 0:  # type: ignore[arg-type]
        return "with a negative exponent, which needs an inverse: take the inverse out of the function"
    if name == "rrelu_with_noise_functional" and len(node.args) > 4 and node.args[4]:
        return "in training, where it draws numbers: call .eval() on the module"
    return ""


DEFINITIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **POOLING,
        **RESAMPLING,
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
        "angle.default": _angle,
        "ldexp.Tensor": _ldexp,
        "diagonal_scatter.default": _diagonal_scatter,
        "as_strided.default": _as_strided,
        "as_strided_scatter.default": _as_strided_scatter,
        "rrelu_with_noise_functional.default": _rrelu,
        "linalg_matrix_power.default": _matrix_power,
        "matrix_power.default": _matrix_power,
        "_pdist_forward.default": _pdist,
        "median.default": _middle(torch.median),
        "nanmedian.default": _middle(torch.nanmedian),
        "quantile.scalar": _quantile,
        "huber_loss.default": _huber_loss,
        "smooth_l1_loss.default": _smooth_l1_loss,
        "celu.default": lambda x, alpha=1.0: torch.ops.aten.elu(x, alpha, 1.0, 1 / alpha),
        "bucketize.Tensor": _bucketize,
        "searchsorted.Tensor": _searchsorted,
    }
)
"""By the operation's name and its overload's."""

__all__ = ["DEFINITIONS", "refused_arguments"]
