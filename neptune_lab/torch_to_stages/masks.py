"""Choices whose condition compares indices, in the form by which loops are bounded.

A loop skips the tiles in which `where(condition, x, -inf)` holds -inf everywhere.  PyTorch code spells that in several
ways: masked_fill with the opposite condition, a triangle of ones, a sum with a tensor of 0 and -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.torch_to_stages.values import has_loads, negated


def chosen(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """`yes` where `condition` holds, else `no`; a side of -inf comes second.

    >>> from neptune_lab.loop_ir.nodes import Var
    >>> chosen(Op("gt", (Var("j"), Var("i"))), Const(-math.inf, "float32"), Const(1.0, "float32")).args[0].name
    'le'
    """
    if isinstance(condition, Const):
        return yes if condition.value else no
    match condition:
        case Op("ne", (Op("select", (inner, Const(a), Const(b))), Const(c))) if (a != c) != (b != c):
            return chosen(inner if a != c else negated(inner), yes, no)
        case Op("eq", (Op("select", (inner, Const(a), Const(b))), Const(c))) if (a == c) != (b == c):
            return chosen(inner if a == c else negated(inner), yes, no)
    if isinstance(yes, Const) and yes.value == -math.inf:
        return Op("select", (negated(condition), no, yes))
    return Op("select", (condition, yes, no))


def decided(expr: Expr, extents: Mapping[str, int]) -> Expr:
    """A comparison of indices that always or never holds as a constant, and choices by constants as the side taken.

    Args:
        expr: an operation whose operands are decided already.
        extents: of the variables.

    Returns:
        The constant or the operand; else the same object.

    >>> from neptune_lab.loop_ir.nodes import Var
    >>> decided(Op("ne", (Var("i"), Const(-100))), {"i": 8})
    Const(value=True, dtype='bool')
    """
    match expr:
        case Op("select", (Const(value, "bool"), yes, no)):
            return yes if value else no
        case Op("not", (Const(value, "bool"),)):
            return Const(not value, "bool")
        case Op("and" | "or" as name, (Const(value, "bool"), other) | (other, Const(value, "bool"))):
            return other if value == (name == "and") else Const(value, "bool")
        case Op(name, (a, b)) if name in _ALWAYS and not has_loads(expr):
            left, right = bounds(a, extents), bounds(b, extents)
            if left is None or right is None:
                return expr
            least, greatest = left[0] - right[1], left[1] - right[0]
            for answer, test in enumerate(_ALWAYS[name]):
                if test(least, greatest):
                    return Const(bool(answer), "bool")
    return expr


# By comparison of a with b: whether it never holds, and whether it always does, from the limits of a - b.
_ALWAYS: dict[str, tuple[Callable[[int, int], bool], Callable[[int, int], bool]]] = {
    "lt": (lambda low, high: low >= 0, lambda low, high: high < 0),
    "le": (lambda low, high: low > 0, lambda low, high: high <= 0),
    "gt": (lambda low, high: high <= 0, lambda low, high: low > 0),
    "ge": (lambda low, high: high < 0, lambda low, high: low >= 0),
    "eq": (lambda low, high: low > 0 or high < 0, lambda low, high: low == high == 0),
    "ne": (lambda low, high: low == high == 0, lambda low, high: low > 0 or high < 0),
}
