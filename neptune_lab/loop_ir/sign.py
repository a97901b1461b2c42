"""What the program itself says about a value: its sign, and whether it can be infinite.

The algebra's assumptions come from here (a maximum of absolute values, a sum of squares), not only from the user.
"""

from __future__ import annotations

from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Previous, Program, loads
from neptune_lab.loop_ir.reduction import reducer_of


def _term(program: Program, buffer: str) -> tuple[str | None, Expr | None]:
    block = writer_of(program, buffer)
    if block is None:
        return None, None
    reducer = reducer_of(block)
    if reducer is None:
        return None, block.body.value
    value = block.body.value
    assert isinstance(value, Op)
    left, right = value.args
    return reducer, right if any(r.buffer == buffer for r in loads(left)) else left


def is_nonnegative(program: Program, expr: Expr) -> bool:
    """Whether the value is at least 0 for all inputs, as far as its form shows."""
    match expr:
        case Const(value):
            return value >= 0
        case Cast(_, arg):
            return is_nonnegative(program, arg)
        case Op("exp" | "exp2" | "abs" | "sqrt" | "sigmoid" | "rsqrt", _):
            return True
        case Op("mul", (a, b)):
            return a == b or (is_nonnegative(program, a) and is_nonnegative(program, b))
        case Op("add" | "div" | "min", (a, b)):
            return is_nonnegative(program, a) and is_nonnegative(program, b)
        case Op("max", (a, b)):
            return is_nonnegative(program, a) or is_nonnegative(program, b)
        case Op("select", (_, a, b)):
            return is_nonnegative(program, a) and is_nonnegative(program, b)
        case Load(buffer, _) | Previous(buffer, _, _):
            _, term = _term(program, buffer)
            return term is not None and is_nonnegative(program, term)
    return False


def may_be_infinite(program: Program, expr: Expr, sign: int) -> bool:
    """Whether the value can be +inf (sign 1) or -inf (sign -1) for finite inputs, barring overflow.

    An infinity can only come from a literal one (a masked score) or from log of 0 and division by 0.
    """
    match expr:
        case Const(value, dtype):
            return "float" in dtype and value == sign * float("inf")
        case Cast(_, arg):
            return may_be_infinite(program, arg, sign)
        case Op("guard", (a, _, _)):
            return may_be_infinite(program, a, sign)
        case Op("select", (_, a, b)):
            return may_be_infinite(program, a, sign) or may_be_infinite(program, b, sign)
        case Op("log" | "log2" | "rsqrt", _):
            return True
        case Op("div", (a, b)):
            return not isinstance(b, Const) or may_be_infinite(program, a, sign)
        case Op("tanh" | "sigmoid" | "sin" | "cos" | "erf", _):
            return False
        case Op(_, args):
            return any(may_be_infinite(program, a, s) for a in args for s in (1, -1))
        case Load(buffer, _) | Previous(buffer, _, _):
            _, term = _term(program, buffer)
            return term is not None and may_be_infinite(program, term, sign)
    return False
