"""Functions of one element each: arithmetic, choices and conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op
from neptune_lab.operators.ties import HALVES_TIES
from neptune_lab.torch_to_stages.lowering.activations import FORMULAS, Term, by_formula, formula
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.lowering.operands import Number, Operand
from neptune_lab.torch_to_stages.lowering.whole_powers import power_of_number
from neptune_lab.torch_to_stages.masks import chosen
from neptune_lab.torch_to_stages.values import HALVES, NARROW_INTEGERS, Value, negated, wrapped


@lowers("neg", "abs")
def sign_changes(ctx: Context, x: Value) -> Value:
    """-x or |x|, of floats and integers."""
    name = ctx.name
    return ctx.elementwise(lambda e: Op(name, (e,)), x)


@lowers("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "rsub.Tensor")
def add_or_subtract(ctx: Context, a: Operand, b: Operand, alpha: Number = 1) -> Value:
    """a + alpha * b, a - alpha * b, or b - alpha * a."""
    if ctx.name == "rsub":
        a, b = b, a
    if ctx.dtype == "bool":
        return ctx.elementwise(lambda x, y: Op("or", (x, y)), a, b)
    name = "add" if ctx.name == "add" else "sub"
    if name == "sub" and any(isinstance(v, Value) and v.dtype == "bool" for v in (a, b)):
        raise ctx.refused("for conditions, as in PyTorch: convert them before, with .int()")

    def element(x: Expr, y: Expr) -> Expr:
        if alpha != 1:
            y = ctx.applied("mul", y, ctx.tensor(alpha, ctx.dtype).at(()))
        return with_mask(ctx, name, x, y)

    return ctx.elementwise(element, a, b)


def with_mask(ctx: Context, name: str, x: Expr, y: Expr) -> Expr:
    """x + y or x - y, where adding a mask of 0 and -inf becomes a choice, so that loops can skip what it hides."""
    if name == "add":
        for value, mask in ((x, y), (y, x)):
            match mask:
                case Op("select", (c, Const(0.0), Const(low))) if low == -math.inf:
                    return chosen(c, value, Const(low, ctx.stages.type_of(value)))
                case Op("select", (c, Const(low), Const(0.0))) if low == -math.inf:
                    return chosen(negated(c), value, Const(low, ctx.stages.type_of(value)))
    match y:
        case Const(value) if value == 0 and isinstance(value, int):
            return x
    return ctx.applied(name, x, y)


@lowers("mul")
def multiply(ctx: Context, a: Operand, b: Operand) -> Value:
    """a * b; of conditions, both."""
    if ctx.dtype == "bool":
        return ctx.elementwise(lambda x, y: Op("and", (x, y)), a, b)
    return ctx.elementwise(lambda x, y: ctx.applied("mul", x, y), a, b)


@lowers("div")
def divide(ctx: Context, a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Value:
    """a / b, perhaps rounded down or towards 0."""
    if rounding_mode == "floor":
        return floor_divide(ctx, a, b)
    if "int" in ctx.dtype:
        return _quotient(ctx, a, b)
    value = ctx.elementwise(lambda x, y: Op("div", (x, y)), a, b)
    if rounding_mode is None:
        return value
    _checked_step(ctx, b)
    value = ctx.reused(value)
    return Value(value.shape, value.dtype, lambda i: formula(ctx, FORMULAS["trunc"], value.at(i)))


def _quotient(ctx: Context, a: Operand, b: Operand) -> Value:
    """The quotient of integers, rounded towards 0: one more than rounded down, if it is negative and not exact."""

    def element(x: Expr, y: Expr) -> Expr:
        quotient, left = ctx.applied("floordiv", x, y), ctx.applied("floormod", x, y)
        below = Op("lt", (quotient, Const(0, ctx.stages.type_of(quotient))))
        inexact = Op("and", (below, Op("ne", (left, Const(0, ctx.stages.type_of(left))))))
        return ctx.applied("add", quotient, Op("select", (inexact, Const(1), Const(0))))

    return ctx.elementwise(element, a, _divisor(ctx, b))


@lowers("floor_divide")
def floor_divide(ctx: Context, a: Operand, b: Operand) -> Value:
    """The quotient rounded down; of an infinite number it is NaN, as in torch."""
    if "int" in ctx.dtype:
        return ctx.elementwise(lambda x, y: ctx.applied("floordiv", x, y), a, _divisor(ctx, b))
    _checked_step(ctx, b)

    def element(x: Expr, y: Expr) -> Expr:
        infinite, nothing = (Const(v, ctx.stages.type_of(x)) for v in (math.inf, math.nan))
        endless = Op("eq", (Op("abs", (x,)), infinite))
        return Op("select", (endless, nothing, Op("floor", (Op("div", (x, y)),))))

    return ctx.elementwise(element, ctx.reused(a) if isinstance(a, Value) else a, b)


@lowers("remainder")
def remainder(ctx: Context, a: Operand, b: Operand) -> Value:
    """What is left of a after a whole number of b, with the sign of b."""
    if "int" in ctx.dtype:
        return ctx.elementwise(lambda x, y: ctx.applied("floormod", x, y), a, _divisor(ctx, b))
    _checked_step(ctx, b)

    def element(x: Expr, y: Expr) -> Expr:
        return Op("sub", (x, Op("mul", (y, Op("floor", (Op("div", (x, y)),))))))

    return ctx.elementwise(element, *(ctx.reused(v) if isinstance(v, Value) else v for v in (a, b)))


@lowers("fmod")
def fmod(ctx: Context, a: Operand, b: Operand) -> Value:
    """What is left of a after a whole number of b, with the sign of a."""
    if "int" in ctx.dtype:
        divisor = _divisor(ctx, b)

        def whole(x: Expr, y: Expr) -> Expr:
            left = ctx.applied("floormod", x, y)
            sign = x if not isinstance(divisor, Value) and divisor > 0 else ctx.applied("bitxor", x, y)
            negative = Op("lt", (sign, Const(0, ctx.stages.type_of(sign))))
            other_sign = Op("and", (negative, Op("ne", (left, Const(0, ctx.stages.type_of(left))))))
            return Op("select", (other_sign, ctx.applied("sub", left, y), left))

        return ctx.elementwise(whole, a, divisor)
    _checked_step(ctx, b)

    def element(x: Expr, y: Expr) -> Expr:
        return Op("sub", (x, Op("mul", (y, formula(ctx, FORMULAS["trunc"], Op("div", (x, y)))))))

    return ctx.elementwise(element, *(ctx.reused(v) if isinstance(v, Value) else v for v in (a, b)))


def _checked_step(ctx: Context, b: Operand) -> None:
    """Refuse a rounded quotient of floats whose division is not exact.

    PyTorch's quotient is that of real numbers (1.0 // 0.1 is 9, since 0.1 is a little over a tenth), while floor(x / y)
    rounds x / y first, here up to 10; a remainder would be wrong by a whole divisor.  A division by a power of two does
    not round.
    """
    if isinstance(b, Value) or not math.isfinite(b) or abs(math.frexp(b)[0]) != 0.5:
        raise ctx.refused("for floats by something else than a constant power of two, whose quotient is exact")


def _divisor(ctx: Context, b: Operand) -> Operand:
    """A divisor of integers.  Where a tensor holds 0, any number comes out, as on PyTorch's GPUs."""
    if isinstance(b, Value):
        return b
    if ctx.dtype in NARROW_INTEGERS:
        b = wrapped(int(b), ctx.dtype)
    if b == 0:
        raise ctx.refused("for integers by 0")
    return b


