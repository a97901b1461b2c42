"""Checks the arguments of `attention`: errors name the argument, what was found and what is expected."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.runtime import interpreting
from neptune_lab.strict.values import check_number, check_switch

Shape: TypeAlias = tuple[int, ...]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Problem:
    """What a kernel is compiled for, besides the mods.

    Args:
        q, k, v: shapes (batch, heads, length, head_dim).
        dtype: of all three, such as "float16".
        scale: factor of the scores; None: 1/sqrt(head_dim).
    """

    q: Shape
    k: Shape
    v: Shape
    dtype: str
    scale: float | None


def device_of(q: Any, k: Any, v: Any) -> torch.device:
    """The device of q, k and v; LaunchError if one of them is not a tensor or is on another device."""
    if not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        name, value = next((n, t) for n, t in (("q", q), ("k", k), ("v", v)) if not isinstance(t, torch.Tensor))
        raise LaunchError(
            f"argument {name} is a {type(value).__name__}; expected a torch.Tensor",
            help="convert it: torch.as_tensor(values)",
        )
    device = q.device
    if k.device != device or v.device != device:
        name, tensor = ("k", k) if k.device != device else ("v", v)
        raise LaunchError(
            f"argument {name} is on {tensor.device}; expected {device}, where q is",
            help=f"move it with {name}.to(q.device)",
        )
    return device


def problem_of(
    q: Shape,
    k: Shape,
    v: Shape,
    q_dtype: torch.dtype,
    k_dtype: torch.dtype,
    v_dtype: torch.dtype,
    device: torch.device,
    enable_gqa: bool,
    scale: float | None,
) -> Problem:
    """The problem of a call.

    Raises:
        LaunchError: the shapes, dtypes or the device are not supported, or do not fit together.
    """
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) != 4 or 0 in shape:
            raise LaunchError(
                f"argument {name} has shape {tuple(shape)}; expected (batch, heads, length, head_dim), none of them 0",
                help="add the missing dimensions, for example with unsqueeze(0)",
            )
    _check_dtypes(q_dtype, k_dtype, v_dtype)
    _check_sizes(q, k, v)
    check_switch("enable_gqa", enable_gqa, LaunchError)
    _check_heads(q[1], k[1], enable_gqa=enable_gqa)
    if device.type != "cuda" and not (device.type == "cpu" and interpreting()):
        raise LaunchError(
            f"argument q is on {device}; expected a CUDA device, since kernels run on the GPU here",
            help="move q, k and v there with .cuda(), or start with TRITON_INTERPRET=1 to interpret kernels on the CPU",
        )
    return Problem(tuple(q), tuple(k), tuple(v), str(q_dtype).removeprefix("torch."), scale)


def _check_dtypes(q_dtype: torch.dtype, k_dtype: torch.dtype, v_dtype: torch.dtype) -> None:
    if q_dtype not in _DTYPES:
        raise LaunchError(
            f"argument q has dtype {q_dtype}; expected torch.float16, torch.bfloat16 or torch.float32",
            help="convert q, k and v: q.to(torch.float16)",
        )
    for name, dtype in (("k", k_dtype), ("v", v_dtype)):
        if dtype != q_dtype:
            raise LaunchError(
                f"argument {name} has dtype {dtype}; expected {q_dtype}, which q has",
                help=f"convert it with {name}.to(q.dtype)",
            )


def _check_sizes(q: Shape, k: Shape, v: Shape) -> None:
    """Batch, head_dim, and the heads and lengths of k and v."""
    for name, shape in (("k", k), ("v", v)):
        if shape[0] != q[0]:
            raise LaunchError(
                f"argument {name} has batch {shape[0]}; expected {q[0]}, which q has",
                help=f"give it one of {q[0]}, or of 1, which is repeated",
            )
    if k[3] != q[3]:
        raise LaunchError(
            f"argument k has head_dim {k[3]}; expected {q[3]}, which q has", help="give q and k the same last dimension"
        )
    if v[1:3] != k[1:3]:
        raise LaunchError(
            f"argument v has {v[1]} heads and length {v[2]}; expected {k[1]} and {k[2]}, which k has",
            help="give k and v the same number of heads and the same length",
        )


def _check_heads(heads: int, kv_heads: int, *, enable_gqa: bool) -> None:
    if kv_heads != heads and not enable_gqa:
        raise LaunchError(
            f"argument k has {kv_heads} heads; expected {heads}, which q has",
            help="enable_gqa=True lets several heads of q share one of k and v",
        )
    if heads % kv_heads:
        raise LaunchError(
            f"argument k has {kv_heads} heads; expected a divisor of {heads}, which q has",
            help="with enable_gqa=True, each key head serves a whole group of query heads",
        )


def as_input(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A captured tensor as a kernel takes it: of this dtype, contiguous; a tensor without axes gets one and is moved
    to `device`."""
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    if tensor.ndim == 0:
        tensor = tensor.reshape(1)
        if tensor.device != device:
            tensor = tensor.to(device, non_blocking=True)  # does not wait for the GPU
    return tensor.contiguous()


