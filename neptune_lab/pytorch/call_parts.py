"""Parts of a call of `attention`: what its mods read, its tensors as a kernel takes them, and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from neptune_lab.pytorch.arguments import with_columns
from neptune_lab.pytorch.extras import Extras
from neptune_lab.pytorch.mods import Reading, read
from neptune_lab.pytorch.packed import Places, packed_mods


def read_call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    device: torch.device,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    enable_gqa: bool,
    scale: float | None,
    extras: Extras,
    places: Places | None,
) -> tuple[tuple[Any, Any], Reading, Sequence[torch.Tensor], tuple[Any, ...]]:
    """The mods, what they read, q, k and v as the kernel takes them, and the arguments of `problem_of`."""
    if places is not None:
        score_mod, mask_mod = packed_mods(score_mod, mask_mod, places)
    reading = read(score_mod, mask_mod)
    strides = None
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        strides = q.stride(), k.stride(), v.stride()
        if not strides[0][-1:] == strides[1][-1:] == strides[2][-1:] == (1,):
            q, k, v = with_columns(q, k, v)
            strides = q.stride(), k.stride(), v.stride()
    problem = q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, device, enable_gqa, scale, extras, strides
    return (score_mod, mask_mod), reading, (q, k, v), problem


def with_first_as(found: Any, dtype: torch.dtype) -> Any:
    """The kernel's outputs with `out` in another dtype."""
    return (found[0].to(dtype), *found[1:]) if isinstance(found, tuple | list) else found.to(dtype)


__all__ = ["read_call", "with_first_as"]
