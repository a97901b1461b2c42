"""Checks the arguments of `attention`: errors name the argument, what was found and what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import torch

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch.extras import PLAIN, Extras
from neptune_lab.pytorch.refusals import refuse_captured, refuse_layout
from neptune_lab.pytorch.warned import warn_once
from neptune_lab.runtime import interpreting, to_tensor
from neptune_lab.runtime.device import refused_device
from neptune_lab.strict.console import class_of
from neptune_lab.strict.values import check_number, check_switch
from neptune_lab.tensor_spec import Strides, layout_of

Shape: TypeAlias = tuple[int, ...]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Problem:
    """What a kernel is compiled for, besides the mods.

    Args:
        q, k, v: shapes (batch, heads, length, head_dim); the batch of k and v is q's, or 1.
        dtype: of all three and the output, such as "float16"; if `extras` has formats, of the output.
        scale: factor of the scores; None: 1/sqrt(head_dim).
        extras: further outputs, and options of code generation.
        strides: of q, k and v, each None if it is contiguous; None: all three are.
        pages: number of pages, and keys of each, if k and v are read from a cache of pages.
    """

    q: Shape
    k: Shape
    v: Shape
    dtype: str
    scale: float | None
    extras: Extras = PLAIN
    strides: tuple[Strides | None, Strides | None, Strides | None] | None = None
    pages: tuple[int, int] | None = None


def device_of(q: Any, k: Any, v: Any, names: tuple[str, str, str] = ("q", "k", "v")) -> torch.device:
    """The device of q, k and v, whose names in errors are `names`.

    Raises:
        LaunchError: one of them is not a tensor, is nested or sparse, or is on another device.
    """
    if not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        given = zip(names, (q, k, v), strict=True)
        name, value = next((n, t) for n, t in given if not isinstance(t, torch.Tensor))
        if isinstance(value, torch.fx.Proxy):
            raise LaunchError(
                f"argument {name} is a proxy of torch.fx.symbolic_trace, which has no shape",
                help="trace by torch.export.export, make_fx or torch.compile, which know the shapes",
            )
        raise LaunchError(
            f"argument {name} is {class_of(value)}; expected a torch.Tensor",
            help="convert it: torch.as_tensor(values)",
        )
    device = q.device
    if k.device != device or v.device != device:
        name, tensor = (names[1], k) if k.device != device else (names[2], v)
        raise LaunchError(
            f"argument {name} is on {tensor.device}; expected {device}, where {names[0]} is",
            help=f"move it with {name}.to({names[0]}.device)",
        )
    for name, tensor in zip(names, (q, k, v), strict=True):
        refuse_layout(f"argument {name}", tensor)
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
    extras: Extras = PLAIN,
    strides: tuple[Strides, Strides, Strides] | None = None,
) -> Problem:
    """The problem of a call.

    Args:
        strides: of q, k and v; None: all three are contiguous.

    Raises:
        LaunchError: the shapes, dtypes or the device are not supported, or do not fit together.
    """
    for name, shape in (("q", q), ("k", k), ("v", v)):
        check_shape(name, shape)
    v_stored = v
    if ("v_transposed", True) in extras.formats:
        v = (*v[:2], v[3], v[2])
    if not extras.formats:
        _check_dtypes(q_dtype, k_dtype, v_dtype)
    _check_sizes(q, k, v)
    check_switch("enable_gqa", enable_gqa, LaunchError)
    _check_heads(q[1], k[1], enable_gqa=enable_gqa)
    if device.type != "cuda" and not (device.type == "cpu" and interpreting()):
        raise refused_device("q", device, interpreting())
    layouts = None
    if strides is not None:
        layouts = layout_of(q, strides[0]), layout_of(k, strides[1]), layout_of(v_stored, strides[2])
        layouts = layouts if any(layouts) else None
    dtype = dict(extras.formats).get("dtype", str(q_dtype).removeprefix("torch."))
    return Problem(tuple(q), tuple(k), tuple(v), dtype, scale, extras, layouts)


def check_shape(name: str, shape: Shape) -> None:
    """Raise LaunchError unless a tensor has four dimensions and elements."""
    check_axes(name, shape)
    if 0 in shape:
        raise LaunchError(
            f"argument {name} has shape {tuple(shape)}; expected (batch, heads, length, head_dim), none of them 0",
            help="give q and k at least one column, as by torch.nn.functional.pad(x, (0, 1))"
            if not shape[3]
            else "leave the call out: there is nothing to compute",
        )


def check_axes(name: str, shape: Shape) -> None:
    """Raise LaunchError unless a tensor has four dimensions."""
    if len(shape) != 4:
        raise LaunchError(
            f"argument {name} has shape {tuple(shape)}; expected (batch, heads, length, head_dim)",
            help="add the missing dimensions, for example with unsqueeze(0)",
        )


def _check_dtypes(q_dtype: torch.dtype, k_dtype: torch.dtype, v_dtype: torch.dtype) -> None:
    for name, dtype in (("q", q_dtype), ("k", k_dtype), ("v", v_dtype)):
        if dtype not in _DTYPES:
            raise LaunchError(
                f"argument {name} has dtype {dtype}; expected torch.float16, torch.bfloat16 or torch.float32",
                help=f"convert it: {name}.to(torch.float32); kernels sum in float32"
                if dtype == torch.float64
                else f"convert it: {name}.to(torch.float16)",
            )
    for name, dtype in (("k", k_dtype), ("v", v_dtype)):
        if dtype != q_dtype:
            raise LaunchError(
                f"argument {name} has dtype {dtype}; expected {q_dtype}, which q has",
                help=f"convert it with {name}.to(q.dtype)",
            )


def common_dtype(q: torch.dtype, k: torch.dtype, v: torch.dtype) -> torch.dtype | None:
    """The dtype that holds the values of all three, if they differ and attention takes each; else None."""
    if q == k == v or not (q in _DTYPES and k in _DTYPES and v in _DTYPES):
        return None
    return torch.promote_types(torch.promote_types(q, k), v)


def _check_sizes(q: Shape, k: Shape, v: Shape) -> None:
    """Batch, head_dim, and the heads and lengths of k and v."""
    if k[0] not in (1, q[0]):
        raise LaunchError(
            f"argument k has batch {k[0]}; expected {q[0]}, which q has",
            help=f"give k and v a batch of {q[0]}, or of 1, which all queries share"
            if q[0] > 1
            else f"repeat the queries: q.expand({k[0]}, -1, -1, -1)",
        )
    if v[0] != k[0]:
        raise LaunchError(
            f"argument v has batch {v[0]}; expected {k[0]}, which k has", help="give k and v the same batch"
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


def _is_input(tensor: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a captured tensor is already as `as_input` makes it, which it mostly is."""
    plain = type(tensor) is torch.Tensor and tensor.dtype is dtype and tensor.device == device
    return plain and tensor.ndim > 0 and tensor.is_contiguous()