def refuse_options(enable_gqa: object, scale: object) -> None:
    """Raise LaunchError for an option that is not of its type."""
    check_switch("enable_gqa", enable_gqa, LaunchError)
    check_number("scale", scale, LaunchError, optional=True)


def refuse_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise LaunchError for the first of q, k and v that records gradients."""
    name = next(name for name, t in (("q", q), ("k", k), ("v", v)) if t.requires_grad)
    raise LaunchError(
        f"argument {name} records gradients, and attention has no backward",
        help=f"call it under torch.no_grad(), or with {name}.detach()",
    )


# Arguments of FlexAttention and SDPA that `attention` does not take, and what to do instead.
_INSTEAD = {
    "query": "its name is q here: attention(q, k, v)",
    "key": "its name is k here: attention(q, k, v)",
    "value": "its name is v here: attention(q, k, v)",
    "block_mask": "give the mask's function, mask_mod=block_mask.mask_mod: the kernel finds the empty tiles by itself",
    "return_lse": "nl.operators.attention.general(..., return_lse=True) compiles a kernel with the log-sum-exp",
    "return_aux": "nl.operators.attention.general(..., return_lse=True) compiles a kernel with the log-sum-exp",
    "kernel_options": "leave it out: `neptune-lab tune` finds the options, and attention takes what it found",
    "attn_mask": "mask_mod=lambda b, h, q, kv: attn_mask[b, h, q, kv], or score_mod for a bias that is added",
    "dropout_p": "leave it out: there is no dropout",
    "is_causal": "mask_mod=lambda b, h, q, kv: q >= kv",
}


def refuse_others(more: tuple[Any, ...], others: Mapping[str, Any]) -> None:
    """Raise LaunchError for arguments that `attention` does not take; None and False count as left out."""
    if more:
        raise LaunchError(
            f"attention takes q, k and v by position, and got {len(more)} more",
            help="name the others: attention(q, k, v, score_mod=..., mask_mod=..., scale=..., enable_gqa=...)",
        )
    for name, value in others.items():
        if name not in _INSTEAD:
            raise LaunchError(
                f"attention has no argument {name!r}", help="it takes score_mod, mask_mod, enable_gqa and scale"
            )
        if value is not None and value is not False and not (name == "dropout_p" and value == 0):
            raise LaunchError(f"attention does not take {name}", help=_INSTEAD[name])


def refuse_transforms(*tensors: torch.Tensor) -> None:
    """Raise LaunchError inside torch.vmap, torch.func.grad and the like, which cannot transform a kernel."""
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    if any(functorch.is_functorch_wrapped_tensor(t) for t in tensors):
        raise LaunchError(
            "attention inside torch.vmap or a transform of torch.func: a kernel takes whole tensors",
            help="move the mapped axis into the batch: attention(q.flatten(0, 1), ...).unflatten(0, q.shape[:2])",
        )


def warn_of_copies(*tensors: torch.Tensor) -> None:
    """Warns, once per process and argument, that q, k or v is copied because it is not contiguous."""
    for name, tensor in zip("qkv", tensors, strict=True):
        if not tensor.is_contiguous() and name not in _warned:
            _warned.add(name)
            warnings.warn(
                f"attention copies {name} at each call, since its strides {tensor.stride()} are not those of a "
                f"contiguous {tuple(tensor.shape)} tensor; make it contiguous where it is made to save the time",
                stacklevel=3,
            )
