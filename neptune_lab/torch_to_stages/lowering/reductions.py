"""Sums, maxima and means along dimensions, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from neptune_lab.loop_ir.nodes import Const, Expr, Op, add, mul
from neptune_lab.operators.ties import FIRST_OF_EQUALS, LAST_NAN, NAN_AMONG_EQUALS, WITHOUT_FILLING
from neptune_lab.torch_to_stages.lowering.context import Context, dims_of, lowers
from neptune_lab.torch_to_stages.stages import Reducer
from neptune_lab.torch_to_stages.values import Index, Value


def along(value: Value, dims: tuple[int, ...], kept_index: Index, folded_index: Index) -> Index:
    """The index of `value` from those of the dimensions that stay and of those that are folded."""
    folded = dict(zip(dims, folded_index, strict=True))
    others = iter(kept_index)
    return tuple(folded[d] if d in folded else next(others) for d in range(value.ndim))


def reduced(
    ctx: Context,
    reducer: Reducer,
    value: Value,
    dims: tuple[int, ...],
    hint: str = "",
    dtype: str = "",
    marks: Collection[Expr] = (),
) -> Value:
    """`value` folded along `dims`, without these dimensions.

    Args:
        ctx: the operation.
        reducer: how elements are combined.
        value: what is folded.
        dims: from 0, sorted; none for a copy.
        hint: the stage's name.
        dtype: torch's dtype of the result; "" for that of `value`.
        marks: which of several equal extrema get the cotangent (`operators.ties`).

    Returns:
        The result; in float32 if its dtype has 16 bits.
    """
    shape = [n for d, n in enumerate(value.shape) if d not in dims]
    if not dims:
        return value
    sizes = [value.shape[d] for d in dims]
    return ctx.stages.reduce(
        reducer, shape, sizes, lambda i, r: value.at(along(value, dims, i, r)), dtype or value.dtype, hint, marks
    )


def kept(result: Value, like: Value, dims: tuple[int, ...]) -> Value:
    """A folded tensor with its folded dimensions as dimensions of size 1."""
    shape = [1 if d in dims else n for d, n in enumerate(like.shape)]
    return result.viewed(shape, lambda i: tuple(x for d, x in enumerate(i) if d not in dims))


def finished(result: Value, like: Value, dims: tuple[int, ...], keepdim: bool) -> Value:
    """A folded tensor as the operation returns it."""
    return kept(result, like, dims) if keepdim else result


@lowers("sum")
def sum_(ctx: Context, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """The sum; of conditions, their number."""
    dims = dims_of(x, dim)
    x = _widened(ctx, ctx.converted(x, ctx.dtype), x.dtype)
    return finished(reduced(ctx, "sum", x, dims, dtype=ctx.dtype), x, dims, keepdim)


def _widened(ctx: Context, x: Value, own: str) -> Value:
    """Elements of a sum or product that torch computes in 64 bits: 32 might not do for integers of the `own` dtype."""
    if ctx.dtype != "int64" or own == "bool":
        return x
    return replace(x, at=lambda i: ctx.in_64_bits(x.at(i)))


@lowers("mean")
def mean(ctx: Context, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """The sum divided by the number of elements."""
    dims = dims_of(x, dim)
    return finished(mean_of(ctx, ctx.converted(x, ctx.dtype), dims), x, dims, keepdim)


def mean_of(ctx: Context, x: Value, dims: tuple[int, ...], hint: str = "", less: float = 0) -> Value:
    """The mean along `dims`, without these dimensions, as the sum times 1 / max(count - less, 0)."""
    count = math.prod(x.shape[d] for d in dims)
    total = reduced(ctx, "sum", x, dims, hint=hint or f"{ctx.stages.hint}_sum")
    share = ctx.as_dtype(Const(1.0 / (count - less) if count > less else math.inf, "float32"), x.dtype)
    return Value(total.shape, total.dtype, lambda i: Op("mul", (total.at(i), share)))


@lowers("amax", "max.default")
def amax(ctx: Context, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    """The largest element."""
    return _extreme(ctx, x, "max", "any", dim, keepdim)


@lowers("amin", "min.default")
def amin(ctx: Context, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    """The smallest element."""
    return _extreme(ctx, x, "min", "all", dim, keepdim)


def _extreme(ctx: Context, x: Value, reducer: Reducer, of_conditions: Reducer, dim: Any, keepdim: bool) -> Value:
    """The extreme element; of `max()` and `min()`, the elements that are NaN share the gradient if there are any."""
    dims = dims_of(x, dim)
    marks = [NAN_AMONG_EQUALS] if ctx.name in ("max", "min") and "float" in x.dtype else []
    return finished(
        reduced(ctx, of_conditions if x.dtype == "bool" else reducer, x, dims, marks=marks), x, dims, keepdim
    )


@lowers("largest_of_window")
def largest_of_window(ctx: Context, x: Value) -> Value:
    """The largest element of the last dimension: its last NaN, or the first of equals, has the gradient."""
    marks = [FIRST_OF_EQUALS, LAST_NAN, WITHOUT_FILLING] if "float" in x.dtype else []
    return reduced(ctx, "max", x, (x.ndim - 1,), marks=marks)


@lowers("prod")
def prod(ctx: Context, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """The product."""
    dims = dims_of(x, dim)
    x = _widened(ctx, ctx.converted(x, ctx.dtype), x.dtype)
    return finished(reduced(ctx, "prod", x, dims), x, dims, keepdim)


@lowers("any", "all")
def any_or_all(ctx: Context, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    """Whether one element, or every element, is true or not 0."""
    dims = dims_of(x, dim)
    x = ctx.converted(x, "bool")
    found = reduced(ctx, "any" if ctx.name == "any" else "all", x, dims, dtype="bool")
    return finished(ctx.converted(found, ctx.dtype), x, dims, keepdim)


@lowers("argmax", "argmin")
def position(ctx: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The first position of the largest or the smallest element; NaN counts as that element."""
    return first_position(ctx, x, "max" if ctx.name == "argmax" else "min", dim, keepdim)[1]


@lowers("max.dim", "min.dim")
def extreme_with_position(ctx: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The largest or the smallest element, and its first position."""
    return first_position(ctx, x, "max" if ctx.name == "max" else "min", dim, keepdim)


def first_position(ctx: Context, x: Value, reducer: Reducer, dim: int | None, keepdim: bool) -> tuple[Value, Value]:
    """The extreme element, and the smallest position that holds it.

    The position is a second reduction, over positions whose element equals the result of the first.
    """
    dims = dims_of(x, dim)
    x = ctx.reused(x)
    own, marks = reducer, [FIRST_OF_EQUALS] if "float" in x.dtype else []
    if x.dtype == "bool":
        own = "any" if reducer == "max" else "all"
    extreme = reduced(ctx, own, x, dims, hint=f"{ctx.stages.hint}_{reducer}", marks=marks)
    wide = kept(extreme, x, dims).expanded(x.shape)
    count = 1
    for d in dims:
        count *= x.shape[d]

    def term(i: Index) -> Expr:
        place: Expr = Const(0)
        for d in dims:
            place = add(mul(place, x.shape[d]), i[d])
        value = x.at(i)
        found: Expr = Op("eq", (value, wide.at(i)))
        if "float" in x.dtype:
            found = Op("or", (found, Op("ne", (value, value))))
        return Op("select", (found, place, Const(count)))

    places = Value(x.shape, "int64", term)
    index = reduced(ctx, "min", places, dims, hint=f"{ctx.stages.hint}_index")
    return finished(extreme, x, dims, keepdim), finished(index, x, dims, keepdim)