def are_inputs(captured: Sequence[tuple[int, torch.dtype]], tensors: Sequence[Any], device: torch.device) -> bool:
    """Whether a kernel takes captured tensors as they are; the arguments are those of `captured_inputs`."""
    return all(_is_input(tensors[index], device, dtype) for index, dtype in captured)


def captured_inputs(
    captured: Sequence[tuple[int, torch.dtype]], tensors: Sequence[Any], device: torch.device
) -> list[torch.Tensor]:
    """The captured tensors as a kernel takes them.

    Args:
        captured: for each, its index in `tensors`, and the dtype that the kernel takes.
        tensors: torch tensors and NumPy arrays that the mods reach.
        device: where q is.

    Raises:
        LaunchError: a tensor is on another device.
    """
    inputs = []
    for index, dtype in captured:
        tensor = tensors[index]
        if _is_input(tensor, device, dtype):
            inputs.append(tensor)
            continue
        if isinstance(tensor, np.ndarray):
            tensor = to_tensor(tensor).reshape(tensor.shape)  # to_tensor adds an axis if there is none
        refuse_captured(tensor, device)
        inputs.append(as_input(tensor, device, dtype))
    return inputs


def checked_scale(enable_gqa: object, scale: Any) -> float | None:
    """The scale as a number of Python; NumPy's numbers and fractions count as such, and tensors () as in torch.

    Args:
        enable_gqa: it must be a switch.
        scale: None, or a finite number; a tensor must not record gradients, which would be lost.

    Raises:
        LaunchError: an option is not of its type.
    """
    check_switch("enable_gqa", enable_gqa, LaunchError)
    if isinstance(scale, Real) and not isinstance(scale, int | float):
        scale = float(scale)
    elif isinstance(scale, torch.Tensor) and scale.ndim == 0 and not (scale.requires_grad or scale.is_meta):
        scale = scale.item()  # (check_number refuses a bool and a complex number)
    number: Any = scale
    check_number("scale", number, LaunchError, optional=True)
    return number


def warn_of_conversions(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, common: torch.dtype) -> None:
    """Warns, once per process, that tensors of several dtypes are converted."""
    warn_once(
        "dtypes",
        f"attention converts q, k and v ({q.dtype}, {k.dtype}, {v.dtype}) to {common} at each call; give them one "
        "dtype to save the time",
    )


def has_columns(tensor: torch.Tensor) -> bool:
    """Whether elements of the last dimension are adjacent in memory, which kernels need to read them together."""
    return tensor.ndim == 0 or tensor.stride(-1) == 1 or tensor.shape[-1] == 1


def with_columns(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """q, k and v, of which those whose last dimension is strided are copied, with a warning once per process for
    each."""
    found = []
    for name, tensor in zip("qkv", tensors, strict=True):
        adjacent = has_columns(tensor)
        if not adjacent:
            warn_once(
                name,
                f"attention copies {name} at each call, since its strides {tensor.stride()} leave gaps between the "
                f"elements of its last dimension, of shape {tuple(tensor.shape)}; make that dimension the innermost "
                "one where the tensor is made to save the time",
            )
        found.append(tensor if adjacent else tensor.contiguous())
    return found
