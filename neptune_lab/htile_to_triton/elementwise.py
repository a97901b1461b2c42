"""Elementwise operators in Triton: infix where Python has an operator, `tl` functions otherwise, never libdevice."""

from __future__ import annotations

import math

from neptune_lab.htile.nodes import Elementwise, Iota, Literal, Scalar, Slice, TileExpr
from neptune_lab.htile.shapes import COMPARISONS, LOGICAL, operation
from neptune_lab.htile.walk import subexpressions
from neptune_lab.htile_to_triton.context import ATOM, COMPARE, LEVELS, MUL, NEGATE, Context
from neptune_lab.htile_to_triton.expression_text import ExpressionText, cast, full, literal_expression, with_dtype
from neptune_lab.scalar_ops import OPERATIONS, Formula, compose
from neptune_lab.strict.dtypes import FLOATS
from neptune_lab.wrapping import Doc, call, seq

# Operations that Triton computes in float16, without promotion and with one rounding.
_NATIVE_HALF = ("number", "comparison", "choice")


def elementwise(ctx: Context, expr: Elementwise, operands: list[ExpressionText]) -> ExpressionText:
    """One elementwise operator on its emitted operands; the result has exactly the stated dtype."""
    if expr.op == "again":  # of the bits as they are
        function = ctx.function(operation(expr.op))
        return ExpressionText(call(ctx.helper(function), operands[0].doc)) if function else operands[0]
    operand_dtype = ctx.dtype(expr.args[-1])
    through_float32 = operand_dtype == "bfloat16" or (
        operand_dtype == "float16" and operation(expr.op).kind not in _NATIVE_HALF
    )
    if not through_float32:
        return _apply(ctx, expr, operands, operand_dtype)
    widened = [p if ctx.dtype(arg) == "bool" else _widen(p) for p, arg in zip(operands, expr.args, strict=True)]
    result = _apply(ctx, expr, widened, "float32")
    return cast(result, expr.dtype) if expr.dtype in FLOATS else result


def _widen(emitted: ExpressionText) -> ExpressionText:
    return emitted if emitted.literal is not None else cast(emitted, "float32")


def _apply(ctx: Context, expr: Elementwise, operands: list[ExpressionText], dtype: str) -> ExpressionText:
    """The text of an operation on operands that are emitted already.

    Args:
        dtype: that the operands are computed in.
    """
    op = expr.op
    if op in ("floordiv", "floormod"):
        return _floored(op, expr, operands, ctx)
    if op == "pow":
        return _power(ctx, operands, expr.args[1], dtype)
    if op in LOGICAL:
        return _infix(op, [_condition(ctx, arg, expr, p) for arg, p in zip(expr.args, operands, strict=True)], dtype)
    if op == "neg":
        return ExpressionText(seq("-", operands[0].at(NEGATE + 1)), NEGATE, operands[0].python)
    if op == "not":
        return ExpressionText(seq(operands[0].at(COMPARE + 1), " == 0"), COMPARE)
    row = operation(op)
    function = ctx.function(row)
    if not function:
        assert row.formula is not None, f"the table says nothing of {op} in emitted modules"
        return _by_formula(ctx, row.formula, expr, operands, dtype)
    if not function.isidentifier() and not function.startswith("tl."):
        return _infix(op, operands, dtype)
    if op == "tanh" and dtype == "float32" and ctx.options.tanh == "hardware":
        function = "_hardware_tanh"
    if op == "where" and expr.dtype == "bool":
        values = zip(expr.args[1:], operands[1:], strict=True)
        operands = [operands[0], *(_condition(ctx, arg, expr, emitted) for arg, emitted in values)]
    if op in ("max", "min") and dtype in FLOATS:
        function = f"_{op}imum"  # NaN if an operand is, as in PyTorch and NumPy
    if function.startswith("_"):
        ctx.helper(function)
    args = [with_dtype(emitted, dtype) for emitted in operands]
    if all(emitted.literal is not None for emitted in operands):
        literal = operands[0].literal
        assert literal is not None
        args[0] = full((), literal.value, dtype)
    if op == "where":
        args[0] = operands[0].doc
    return ExpressionText(call(function, *args))


def _by_formula(
    ctx: Context, formula: Formula, expr: Elementwise, operands: list[ExpressionText], dtype: str
) -> ExpressionText:
    """An operation without a name in Triton, by its formula; an operand's text is repeated as often as it occurs."""

    def apply(name: str, args: list[tuple[TileExpr, ExpressionText]]) -> tuple[TileExpr, ExpressionText]:
        row = OPERATIONS[name]
        result = "bool" if row.kind in ("comparison", "logic") else dtype
        made = Elementwise(row.htile or name, tuple(arg for arg, _ in args), result)
        return made, _apply(ctx, made, [emitted for _, emitted in args], dtype)

    def constant(value: float) -> tuple[TileExpr, ExpressionText]:
        return Literal(float(value), dtype), literal_expression(float(value), dtype)

    return compose(formula, list(zip(expr.args, operands, strict=True)), apply, constant)[1]


def _condition(ctx: Context, arg: TileExpr, whole: Elementwise, emitted: ExpressionText) -> ExpressionText:
    """An operand of & or |, or a value of where.  Triton's interpreter broadcasts a comparison of two scalar floats or
    integers of 64 bits to a tile of their dtype, on which & and | fail, so it is converted to int32 first."""
    if emitted.python or ctx.shape(arg) or not ctx.shape(whole) or not _compares_wide(ctx, arg):
        return emitted
    return ExpressionText(seq(cast(emitted, "int32").doc, " != 0"), COMPARE)


