"""Pooling as reductions of windows, which are views: no element is copied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def _sizes(given: Sequence[int] | int, count: int, default: Sequence[int] = ()) -> list[int]:
    listed = [given] if isinstance(given, int) else list(given)
    listed = listed or list(default)
    return listed * count if len(listed) == 1 else listed


@dataclass(frozen=True)
class _Windows:
    """The windows of a pooling: as many elements each, at equal distances.

    Args:
        sizes: of the dimensions that are pooled.
        kernel, stride, padding, dilation: per dimension.
        ceil_mode: whether a last window may reach beyond the padding.
        counts: of the windows; (): what follows from the others.
    """

    sizes: Sequence[int]
    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    ceil_mode: bool = False
    counts: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.counts:
            return
        counts = []
        for n, k, s, p in zip(self.sizes, self.spans, self.stride, self.padding, strict=True):
            steps = n + 2 * p - k
            count = (-(-steps // s) if self.ceil_mode else steps // s) + 1
            # (a window begins inside of the tensor or of the padding before it)
            counts.append(count - 1 if self.ceil_mode and (count - 1) * s >= n + p else count)
        object.__setattr__(self, "counts", counts)

    @property
    def spans(self) -> list[int]:
        """From the first element of a window to its last one, per dimension."""
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]

    @property
    def beyond(self) -> list[int]:
        """The elements that the last window reads beyond the tensor, per dimension; negative if it does not reach."""
        ends = ((c - 1) * s + k for c, s, k in zip(self.counts, self.stride, self.spans, strict=True))
        return [end - p - n for end, p, n in zip(ends, self.padding, self.sizes, strict=True)]

    def of(self, x: Tensor, fill: float) -> Tensor:
        """The windows of a tensor: its pooled dimensions count windows, further ones at the end their elements."""
        widths = [w for p, b in reversed(list(zip(self.padding, self.beyond, strict=True))) for w in (p, b)]
        first = x.ndim - len(self.sizes)
        x = F.pad(x, widths, value=fill) if any(widths) else x
        for n, (span, stride) in enumerate(zip(self.spans, self.stride, strict=True)):
            x = x.unfold(first + n, span, stride)
        for n, step in enumerate(self.dilation):
            if step > 1:
                x = x[(..., slice(None, None, step), *[slice(None)] * (len(self.dilation) - 1 - n))]
        return x


def _mean_of_windows(count: int) -> Callable[..., Tensor]:
    """torch's avg_pool of so many dimensions."""
    dims = [-1 - n for n in range(count)]

    def pool(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        kernel, around = _sizes(kernel_size, count), _sizes(padding, count)
        sizes, steps, once = x.shape[-count:], _sizes(stride, count, kernel), [1] * count
        windows = _Windows(sizes, kernel, steps, around, once, ceil_mode)
        total = windows.of(x, 0).sum(dims)
        apart = any(around) and not count_include_pad
        past = any(b > p for b, p in zip(windows.beyond, around, strict=True))
        if divisor_override is not None or not (apart or past):
            return _quotient(total, divisor_override or math.prod(kernel))
        if not apart:  # the padding counts, and what the last window has beyond it does not
            sizes = [n + 2 * p for n, p in zip(sizes, around, strict=True)]
            windows = replace(windows, sizes=sizes, padding=[0] * count)
        return _quotient(total, windows.of(x.new_ones(sizes), 0).sum(dims))

    return pool


def _quotient(total: Tensor, count: Tensor | int) -> Tensor:
    return total / count if total.is_floating_point() else torch.div(total, count, rounding_mode="trunc")


@dataclass(frozen=True)
class _Parts:
    """The windows of an adaptive pooling: so many per dimension; if they do not divide it, they overlap.

    Args:
        sizes: of the dimensions that are pooled.
        counts: of the windows.
    """

    sizes: Sequence[int]
    counts: Sequence[int]

    def of(self, x: Tensor, fill: float) -> Tensor:
        """As `_Windows.of`."""
        rank, first = len(self.sizes), x.ndim - len(self.sizes)
        if all(count and n % count == 0 for n, count in zip(self.sizes, self.counts, strict=True)):
            kernel = [n // count for n, count in zip(self.sizes, self.counts, strict=True)]
            return _Windows(self.sizes, kernel, kernel, [0] * rank, [1] * rank).of(x, fill)
        inside = torch.ones((), dtype=torch.bool, device=x.device)
        for n, (size, count) in enumerate(zip(self.sizes, self.counts, strict=True)):
            part = torch.arange(count, device=x.device)[:, None]
            start, end = part * size // count, ((part + 1) * size + count - 1) // count
            position = start + torch.arange(-(-size // max(count, 1)) + 1, device=x.device)
            x = x[(*[slice(None)] * (first + n), position.clamp(max=size - 1))].movedim(first + n + 1, -1)
            shape = [1] * (2 * rank)
            shape[n], shape[rank + n] = count, position.shape[1]
            inside = inside & (position < end).reshape(shape)
        return torch.where(inside, x, fill)


def _largest_of_windows(count: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """torch's max_pool of so many dimensions, with the position of each maximum; the first of equal elements has the
    gradient."""

    def pool(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        kernel, around, steps = _sizes(kernel_size, count), _sizes(padding, count), _sizes(dilation, count)
        sizes = x.shape[-count:]
        return _largest(x, _Windows(sizes, kernel, _sizes(stride, count, kernel), around, steps, ceil_mode))

    return pool


def _largest(x: Tensor, windows: _Windows | _Parts) -> tuple[Tensor, Tensor]:
    """The largest element of each window, and its position: that of the last NaN, else of the first such element."""
    count, end = len(windows.sizes), math.prod(windows.sizes)
    least = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    elements = windows.of(x, least).flatten(-count)
    place = torch.arange(end, device=x.device).reshape(tuple(windows.sizes))
    places = windows.of(place, -1).flatten(-count)
    largest = largest_of_window(elements)
    last = torch.where(elements != elements, places, -1).amax(-1)
    equal = (elements == largest.unsqueeze(-1)) & (places >= 0)
    return largest, torch.where(last >= 0, last, torch.where(equal, places, end).amin(-1))


@torch.library.custom_op("neptune_lab_marks::largest_of_window", mutates_args=())
def largest_of_window(x: torch.Tensor) -> torch.Tensor:
    """The largest element of the last dimension, as one operation: its gradient is that of pooling."""
    return x.amax(-1)


@largest_of_window.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[:-1])


def _parts(x: Tensor, output_size: Sequence[int | None], count: int) -> _Parts:
    sizes = x.shape[-count:]
    return _Parts(sizes, [n if wanted is None else wanted for n, wanted in zip(sizes, output_size, strict=True)])


def _adaptive_mean(count: int) -> Callable[..., Tensor]:
    """torch's adaptive_avg_pool of so many dimensions."""
    dims = [-1 - n for n in range(count)]

    def pool(x: Tensor, output_size: Sequence[int | None]) -> Tensor:
        parts = _parts(x, output_size, count)
        return _quotient(parts.of(x, 0).sum(dims), parts.of(x.new_ones(parts.sizes), 0).sum(dims))

    return pool


def _adaptive_largest(count: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """torch's adaptive_max_pool of so many dimensions."""
    return lambda x, output_size: _largest(x, _parts(x, output_size, count))


def _values(pool: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: pool(*args, **kwargs)[0]


POOLING: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **{f"avg_pool{n}d.default": _mean_of_windows(n) for n in (1, 2, 3)},
        **{f"max_pool{n}d.default": _values(_largest_of_windows(n)) for n in (1, 2, 3)},
        "max_pool1d_with_indices.default": _largest_of_windows(1),
        **{f"max_pool{n}d_with_indices.default": _largest_of_windows(n) for n in (2, 3)},
        **{f"{kind}adaptive_avg_pool{n}d.default": _adaptive_mean(n) for n in (1, 2, 3) for kind in ("", "_")},
        **{f"adaptive_max_pool{n}d.default": _adaptive_largest(n) for n in (1, 2, 3)},
    }
)
"""By the operation's name and its overload's."""

__all__ = ["POOLING"]
