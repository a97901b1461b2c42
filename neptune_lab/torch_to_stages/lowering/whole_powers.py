"""Powers of whole numbers by integer tensors, and shifts by them: a factor per binary digit of the exponent."""

from __future__ import annotations

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.lowering.operands import Operand
from neptune_lab.torch_to_stages.values import NARROW_INTEGERS, Value

# A shift by a constant of fewer bits is one product or quotient by a number that an int32 holds.
SHIFTS = 31


def power_of_number(ctx: Context, base: int, exponent: Value) -> Value:
    """base ** e of integers, which wrap around; 0 for a negative e."""
    if base % 2:
        raise ctx.refused(f"of {base}, which is odd, by integers of a tensor")

    def element(e: Expr) -> Expr:
        return _within(ctx, e, _power(ctx, base, e), Const(0, _dtype(ctx)))

    return ctx.elementwise(element, ctx.staged(exponent))


@lowers("__rshift__", "__lshift__", "bitwise_right_shift", "bitwise_left_shift")
def shift(ctx: Context, x: Operand, by: Operand) -> Value:
    """x >> n as a quotient rounded down, x << n as a product."""
    name = "floordiv" if "right" in ctx.name or "rshift" in ctx.name else "mul"
    if not isinstance(by, Value):
        if not 0 <= by < SHIFTS:  # (all bits are shifted out, also by a negative number, or more than 32 bits are kept)
            return shift(ctx, x, ctx.tensor(int(by), _dtype(ctx)))
        # (of 8 bits, 2 ** 7 is no divisor: it would be -2 ** 7)
        factor = Const(1 << int(by), _dtype(ctx))
        return ctx.elementwise(lambda e: ctx.applied(name, e, factor), x)

    def element(e: Expr, n: Expr) -> Expr:
        e = _wide(ctx, e)
        beyond: Expr = Const(0, _dtype(ctx))
        if name == "floordiv":  # (by 2 ** (bits - 1), which is no positive number, too)
            beyond = Op("select", (Op("lt", (e, beyond)), Const(-1, _dtype(ctx)), beyond))
        return _within(ctx, n, Op(name, (e, _power(ctx, 2, n))), beyond, below=int(name == "floordiv"))

    return ctx.elementwise(element, ctx.staged(x) if isinstance(x, Value) else x, ctx.staged(by))


def _dtype(ctx: Context) -> str:
    return "int32" if ctx.dtype in NARROW_INTEGERS else ctx.dtype


def _bits(ctx: Context) -> int:
    return 64 if ctx.dtype == "int64" else 32


def _wide(ctx: Context, e: Expr) -> Expr:
    """An integer in the result's dtype, also where 32 bits hold what an int64 tensor has."""
    own = _dtype(ctx)
    return e if ctx.stages.type_of(e) == own else Cast(own, e)


def _power(ctx: Context, base: int, exponent: Expr) -> Expr:
    """base ** exponent, for an exponent below the number of bits."""
    bits, exponent = _bits(ctx), _wide(ctx, exponent)
    one: Expr = Const(1, _dtype(ctx))
    power = one
    for digit in range(bits.bit_length() - 1):
        factor = (base ** (1 << digit) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        given = Op("ne", (Op("bitand", (exponent, Const(1 << digit, _dtype(ctx)))), Const(0, _dtype(ctx))))
        part = Op("select", (given, Const(factor, _dtype(ctx)), one))
        power = part if power is one else Op("mul", (power, part))
    return power


def _within(ctx: Context, exponent: Expr, value: Expr, beyond: Expr, below: int = 0) -> Expr:
    """`value` for an exponent from 0 that is less than the number of bits without the last ones."""
    exponent = _wide(ctx, exponent)
    most = Const(_bits(ctx) - below, _dtype(ctx))
    inside = Op("and", (Op("ge", (exponent, Const(0, _dtype(ctx)))), Op("lt", (exponent, most))))
    return Op("select", (inside, value, beyond))


__all__ = ["SHIFTS", "power_of_number", "shift"]
