"""Comparisons, logic, and the bits of integers."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.lowering.operands import Operand, promoted
from neptune_lab.torch_to_stages.lowering.whole_powers import SHIFTS
from neptune_lab.torch_to_stages.values import HALVES, Value, constant, negated, rounded_number

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _comparison(name: str, ctx: Context, a: Operand, b: Operand) -> Value:
    """A comparison of two elements."""
    return compare(ctx, name, a, b)


def compare(ctx: Context, name: str, a: Operand, b: Operand) -> Value:
    """A comparison, in the dtype that torch promotes both operands to."""
    dtype = promoted(a, b)

    def element(x: Expr, y: Expr) -> Expr:
        if dtype == "bool":
            return Op(name, (ctx.as_dtype(x, "int32"), ctx.as_dtype(y, "int32")))
        short, other = _from_int32(ctx, x), _from_int32(ctx, y)
        if dtype == "int64" and short is not None and other is not None:
            return Op(name, (short, other))
        return ctx.applied(name, x, y)

    return ctx.elementwise(element, *(_rounded_to(ctx, v, dtype) for v in (a, b)), within=dtype, dtype="bool")


def _rounded_to(ctx: Context, operand: Operand, dtype: str) -> Operand:
    """What PyTorch compares in 16 bits and another dtype had before, rounded to them: 0.1 in float16 is not 0.1."""
    if dtype not in HALVES or (isinstance(operand, Value) and operand.dtype == dtype):
        return operand
    if isinstance(operand, Value):
        return replace(operand, dtype=dtype, at=lambda i: ctx.rounded(ctx.as_dtype(operand.at(i), dtype), dtype))
    return rounded_number(operand, dtype)


def _from_int32(ctx: Context, expr: Expr) -> Expr | None:
    """An integer in 32 bits if it has them, or is converted from them; else None."""
    match expr:
        case Cast("int64", arg) if ctx.stages.type_of(arg) == "int32":
            return arg
        case Const(value, "int64") if -(2**31) <= value < 2**31:
            return Const(value)
    return expr if ctx.stages.type_of(expr) == "int32" else None


@lowers(
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
    *("__and__", "__or__", "__xor__"),
)
def logic(ctx: Context, a: Operand, b: Operand) -> Value:
    """Both, one of two, or exactly one of two conditions; of integers, of each bit."""
    kind = ctx.name.strip("_").rpartition("_")[2]
    if ctx.dtype != "bool":
        return _bits(ctx, kind, a, b)
    if kind == "xor":

        def element(x: Expr, y: Expr) -> Expr:
            return Op("ne", (ctx.as_dtype(x, "int32"), ctx.as_dtype(y, "int32")))
    else:

        def element(x: Expr, y: Expr) -> Expr:
            return Op(kind, (x, y))

    return ctx.elementwise(element, *(_condition(ctx, v) for v in (a, b)))


def _bits(ctx: Context, kind: str, a: Operand, b: Operand) -> Value:
    """Bits of integers; a & (2**n - 1) as the remainder of a division by 2**n, if the dtype has that: it has bounds."""
    a, b = (b, a) if isinstance(b, Value) else (a, b)
    largest = min(2**SHIFTS, torch.iinfo(getattr(torch, ctx.dtype)).max)
    if kind == "and" and not isinstance(b, Value) and 0 < b < largest and not int(b) & (int(b) + 1):
        return ctx.elementwise(lambda x, y: ctx.applied("floormod", x, y), a, int(b) + 1)
    return ctx.elementwise(lambda x, y: ctx.applied(f"bit{kind}", x, y), a, b)


def _condition(ctx: Context, v: Operand) -> Operand:
    return ctx.converted(v, "bool") if isinstance(v, Value) else bool(v)


@lowers("logical_not", "bitwise_not")
def invert(ctx: Context, x: Value) -> Value:
    """The negation of a condition, or of each bit of an integer, which is -1 - x."""
    if ctx.dtype != "bool":
        return ctx.elementwise(lambda e: ctx.applied("sub", Const(-1, ctx.stages.type_of(e)), e), x)
    return ctx.elementwise(negated, x)


@lowers("isnan")
def isnan(ctx: Context, x: Value) -> Value:
    """Whether an element is NaN."""
    if "float" not in x.dtype:
        return constant(False, "bool", ctx.shape)
    return ctx.elementwise(lambda e: Op("ne", (e, e)), ctx.reused(x), within=x.dtype)


@lowers("isinf", "isfinite")
def isinf(ctx: Context, x: Value) -> Value:
    """Whether an element is an infinity, or is neither that nor NaN."""
    name = "eq" if ctx.name == "isinf" else "lt"
    if "float" not in x.dtype:
        return constant(name == "lt", "bool", ctx.shape)

    def element(e: Expr) -> Expr:
        return Op(name, (Op("abs", (e,)), Const(math.inf, ctx.stages.type_of(e))))

    return ctx.elementwise(element, x, within=x.dtype)


for _name in _COMPARISONS:
    lowers(_name)(partial(_comparison, _name))