@lowers("maximum", "minimum", "max.other", "min.other")
def extreme(ctx: Context, a: Value, b: Value) -> Value:
    """The larger or the smaller of two elements."""
    name = ctx.name[:3]
    if ctx.dtype == "bool":
        return ctx.elementwise(lambda x, y: Op("or" if name == "max" else "and", (x, y)), a, b)
    return ctx.elementwise(lambda x, y: ctx.stages.with_tie(ctx.applied(name, x, y), HALVES_TIES), a, b)


@lowers("clamp", "clamp_min", "clamp_max", "hardtanh", "clip")
def clamp(ctx: Context, x: Value, *limits: Operand | None, **named: Operand | None) -> Value:
    """x within limits."""
    given = [*limits, None, None][:2]
    low, high = named.get("min", given[0]), named.get("max", given[1])
    if ctx.name == "hardtanh":
        low, high = named.get("min_val", given[0]), named.get("max_val", given[1])
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    if ctx.name == "clamp_max":
        low, high = None, given[0] if given[0] is not None else named.get("max")
    part = 0.0 if ctx.name == "hardtanh" else 1.0  # PyTorch's derivative at the limits

    def limited(name: str) -> Callable[[Expr, Expr], Expr]:
        return lambda e, y: ctx.stages.with_tie(ctx.applied(name, e, y), part)

    value = ctx.elementwise(lambda e: e, x)
    if low is not None:
        value = ctx.elementwise(limited("max"), value, ctx.element(low))
    if high is not None:
        value = ctx.elementwise(limited("min"), value, ctx.element(high))
    return value


# Whole powers of integers are products of so many factors.
_LARGEST_EXPONENT = 16


