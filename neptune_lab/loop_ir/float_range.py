"""The range of an integer that is computed through floats or conditions, such as `int(log(abs(i - j)) * 3)`.

Every step of floats is widened by more than its rounding, so that the range holds for what a kernel computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op, Var
from neptune_lab.loop_ir.value_range import ValueRange, range_of_operation
from neptune_lab.scalar_ops import OPERATIONS
from neptune_lab.strict.dtypes import EIGHTS, HALVES, INTEGERS

# More than the relative rounding error of any operation in float32, and of a conversion to 16 bits.
_SLACK, _SLACK_OF_HALVES, _SLACK_OF_EIGHTS = 1e-5, 1e-2, 0.13

# The bounds of an integer expression; None if they are not known.
BoundsOf: TypeAlias = Callable[[Expr], tuple[int, int] | None]


def converted_bounds(dtype: str, arg: Expr, bounds_of: BoundsOf) -> tuple[int, int] | None:
    """Least and greatest value of a conversion to an integer.

    Args:
        dtype: the integer dtype.
        arg: what is converted: a condition, an integer or a float.
        bounds_of: what bounds the integers in it.

    Returns:
        Bounds that hold with rounding; None if they are not known, or `dtype` may not hold them.

    >>> half = Op("mul", (Cast("float32", Var("i")), Const(0.5, "float32")))
    >>> converted_bounds("int32", half, {Var("i"): (0, 7)}.get)
    (0, 3)
    """
    if dtype not in INTEGERS:
        return None
    if _is_condition(arg):
        return 0, 1
    limits = bounds_of(arg)
    if limits is None:
        values = _range(arg, bounds_of)
        if values is None:
            return None
        limits = math.trunc(values.low), math.trunc(values.high)  # as the conversion rounds
    bits = int(dtype.lstrip("uint")) - (not dtype.startswith("u"))
    least = 0 if dtype.startswith("u") else -(2**bits)
    return limits if least <= limits[0] <= limits[1] < 2**bits else None


def _is_condition(expr: Expr) -> bool:
    match expr:
        case Cast("bool", _):
            return True
        case Const(value):
            return isinstance(value, bool)
        case Op(name, _):
            return OPERATIONS[name].kind in ("comparison", "logic")
    return False


def _range(expr: Expr, bounds_of: BoundsOf) -> ValueRange | None:
    """The finite range of a float; None if it is not known, or if the value may be NaN."""
    match expr:
        case Const(value) if not isinstance(value, bool) and math.isfinite(value):
            return ValueRange(float(value), float(value))
        case Cast(dtype, arg) if "float" in dtype:
            if _is_condition(arg):
                return ValueRange(0.0, 1.0)
            slack = _SLACK_OF_EIGHTS if dtype in EIGHTS else _SLACK_OF_HALVES if dtype in HALVES else _SLACK
            # (an integer, which a condition around may bound)
            whole = bounds_of(arg) if isinstance(arg, Op) else None
            return _widened(_range(arg, bounds_of) if whole is None else ValueRange(*map(float, whole)), slack)
        case Op("select", (_, yes, no)):
            sides = _range(yes, bounds_of), _range(no, bounds_of)
            return None if sides[0] is None or sides[1] is None else sides[0].hull(sides[1])
        case Op(name, args) if not _is_condition(expr):
            given = [_range(a, bounds_of) for a in args]
            known = [r for r in given if r is not None and r.low >= OPERATIONS[name].start]
            if len(known) < len(given):
                return None
            row = OPERATIONS[name]
            correct = row.exact or row.kind == "number" or name in ("div", "sqrt")  # rounded relative to the result
            return _widened(range_of_operation(name, known), _SLACK, 0.0 if correct else 1.0)
        case Var() | Cast():
            limits = bounds_of(expr)
            return None if limits is None else ValueRange(*map(float, limits))
    return None


def _widened(values: ValueRange | None, slack: float, least: float = 0.0) -> ValueRange | None:
    """The range with rounding, relative to each end, or to `least` if that is more; None if it is not finite."""
    if values is None or not (math.isfinite(values.low) and math.isfinite(values.high)):
        return None
    low, high = (slack * max(abs(end), least) for end in (values.low, values.high))
    return ValueRange(values.low - low, values.high + high)
