"""Indices of captured tensors: as a mod computes them, and in the program, where negative ones count from the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neptune_lab.loop_ir.index_range import range_of
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op
from neptune_lab.loop_ir.simplify import bounds_where, in_int32, without_choices
from neptune_lab.loop_ir.walks import loads
from neptune_lab.operators.array_indices import OUTSIDE, index_of, refuse_outside
from neptune_lab.operators.arrays import Array
from neptune_lab.operators.operations import is_wide
from neptune_lab.operators.scalar import Scalar, apply


def given_index(array: Array, axis: int, index: Any) -> Any:
    """The index that a mod gives, as an int, a NumPy array or a TVM expression."""
    index = index_of(array, axis, index)
    return _position(index.value if isinstance(index, Scalar) else index)


def _position(index: Any) -> Any:
    """The index without a cast from int32 to int64, if it is one."""
    value: Any = getattr(index, "value", None) if is_wide(index) else None  # of a cast; of a constant, a number
    return value if hasattr(value, "ty") and str(value.ty.dtype) == "int32" else index


def narrowed(index: Any) -> Any:
    """An index of 64 bits in 32; where 32 do not hold it, `OUTSIDE` on its side of 0, so that it reads no element.

    By two extrema, since a comparison and a choice write the index again: three times for each read inside a read.
    """
    return apply("max", apply("min", Scalar(index), OUTSIDE), -OUTSIDE).value.astype("int32")


def times_written(index: Any) -> int:
    """How often the definition writes an index: `counted_from_the_end` asks whether it is negative, and adds the
    axis's extent."""
    return 1 if isinstance(index, np.ndarray) or is_from_zero(index) else 3


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a captured tensor.

    Args:
        name, shape: the tensor's.
        conditions: those under which it happens.
        extents: of the loops around it.
    """

    name: str
    shape: tuple[int, ...]
    conditions: tuple[Expr, ...]
    extents: Mapping[str, int]


def counted_from_the_end(read: Read, axis: int, index: Expr) -> Expr:
    """The index in int32, plus the axis's extent if it is negative.

    Args:
        read: which the index is of.
        axis: of the tensor.
        index: an integer.

    Raises:
        DefinitionError: the extents of the loops show that it is out of range.
    """
    size, extents = read.shape[axis], read.extents
    index = without_choices(in_int32(index, extents), extents)
    interval = bounds_where(read.conditions, index, extents)
    if (interval is None or not -size <= interval[0] <= interval[1] < size) and not loads(index):
        interval = range_of(index, read.conditions, extents) or interval
    if interval is not None and interval[0] <= interval[1]:
        refuse_outside(f"the captured tensor {read.name}", axis, read.shape, *interval)
        if interval[0] >= 0:
            return index
    if is_from_zero(index):
        return index
    return Op("select", (Op("lt", (index, Const(0))), Op("add", (index, Const(size))), index))


def is_from_zero(index: Any) -> bool:
    """Whether its form shows that an integer is at least 0, also of data, as `index.clamp(min=0)` is.

    Args:
        index: of a program, or a TVM expression.
    """
    match _parts(index):
        case ("const", value):
            return isinstance(value, int) and value >= 0
        case ("max", *operands):
            return any(map(is_from_zero, operands))
        case ("min", *operands):
            return all(map(is_from_zero, operands))
        case ("int64", narrow):
            return is_from_zero(narrow)
        case ("int32", Op("max", (Op("min", (wide, Const(high))), Const(low)))) if 0 <= high < 2**31 and low < 2**31:
            return is_from_zero(wide)  # as `narrowed` makes it: 32 bits hold what is converted
    return False


def _parts(index: Any) -> tuple[Any, ...]:
    """What an integer is and of what, in both forms of expressions: "const" and the value, "max" or "min" and the
    operands, or the dtype of a cast and what is cast; () for all else."""
    match index:
        case Const(value):
            return ("const", value)
        case Op(name, operands) if name in ("max", "min"):
            return (name, *operands)
        case Cast(dtype, arg):
            return (dtype, arg)
    match type(index).__name__:  # of TVM
        case "IntImm":
            return ("const", int(index.value))
        case "Max" | "Min" as name:
            return (name.lower(), index.a, index.b)
        case "Cast":
            return (str(index.ty.dtype), index.value)
    return ()


__all__ = ["Read", "counted_from_the_end", "given_index", "is_from_zero", "narrowed", "times_written"]