def _product(exponent: int) -> Term:
    """x to a whole power from 1, by squares."""
    half: Term = "x" if exponent < 4 else _product(exponent // 2)
    square: Term = "x" if exponent == 1 else ("mul", half, half)
    return ("mul", square, "x") if exponent % 2 and exponent > 1 else square


@lowers("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(ctx: Context, base: Operand, exponent: Operand) -> Value:
    """base ** exponent; small whole exponents by products, without rounding through a logarithm."""
    if isinstance(exponent, Value) or not isinstance(base, Value):
        if "int" in ctx.dtype and isinstance(exponent, Value) and not isinstance(base, Value):
            return power_of_number(ctx, int(base), exponent)
        if "int" in ctx.dtype:
            raise ctx.refused("for integers by a tensor, unless the base is a number")
        return ctx.elementwise(lambda x, y: Op("pow", (x, y)), base, exponent)
    simple: dict[float, Term] = {
        -2: ("mul", ("div", 1.0, "x"), ("div", 1.0, "x")),  # (the derivative of 1 / (x * x) is NaN at 0)
        -1: ("div", 1.0, "x"),
        -0.5: ("rsqrt", "x"),
        0.5: ("sqrt", "x"),
        1: "x",
        2: ("mul", "x", "x"),
        3: ("mul", ("mul", "x", "x"), "x"),
        4: ("mul", ("mul", "x", "x"), ("mul", "x", "x")),
    }
    if "int" in ctx.dtype:
        if exponent not in range(1, _LARGEST_EXPONENT + 1):
            raise ctx.refused(f"for integers with the exponent {exponent}")
        return by_formula(ctx, base, simple.get(exponent) or _product(int(exponent)))
    if exponent in simple:
        return by_formula(ctx, base, simple[exponent])
    return ctx.elementwise(lambda x, y: Op("pow", (x, y)), base, exponent)


@lowers("where.self", "where.Scalar", "where.ScalarSelf", "where.ScalarOther")
def where(ctx: Context, condition: Value, a: Operand, b: Operand) -> Value:
    """a where the condition holds, else b."""
    own = ctx.dtype
    test = ctx.converted(condition, "bool").expanded(ctx.shape)
    yes, no = (ctx.converted(ctx.element(v), own).expanded(ctx.shape) for v in (a, b))
    return Value(ctx.shape, own, lambda i: chosen(test.at(i), yes.at(i), no.at(i)))


@lowers("masked_fill")
def masked_fill(ctx: Context, x: Value, mask: Value, value: Operand) -> Value:
    """`value` where the mask holds, else x."""
    return where(ctx, mask, value, x)


@lowers("lerp")
def lerp(ctx: Context, a: Value, b: Value, weight: Operand) -> Value:
    """a + weight * (b - a) for a weight nearer to 0 than to 1, else b - (1 - weight) * (b - a): as torch's kernels; the
    two formulas differ at infinities."""
    a, b = ctx.reused(a), ctx.reused(b)

    def near_a(x: Expr, y: Expr, w: Expr) -> Expr:
        return Op("add", (x, Op("mul", (w, Op("sub", (y, x))))))

    def near_b(x: Expr, y: Expr, w: Expr) -> Expr:
        rest = Op("sub", (Const(1.0, ctx.stages.type_of(w)), w))
        return Op("sub", (y, Op("mul", (rest, Op("sub", (y, x))))))

    def nearer(x: Expr, y: Expr, w: Expr) -> Expr:
        near = Op("lt", (Op("abs", (w,)), Const(0.5, ctx.stages.type_of(w))))
        return Op("select", (near, near_a(x, y, w), near_b(x, y, w)))

    if isinstance(weight, Value):
        return ctx.elementwise(nearer, a, b, ctx.reused(weight))
    return ctx.elementwise(near_a if abs(weight) < 0.5 else near_b, a, b, weight)


@lowers("addcmul", "addcdiv")
def addc(ctx: Context, x: Value, a: Value, b: Value, *, value: Number = 1) -> Value:
    """x + value * a * b, or x + value * a / b."""
    name = "mul" if ctx.name == "addcmul" else "div"

    def element(e: Expr, y: Expr, z: Expr) -> Expr:
        term = Op(name, (y, z))
        if value != 1:
            term = Op("mul", (term, ctx.tensor(value, ctx.dtype).at(())))
        return Op("add", (e, term))

    return ctx.elementwise(element, x, a, b)


@lowers("_to_copy", "type_as", "convert_element_type")
def convert(ctx: Context, x: Value, *_: Any, **__: Any) -> Value:
    """The elements in another dtype; a conversion to 16 bits or to a narrower integer that the user wrote rounds."""
    own, dtype = x.dtype, ctx.dtype
    if own == dtype:
        return x
    if dtype in HALVES and own != "bool":

        def element(e: Expr) -> Expr:
            return ctx.rounded(ctx.as_dtype(e, dtype), dtype)
    elif dtype in NARROW_INTEGERS:
        return ctx.converted(x, dtype)
    elif dtype == "int64" and own != "bool":

        def element(e: Expr) -> Expr:
            return ctx.in_64_bits(e)  # 32 bits may not hold what comes of it
    elif own == "float64" and dtype == "float32":

        def element(e: Expr) -> Expr:
            return Cast("float32", e)
    else:

        def element(e: Expr) -> Expr:
            return ctx.as_dtype(e, dtype)

    return Value(x.shape, dtype, lambda i: element(x.at(i)), x.plain)
