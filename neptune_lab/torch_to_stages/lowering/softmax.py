"""Softmax and its relatives, taken apart into a maximum, exponentials and a sum."""

from __future__ import annotations

import math
from typing import Any

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.torch_to_stages.lowering.context import Context, dims_of, lowers
from neptune_lab.torch_to_stages.lowering.reductions import kept, reduced
from neptune_lab.torch_to_stages.values import Value


@lowers("softmax.int", "_softmax", "_safe_softmax", "special_softmax")
def softmax(ctx: Context, x: Value, dim: int, dtype: Any = None) -> Value:
    """exp(x - max x) / sum exp(x - max x); the safe form gives 0 in a row of -inf."""
    x = ctx.floats(x)
    exponentials, largest, total = parts(ctx, x, dim)
    dims = dims_of(x, dim)
    if not ctx.name.startswith("_safe"):
        return ctx.elementwise(lambda e, s: Op("div", (e, s)), exponentials, kept(total, x, dims))
    lowest, zero = (ctx.as_dtype(Const(v, "float32"), ctx.dtype) for v in (-math.inf, 0.0))

    def safe(e: Expr, s: Expr, m: Expr) -> Expr:
        return Op("select", (Op("eq", (m, lowest)), zero, Op("div", (e, s))))

    return ctx.elementwise(safe, exponentials, kept(total, x, dims), kept(largest, x, dims))


@lowers("log_softmax.int", "_log_softmax", "special_log_softmax")
def log_softmax(ctx: Context, x: Value, dim: int, dtype: Any = None) -> Value:
    """x - max x - log(sum exp(x - max x))."""
    x = ctx.staged(ctx.floats(x))
    _, largest, total = parts(ctx, x, dim)
    dims = dims_of(x, dim)

    def element(value: Expr, m: Expr, s: Expr) -> Expr:
        return Op("sub", (Op("sub", (value, m)), Op("log", (s,))))

    return ctx.elementwise(element, x, kept(largest, x, dims), kept(total, x, dims))


@lowers("logsumexp", "special_logsumexp")
def logsumexp(ctx: Context, x: Value, dim: Any, keepdim: bool = False) -> Value:
    """max x + log(sum exp(x - max x)); an infinite maximum itself, as in torch, though the sum is NaN."""
    x = ctx.floats(x)
    _, largest, total = parts(ctx, x, dim)
    dims = dims_of(x, dim)
    m, s = (kept(v, x, dims) if keepdim else v for v in (largest, total))
    infinite = ctx.as_dtype(Const(math.inf, "float32"), ctx.dtype)

    def element(a: Expr, b: Expr) -> Expr:
        return Op("select", (Op("eq", (Op("abs", (a,)), infinite)), a, Op("add", (a, Op("log", (b,))))))

    return ctx.elementwise(element, m, s)


def parts(ctx: Context, x: Value, dim: Any) -> tuple[Value, Value, Value]:
    """The exponentials relative to the maximum, the maximum and the sum of the exponentials.

    Args:
        ctx: the operation.
        x: any tensor of floats.
        dim: the dimensions to fold along.

    Returns:
        The exponentials in x's shape; the others without the folded dimensions.
    """
    name = ctx.stages.hint
    x = ctx.staged(x)
    dims = dims_of(x, dim)
    largest = reduced(ctx, "max", x, dims, hint=f"{name}_max")
    spread = kept(largest, x, dims).expanded(x.shape)
    powers = Value(x.shape, x.dtype, lambda i: Op("exp", (Op("sub", (x.at(i), spread.at(i))),)))
    exponentials = ctx.stages.map(powers, f"{name}_exp")
    return exponentials, largest, reduced(ctx, "sum", exponentials, dims, hint=f"{name}_sum")
