"""Running sums, products, logarithms of sums and extrema, each as a fold of all elements up to a position.

So a row of n elements takes n * n / 2 steps, and a result is the same in each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.loop_ir.reduction import identity
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.stages import Reducer
from neptune_lab.torch_to_stages.values import Index, Value


def _running(
    ctx: Context, reducer: Reducer, x: Value, dim: int, term: Callable[[Index, Index], Expr], hint: str
) -> Value:
    """The fold of `term` over the elements up to each position, from the index of the result and of the element."""
    own = ctx.stages.type_of(term(*(tuple(Const(0) for _ in x.shape) for _ in range(2))))
    beside = identity(reducer, own)

    def folded(i: Index, r: Index) -> Expr:
        seen = Op("le", (r[0], i[dim]))
        return Op("select", (seen, term(i, (*i[:dim], r[0], *i[dim + 1 :])), beside))

    return ctx.stages.reduce(reducer, x.shape, [x.shape[dim]], folded, x.dtype, f"{ctx.stages.hint}{hint}")


@lowers("cumsum", "cumprod")
def running(ctx: Context, x: Value, dim: int, *, dtype: Any = None) -> Value:
    """The sum, or the product, of the elements up to each one."""
    if x.ndim == 0:
        return ctx.converted(x, ctx.dtype)
    own = ctx.converted(x, ctx.dtype)
    if ctx.dtype == "int64" and x.dtype != "bool":
        own = replace(own, at=lambda i, at=own.at: ctx.in_64_bits(at(i)))
    own = ctx.reused(own)
    return _running(ctx, "sum" if ctx.name == "cumsum" else "prod", own, dim % x.ndim, lambda i, e: own.at(e), "")


@lowers("logcumsumexp")
def running_logarithm(ctx: Context, x: Value, dim: int) -> Value:
    """The logarithm of the sum of the exponentials of the elements up to each one, relative to their maximum."""
    if x.ndim == 0:
        return x
    x, dim = ctx.staged(ctx.floats(x)), dim % x.ndim
    own = ctx.stages.type_of(x.at(tuple(Const(0) for _ in x.shape)))
    largest = _running(ctx, "max", x, dim, lambda i, e: x.at(e), "_max")
    zero = Const(0.0, own)

    def finite(i: Index) -> Expr:
        endless = Op("eq", (Op("abs", (largest.at(i),)), Const(math.inf, own)))
        return Op("select", (endless, zero, largest.at(i)))

    shift = ctx.staged(replace(largest, at=finite, plain=False))
    total = _running(ctx, "sum", x, dim, lambda i, e: Op("exp", (Op("sub", (x.at(e), shift.at(i))),)), "_sum")
    return replace(total, at=lambda i: Op("add", (shift.at(i), Op("log", (total.at(i),)))), plain=False)


@lowers("cummax", "cummin")
def running_extreme(ctx: Context, x: Value, dim: int) -> tuple[Value, Value]:
    """The extreme of the elements up to each one, and the last position that holds it; NaN counts as the extreme."""
    if x.ndim == 0:
        raise ctx.refused("of a tensor without dimensions")
    if x.dtype == "bool":
        value, index = running_extreme(replace(ctx, dtypes=("int32", *ctx.dtypes[1:])), ctx.converted(x, "int32"), dim)
        return ctx.converted(value, "bool"), index
    x, dim = ctx.reused(x), dim % x.ndim
    extreme = _running(ctx, "max" if ctx.name == "cummax" else "min", x, dim, lambda i, e: x.at(e), "")

    def place(i: Index, e: Index) -> Expr:
        value = x.at(e)
        found: Expr = Op("eq", (value, extreme.at(i)))
        if "float" in x.dtype:
            found = Op("or", (found, Op("ne", (value, value))))
        return Op("select", (found, e[dim], Const(-1)))

    index = _running(ctx, "max", replace(x, dtype="int64"), dim, place, "_index")
    # (read at the position, which has all of the gradient, as in PyTorch)
    return x.viewed(x.shape, lambda i: (*i[:dim], ctx.position(index.at(i)), *i[dim + 1 :])), index
