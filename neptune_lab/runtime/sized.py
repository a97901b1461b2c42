"""Sizes that are known at the launch only: read from the arguments, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neptune_lab.errors import LaunchError
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.tensor_spec import TensorSpec


def sizes_in(spec: KernelSpec, shapes: Sequence[Sequence[int]]) -> dict[str, int] | None:
    """The sizes of a call by name; None if the shapes are not those of `spec`, or a size is out of its range.

    Args:
        shapes: of the inputs, as many as `spec` has.
    """
    found: dict[str, int] = {}
    for tensor, shape in zip(spec.inputs, shapes, strict=True):
        if len(shape) != len(tensor.shape):
            return None
        for extent, name, size in zip(tensor.shape, tensor.sizes or ("",) * len(shape), shape, strict=True):
            if size != (found.setdefault(name, size) if name else extent):
                return None
    if any(not least <= found[name] <= largest for name, least, largest in spec.ranges):
        return None
    return found


def check_sizes(spec: KernelSpec, tensors: Sequence[Any]) -> dict[str, int]:
    """As `sizes_in`; LaunchError, naming the argument and the size, where that returns None."""
    shapes = [tuple(tensor.shape) for tensor in tensors]
    found = sizes_in(spec, shapes)
    if found is not None:
        return found
    seen: dict[str, tuple[int, str]] = {}
    for tensor, shape in zip(spec.inputs, shapes, strict=True):
        names = tensor.sizes or ("",) * len(tensor.shape)
        wanted = f"{tensor.name} has shape {shape}; expected ({', '.join(map(str, _shape_text(tensor)))})"
        if len(shape) != len(tensor.shape):
            raise LaunchError(f"argument {wanted}", help="the sizes are free, and the number of dimensions is not")
        for extent, name, size in zip(tensor.shape, names, shape, strict=True):
            if not name and size != extent:
                raise LaunchError(f"argument {wanted}", help="only the sizes with names are free")
            if name and seen.setdefault(name, (size, tensor.name))[0] != size:
                value, owner = seen[name]
                raise LaunchError(f"argument {wanted}", help=f"{name} is {value} in {owner}")
    for name, least, largest in spec.ranges:
        if not least <= seen[name][0] <= largest:
            raise LaunchError(
                f"size {name} is {seen[name][0]}; {spec.name} takes {least} to {largest}",
                help="compile the operator for this size",
            )
    raise AssertionError("sizes_in refuses nothing else")


def shape_at(tensor: TensorSpec, sizes: dict[str, int]) -> tuple[int, ...]:
    """The shape of an output at the sizes of a call."""
    names = tensor.sizes or ("",) * len(tensor.shape)
    return tuple(sizes[name] if name else extent for name, extent in zip(names, tensor.shape, strict=True))


def _shape_text(tensor: TensorSpec) -> tuple[str | int, ...]:
    return tuple(n or e for n, e in zip(tensor.sizes or ("",) * len(tensor.shape), tensor.shape, strict=True))


__all__ = ["check_sizes", "shape_at", "sizes_in"]
