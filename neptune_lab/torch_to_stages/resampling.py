"""Reads of images between pixels, with the values of PyTorch's kernels at NaN and infinities.

torch's own definitions multiply what is outside of an image by 0, which is NaN of an infinite pixel, and subtract
neighbours from one another, which is NaN of two infinite ones (torch 2.13).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

_ZEROS, _BORDER = 0, 1  # numbers of torch's paddings of grid_sample
_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2  # and of its modes


def _grid_sampler_2d(x: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool) -> Tensor:
    """In torch's kernels, a place of NaN is the first pixel at borders, and what is mixed of four pixels is NaN at a
    place that is not finite."""
    if padding == _ZEROS and interpolation != _BICUBIC:
        return _beside_zeros(x, grid, interpolation == _NEAREST, align_corners)
    if padding == _BORDER and interpolation != _BICUBIC:
        grid = torch.where(grid.isnan(), -2.0, grid)
    out = decomposition_table[torch.ops.aten.grid_sampler_2d.default](x, grid, interpolation, padding, align_corners)
    if padding != _BORDER and interpolation == _BILINEAR:
        out = torch.where(grid.isnan().any(-1).unsqueeze(1), math.nan, out)
    return out


def _beside_zeros(x: Tensor, grid: Tensor, nearest: bool, align_corners: bool) -> Tensor:
    """Samples of images around which all is 0."""
    samples, channels, height, width = x.shape
    sample = torch.arange(samples, device=x.device).reshape(-1, 1, 1, 1)
    channel = torch.arange(channels, device=x.device).reshape(1, -1, 1, 1)
    column, row = (
        grid[..., n].unsqueeze(1) * ((size - align_corners) / 2) + (size - 1) / 2
        for n, size in enumerate((width, height))
    )

    def part(at: Tensor, below: Tensor, weight: Tensor | None = None) -> Tensor:
        inside = (at >= 0) & (at < width) & (below >= 0) & (below < height)
        place = (torch.where(inside, v, 0).to(torch.int64) for v in (below, at))
        pixel = x[(sample, channel, *place)]
        return torch.where(inside, pixel if weight is None else pixel * weight, 0.0)

    if nearest:
        return part(column.round(), row.round())
    left, top = column.floor(), row.floor()
    right, bottom = left + 1, top + 1
    mixed = (
        part(left, top, (right - column) * (bottom - row))
        + part(right, top, (column - left) * (bottom - row))
        + part(left, bottom, (right - column) * (row - top))
        + part(right, bottom, (column - left) * (row - top))
    )
    return mixed + _unless_finite(column, row) + _unless_finite(row, column)


def _unless_finite(x: Tensor, y: Tensor) -> Tensor:
    """0 where x is finite, and NaN otherwise, as is its derivative by y: four pixels of 0 times weights of NaN."""
    return torch.where(x.isfinite(), 0.0, (x - x) * y)


def _linear(
    x: Tensor,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None = None,
) -> Tensor:
    """torch's interpolation between two neighbours, one dimension after the other."""
    sizes = x.shape[2:]
    factors = scale_factors or [None] * len(sizes)
    counts = output_size or [int(n * f) for n, f in zip(sizes, scale_factors or (), strict=True)]
    for dim, (size, count, factor) in reversed(list(enumerate(zip(sizes, counts, factors, strict=True), 2))):
        if size == count:
            continue
        place = torch.arange(count, device=x.device).to(x.dtype)
        if align_corners:
            place = place * ((size - 1) / (count - 1) if count > 1 else 0)
        else:
            place = ((place + 0.5) * (1 / factor if factor else size / count) - 0.5).clamp(min=0)
        first = place.to(torch.int64)
        second = (first + 1).clamp(max=size - 1)
        share = (place - first).clamp(0, 1).reshape(-1, *[1] * (x.ndim - 1 - dim))
        x = x.index_select(dim, first) * (1 - share) + x.index_select(dim, second) * share
    return x


def _one_by_one(x: Tensor, output_size: Sequence[int], align_corners: bool, *factors: float | None) -> Tensor:
    given = [f for f in factors if f is not None]
    return _linear(x, output_size, align_corners, given if len(given) == len(output_size) else None)


RESAMPLING: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "grid_sampler_2d.default": _grid_sampler_2d,
        **{f"upsample_{name}.vec": _linear for name in ("linear1d", "bilinear2d", "trilinear3d")},
        **{f"upsample_{name}.default": _one_by_one for name in ("linear1d", "bilinear2d", "trilinear3d")},
    }
)
"""By the operation's name and its overload's."""

__all__ = ["RESAMPLING"]
