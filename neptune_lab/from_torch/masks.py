"""Choices whose condition compares indices, in the form by which loops are bounded.

A loop skips the tiles in which `where(condition, x, -inf)` holds -inf everywhere.  PyTorch code spells that in several
ways: masked_fill with the opposite condition, a triangle of ones, a sum with a tensor of 0 and -inf.
"""

from __future__ import annotations

import math

from neptune_lab.from_torch.values import negated
from neptune_lab.loop_ir.nodes import Const, Expr, Op


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
