"""The range of an integer that is computed through floats or conditions, such as `int(log(abs(i - j)) * 3)`.

Every step of floats is widened by more than its rounding, so that the range holds for what a kernel computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op, Var
from neptune_lab.loop_ir.sign import ValueRange, range_of_operation
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.scalar_ops import OPERATIONS
from neptune_lab.strict.dtypes import EIGHTS, HALVES, INTEGERS

# More than the relative rounding error of any operation in float32, and of a conversion to 16 bits.
_SLACK, _SLACK_OF_HALVES, _SLACK_OF_EIGHTS = 1e-5, 1e-2, 0.13


def converted_bounds(dtype: str, arg: Expr, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """Least and greatest value of a conversion to an integer.

    Args:
        dtype: the integer dtype.
        arg: what is converted: a condition, an integer or a float.
        extents: of the loops, as for `simplify.bounds`.

    Returns:
        Bounds that hold with rounding; None if they are not known, or `dtype` may not hold them.

    >>> from neptune_lab.loop_ir.nodes import Var
    >>> converted_bounds("int32", Op("mul", (Cast("float32", Var("i")), Const(0.5, "float32"))), {"i": 8})
    (0, 3)
    """
    if dtype not in INTEGERS:
        return None
    if _is_condition(arg):
        return 0, 1
    limits = bounds(arg, extents)
    if limits is None:
        values = _range(arg, extents)
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


def _range(expr: Expr, extents: Mapping[str, int]) -> ValueRange | None:
    """The finite range of a float; None if it is not known, or if the value may be NaN."""
    match expr:
        case Const(value) if not isinstance(value, bool) and math.isfinite(value):
            return ValueRange(float(value), float(value))
        case Cast(dtype, arg) if dtype in INTEGERS:
            limits = converted_bounds(dtype, arg, extents)
            return None if limits is None else ValueRange(*map(float, limits))
        case Cast(dtype, arg) if "float" in dtype:
            if _is_condition(arg):
                return ValueRange(0.0, 1.0)
            slack = _SLACK_OF_EIGHTS if dtype in EIGHTS else _SLACK_OF_HALVES if dtype in HALVES else _SLACK
            return _widened(_range(arg, extents), slack)
        case Op("select", (_, yes, no)):
            sides = _range(yes, extents), _range(no, extents)
            return None if sides[0] is None or sides[1] is None else sides[0].hull(sides[1])
        case Op(name, args) if not _is_condition(expr):
            given = [_range(a, extents) for a in args]
            known = [r for r in given if r is not None and r.low >= OPERATIONS[name].start]
            if len(known) < len(given):
                return None
            row = OPERATIONS[name]
            correct = row.exact or row.kind == "number" or name in ("div", "sqrt")  # rounded relative to the result
            return _widened(range_of_operation(name, known), _SLACK, 0.0 if correct else 1.0)
        case Var():
            limits = bounds(expr, extents)
            return None if limits is None else ValueRange(*map(float, limits))
    return None


def _widened(values: ValueRange | None, slack: float, least: float = 0.0) -> ValueRange | None:
    """The range with rounding, relative to each end, or to `least` if that is more; None if it is not finite."""
    if values is None or not (math.isfinite(values.low) and math.isfinite(values.high)):
        return None
    low, high = (slack * max(abs(end), least) for end in (values.low, values.high))
    return ValueRange(values.low - low, values.high + high)
