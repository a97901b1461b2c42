"""Calls of attention without queries, or without keys: nothing is launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neptune_lab.pytorch.arguments import problem_of
from neptune_lab.pytorch.extras import Extras
from neptune_lab.tensor_spec import dense_strides


def is_empty(q: Any, k: Any, v: Any) -> bool:
    """Whether there are no samples, heads, queries or keys, or the values have no columns; False if the tensors do not
    fit together, which is refused elsewhere."""
    if not q.ndim == k.ndim == v.ndim == 4 or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        return False
    heads, kv_heads = q.shape[1], k.shape[1]
    if k.shape[0] not in (1, q.shape[0]) or (heads != kv_heads and (not kv_heads or heads % kv_heads)):
        return False
    return (0 in q.shape[:3] or 0 in k.shape[:3] or v.shape[3] == 0) and 0 not in (q.shape[3], k.shape[3])


def check_empty(
    q: Any, k: Any, v: Any, device: torch.device, enable_gqa: bool, scale: float | None, extras: Extras
) -> None:
    """Raise LaunchError if the tensors of such a call do not fit together, or an option is wrong."""
    dtypes = q.dtype, k.dtype, v.dtype
    problem_of(_ones(q.shape), _ones(k.shape), _ones(v.shape), *dtypes, device, enable_gqa, scale, extras)


def outputs_of_empty(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, extras: Extras, captured: Sequence[Any] = ()
) -> Any:
    """The outputs of such a call, as those of a kernel: a query that sees no key gives 0, and so are all gradients,
    also those of what a score_mod has `captured`."""
    shape = *q.shape[:3], v.shape[3]
    dtype = getattr(torch, dict(extras.formats)["dtype"]) if extras.formats else q.dtype
    out = torch.empty_strided(shape, dense_strides(shape, q.stride()), dtype=dtype, device=q.device).fill_(0)
    given = [t for t in captured if isinstance(t, torch.Tensor)]
    found = [recorded(out, q, k, v, *given)]
    if extras.lse:
        found.append(recorded(torch.full(q.shape[:3], -torch.inf, device=q.device), q, k, *given))
    if extras.max_scores:
        found.append(torch.full(q.shape[:3], -torch.inf, device=q.device))
    return tuple(found) if len(found) > 1 else found[0]


def without_transposition(formats: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """The formats of a call whose v stays as it is."""
    return tuple(one for one in formats if one != ("v_transposed", True))


def recorded(out: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
    """The outputs with gradients of 0 for the tensors that record them, whatever these hold."""
    recording = [t for t in tensors if t.requires_grad]
    if torch.is_grad_enabled() and recording:
        return out + sum(t.flatten()[:0].sum().to(out.dtype) for t in recording)
    return out


def nothing_of(*tensors: torch.Tensor) -> torch.Tensor:
    """0, whose gradient gives zeros to each of the tensors."""
    return torch.stack([t.flatten()[:0].sum().float() for t in tensors]).sum()


def _ones(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape with 1 in place of 0."""
    return tuple(size or 1 for size in shape)


__all__ = ["check_empty", "is_empty", "nothing_of", "outputs_of_empty", "recorded", "without_transposition"]
