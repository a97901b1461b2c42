"""Tensors of 8 bits in calls of `attention`: their dtypes, and their scales as inputs of a kernel."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch.arguments import check_axes, device_of
from neptune_lab.pytorch.refusals import refuse_transforms
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_number

_QUANTIZED = frozenset({torch.float8_e4m3fn, torch.float8_e5m2, torch.int8})
_PLAIN = frozenset({torch.float16, torch.bfloat16, torch.float32})
_WEIGHTS = frozenset({*_PLAIN, torch.float8_e4m3fn})


class Quantized(NamedTuple):
    """What a call with quantized tensors says.

    Args:
        formats: arguments of `operators.attention.general` by name: dtypes, and the shapes of the scales.
        scales: the scales that there are, of q, k and v in this order, in float32 and their shapes.
    """

    formats: tuple[tuple[str, Any], ...] = ()
    scales: tuple[torch.Tensor, ...] = ()


NONE = Quantized()


def has_quantized(q: Any, k: Any, v: Any, formats: tuple[Any, Any, Any, Any]) -> bool:
    """Whether a tensor has 8 bits, or a scale or a dtype of the weights is given; every call asks this."""
    q_scale, k_scale, v_scale, weights_dtype = formats
    if not (q_scale is k_scale is v_scale is weights_dtype is None):
        return True
    own = getattr(q, "dtype", None), getattr(k, "dtype", None), getattr(v, "dtype", None)
    return own[0] in _QUANTIZED or own[1] in _QUANTIZED or own[2] in _QUANTIZED


def quantized(
    q: Any,
    k: Any,
    v: Any,
    q_scale: Any,
    k_scale: Any,
    v_scale: Any,
    weights_dtype: torch.dtype | None,
    paged: bool = False,
) -> Quantized:
    """The formats and scales of a call; `paged`: k and v are caches (pages, page_size, kv_heads, head_dim).

    Raises:
        LaunchError: a dtype, or the shape, dtype or device of a scale, is not supported.
    """
    device_of(q, k, v)
    if not torch.compiler.is_dynamo_compiling():
        refuse_transforms(q_scale, k_scale, v_scale)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_axes(name, tensor.shape)
        _check_dtype(name, tensor.dtype)
    out = q.dtype if q.dtype in _PLAIN else torch.bfloat16
    formats: dict[str, Any] = {"dtype": _name(out)}
    formats |= {f"{name}_dtype": _name(t.dtype) for name, t in (("q", q), ("k", k), ("v", v))}
    if weights_dtype is not None:
        _check_weights(weights_dtype, v.dtype)
        formats["weights_dtype"] = _name(weights_dtype)
        if weights_dtype not in _PLAIN:
            formats["v_transposed"] = True
    scales = []
    for name, scale, tensor in (("q", q_scale, q), ("k", k_scale, k), ("v", v_scale, v)):
        if scale is not None:
            extents = (1, tensor.shape[2]) if paged and name != "q" else tuple(tensor.shape[:2])
            made = _scale(f"{name}_scale", scale, tensor.device, extents)
            formats[f"{name}_scale"] = tuple(made.shape)
            scales.append(made)
    return Quantized(tuple(sorted(formats.items())), tuple(scales))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_dtype(name: str, dtype: torch.dtype) -> None:
    if dtype in _PLAIN or (dtype in _QUANTIZED and not (name == "q" and dtype == torch.int8)):
        return
    more = "" if name == "q" else ", torch.int8"
    raise LaunchError(
        f"argument {name} has dtype {dtype}; expected torch.float8_e4m3fn, torch.float8_e5m2{more}, torch.float16, "
        "torch.bfloat16 or torch.float32",
        help=f"convert it: {name}.to(torch.float8_e4m3fn), with the scale that it was divided by as {name}_scale",
    )


def _check_weights(dtype: Any, v_dtype: torch.dtype) -> None:
    if not isinstance(dtype, torch.dtype) or dtype not in _WEIGHTS:
        raise LaunchError(
            f"argument weights_dtype is {shown(dtype)}; expected torch.float8_e4m3fn, torch.float16, torch.bfloat16 or "
            "torch.float32",
            help="leave it out, for weights of 16 bits",
        )
    if dtype not in _PLAIN and v_dtype != dtype:
        raise LaunchError(
            f"argument weights_dtype is {dtype}, and v has dtype {v_dtype}: both factors of a product of 8 bits have "
            "one dtype",
            help=f"leave weights_dtype out, or convert v: v.to({dtype})",
        )


def _scale(name: str, scale: Any, device: torch.device, extents: tuple[int, int]) -> torch.Tensor:
    """A scale as a contiguous float32 tensor (batch or 1, heads or 1) on `device`; `extents`: batch and heads."""
    if not isinstance(scale, torch.Tensor):
        check_number(name, scale, LaunchError)
        value = float(scale)
        if torch.compiler.is_dynamo_compiling():
            return torch.full((1, 1), value, device=device, dtype=torch.float32)
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if capturing or torch._C._len_torch_dispatch_stack():  # a tensor of a graph's, or a fake one, is not kept
            return torch.full((1, 1), value, device=device, dtype=torch.float32)
        return _constant_scale(value, device)
    batch, heads = extents
    shape = tuple(scale.shape)
    if len(shape) > 2 or any(n not in (1, most) for n, most in zip(shape[::-1], (heads, batch), strict=False)):
        raise LaunchError(
            f"argument {name} has shape {shape}; expected (), ({heads},) or ({batch}, {heads}): one scale, one per "
            "head, or one per sample and head",
            help=f"reduce the tensor's absolute values over its last two dimensions to make {name}",
        )
    if not scale.dtype.is_floating_point or scale.dtype.itemsize == 1:
        raise LaunchError(
            f"argument {name} has dtype {scale.dtype}; expected torch.float32", help=f"convert it: {name}.float()"
        )
    if scale.device != device and not (scale.ndim == 0 and scale.device.type == "cpu"):
        raise LaunchError(
            f"argument {name} is on {scale.device}; expected {device}, where {name[0]} is",
            help=f"move it with {name}.to({name[0]}.device)",
        )
    if torch.is_grad_enabled() and scale.requires_grad:
        raise LaunchError(
            f"argument {name} records gradients, and attention has no backward",
            help=f"call it under torch.no_grad(), or with {name}.detach()",
        )
    whole = scale.reshape((1,) * (2 - len(shape)) + shape)
    return whole.to(device=device, dtype=torch.float32).contiguous()


@lru_cache(maxsize=256)
def _constant_scale(value: float, device: torch.device) -> torch.Tensor:
    return torch.full((1, 1), value, device=device, dtype=torch.float32)


__all__ = ["NONE", "Quantized", "has_quantized", "quantized"]