def _compares_wide(ctx: Context, expr: TileExpr) -> bool:
    comparisons = (e for e in subexpressions(expr) if isinstance(e, Elementwise) and e.op in COMPARISONS)
    return any(ctx.dtype(arg) in (*FLOATS, "int64") for e in comparisons for arg in e.args)


def _infix(op: str, operands: list[ExpressionText], dtype: str) -> ExpressionText:
    symbol = operation(op).triton
    level = LEVELS.get(symbol, COMPARE)
    left, right = operands
    if left.literal is not None and right.literal is not None and op not in LOGICAL:
        left = ExpressionText(full((), left.literal.value, dtype))
    if operation(op).kind == "bits" and left.literal is not None:
        left = ExpressionText(with_dtype(left, dtype))  # a bare number has 32 bits, whatever it is shifted by
    if op in COMPARISONS and dtype == "float64":  # Triton rounds a bare number to float32 beside a comparison
        left, right = (ExpressionText(with_dtype(x, dtype)) if x.literal is not None else x for x in (left, right))
    # Comparisons do not chain, and only the left operand of an operator may have the same precedence.
    a = left.at(level + 1 if level == COMPARE else level)
    b = right.at(level + 1)
    return ExpressionText(seq(a, f" {symbol} ", b), level, left.python and right.python)


def _floored(op: str, expr: Elementwise, operands: list[ExpressionText], ctx: Context) -> ExpressionText:
    """Division that floors; Triton's truncates, so the result is corrected where the remainder has the other sign."""
    a, b = operands
    x, y = a.at(MUL), b.at(MUL + 1)
    if _is_non_negative(ctx, expr.args[0]) and _is_non_negative(ctx, expr.args[1]):
        return ExpressionText(seq(x, " // " if op == "floordiv" else " % ", y), MUL, a.python and b.python)
    left = seq(x, " % ", y)
    cut = left if op == "floormod" else seq(x, " // ", y)
    # (no sum of both and no difference of x and the remainder: these may leave the dtype)
    moved = seq(cut, " + ", y) if op == "floormod" else seq(cut, " - 1")
    match expr.args[1]:
        case Literal(value=int() as divisor):
            return ExpressionText(call("tl.where", seq(left, " < 0" if divisor > 0 else " > 0"), moved, cut))
    moved = call("tl.where", seq("(", left, " ^ ", y, ") < 0"), moved, cut)
    return ExpressionText(call("tl.where", seq(left, " != 0"), moved, cut))


def _is_non_negative(ctx: Context, expr: TileExpr) -> bool:
    match expr:
        case Literal(value=value):
            return value >= 0
        case Scalar(value=value):
            return ctx.interval(value).lo >= 0
        case Iota(index=index):
            return all(ctx.interval(part.start).lo >= 0 for part in index if isinstance(part, Slice))
        case Elementwise(op="add" | "mul" | "floordiv" | "floormod" | "min" | "max" | "bitor" | "bitxor", args=args):
            return all(_is_non_negative(ctx, arg) for arg in args)
        case Elementwise(op="bitand", args=args):
            return any(_is_non_negative(ctx, arg) for arg in args)
        case Elementwise(op="shr", args=(shifted, _)):
            return _is_non_negative(ctx, shifted)
        case _:
            return False


def _power(ctx: Context, operands: list[ExpressionText], exponent: TileExpr, dtype: str) -> ExpressionText:
    """x ** y with the signs and NaN of C's pow: products for whole numbers, `_power` (helpers.py) otherwise."""
    base = operands[0] if operands[0].literal is None else ExpressionText(full((), operands[0].literal.value, dtype))
    if isinstance(exponent, Literal) and math.isfinite(exponent.value):
        value = float(exponent.value)
        if value == 0:
            return ExpressionText(
                call("tl.where", seq(base.at(COMPARE + 1), " == ", base.at(COMPARE + 1)), "1.0", "1.0")
            )
        if abs(value) == 0.5:
            root = ExpressionText(call("tl.sqrt", base.doc))
            return root if value > 0 else ExpressionText(seq("1.0 / ", root.doc), MUL)
        if value.is_integer() and abs(value) <= _MULTIPLIED:
            product = _whole_power(ctx, base, int(abs(value)))
            return product if value > 0 else ExpressionText(seq("1.0 / ", product.at(ATOM)), MUL)
    power = full((), operands[1].literal.value, dtype) if operands[1].literal is not None else operands[1].doc
    return ExpressionText(call(ctx.helper("_power"), base.doc, power))


# Powers up to here are products: as exact as multiplications are, for any sign.
_MULTIPLIED = 64


def _whole_power(ctx: Context, base: ExpressionText, exponent: int) -> ExpressionText:
    """x ** n for n > 0: x * x * x * x up to 4, then a product of squares of squares."""
    if exponent <= 4:
        factors = [base] * exponent
    else:
        factors, square = [], base
        while exponent:
            factors += [square] if exponent % 2 else []
            exponent //= 2
            square = ExpressionText(call(ctx.helper("_square"), square.doc))
    product: list[Doc] = [factors[0].at(MUL)]
    for factor in factors[1:]:
        product += [" * ", factor.at(MUL + 1)]
    return ExpressionText(seq(*product), MUL) if len(factors) > 1 else factors[0]
