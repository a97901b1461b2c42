"""Normalisations and variances, taken apart into their sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neptune_lab.loop_ir.nodes import Const, Expr, Op, add, mul
from neptune_lab.operators.ties import NAN_AMONG_EQUALS
from neptune_lab.torch_to_stages.lowering.context import Context, dims_of, lowers
from neptune_lab.torch_to_stages.lowering.reductions import finished, kept, mean_of, reduced
from neptune_lab.torch_to_stages.values import Index, Value


def variance(ctx: Context, x: Value, dims: tuple[int, ...], less: float = 0) -> tuple[Value, Value]:
    """The mean and the sum of squared deviations divided by (count - less), without the dimensions `dims`."""
    name = ctx.stages.hint
    x = ctx.reused(x)
    mean = mean_of(ctx, x, dims, hint=f"{name}_sum")
    mean = ctx.stages.map(mean, f"{name}_mean")
    middle = kept(mean, x, dims).expanded(x.shape)

    def square(i: tuple[Expr, ...]) -> Expr:
        deviation = Op("sub", (x.at(i), middle.at(i)))
        return Op("mul", (deviation, deviation))

    spread = mean_of(ctx, Value(x.shape, x.dtype, square), dims, hint=f"{name}_squares", less=less)
    return mean, spread


@lowers("var", "std", "var_mean", "std_mean")
def var(ctx: Context, x: Value, dim: Any = None, *unbiased: Any, correction: Any = None, keepdim: bool = False) -> Any:
    """The variance along dimensions, or its root; perhaps with the mean."""
    flags = list(unbiased)
    if isinstance(dim, bool):
        flags, dim = [dim, *flags], None
    if len(flags) > 1:
        keepdim = bool(flags[1])
    less = correction if correction is not None else (float(flags[0]) if flags else 1)
    dims = dims_of(x, dim)
    mean, spread = variance(ctx, ctx.floats(x), dims, less)
    result = spread
    if ctx.name.startswith("std"):
        result = Value(spread.shape, spread.dtype, lambda i: ctx.stages.with_tie(Op("sqrt", (spread.at(i),)), 0.0))
    results = tuple(finished(v, x, dims, keepdim) for v in (result, mean))
    return results if ctx.name.endswith("_mean") else results[0]


@lowers("layer_norm", "native_layer_norm")
def layer_norm(
    ctx: Context,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    """(x - mean) / sqrt(variance + eps) * weight + bias."""
    dims = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    x = ctx.reused(ctx.converted(x, ctx.dtype))
    mean, spread = variance(ctx, x, dims)
    small = ctx.as_dtype(Const(eps, "float32"), ctx.dtype)
    middle, wide = kept(mean, x, dims), kept(spread, x, dims)
    value = ctx.elementwise(
        lambda e, m, v: Op("mul", (Op("sub", (e, m)), Op("rsqrt", (Op("add", (v, small)),)))), x, middle, wide
    )
    result = scaled(ctx, value, weight, bias)
    if ctx.name == "layer_norm":
        return result
    inverse = Value(wide.shape, wide.dtype, lambda i: Op("rsqrt", (Op("add", (wide.at(i), small)),)))
    return result, middle, inverse


@lowers("rms_norm")
def rms_norm(
    ctx: Context, x: Value, normalized_shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    """x / sqrt(mean(x * x) + eps) * weight."""
    dims = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    x = ctx.reused(ctx.converted(x, ctx.dtype))
    squares = Value(x.shape, x.dtype, lambda i: Op("mul", (x.at(i), x.at(i))))
    mean = mean_of(ctx, squares, dims)
    if eps is None:
        eps = {"float64": 2.220446049250313e-16}.get(ctx.dtype, 1.1920928955078125e-07)
    small = ctx.as_dtype(Const(eps, "float32"), ctx.dtype)
    value = ctx.elementwise(lambda e, m: Op("mul", (e, Op("rsqrt", (Op("add", (m, small)),)))), x, kept(mean, x, dims))
    return scaled(ctx, value, weight, None)


@lowers("_native_batch_norm_legit_no_training", "_native_batch_norm_legit.no_stats")
def batch_norm(ctx: Context, x: Value, weight: Value | None, bias: Value | None, *rest: Any) -> Any:
    """Each channel, dimension 1, normalised by given statistics or by those of the batch, which are results then."""
    channel = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    x = ctx.reused(ctx.converted(x, ctx.dtype))
    small = ctx.as_dtype(Const(rest[-1], "float32"), ctx.dtype)

    def wide(v: Value) -> Value:
        return v.viewed(channel, lambda i: (i[1],))

    statistics: tuple[Value, ...] = ()
    if ctx.name.endswith("no_training"):
        mean, spread = wide(rest[0]), wide(rest[1])
    else:
        dims = tuple(d for d in range(x.ndim) if d != 1)
        middle, variances = variance(ctx, x, dims)
        mean, spread = kept(middle, x, dims), kept(variances, x, dims)
        deviation = Value(variances.shape, x.dtype, lambda i: Op("rsqrt", (Op("add", (variances.at(i), small)),)))
        statistics = finished(middle, x, dims, False), finished(deviation, x, dims, False)
    value = ctx.elementwise(
        lambda e, m, v: Op("mul", (Op("sub", (e, m)), Op("rsqrt", (Op("add", (v, small)),)))), x, mean, spread
    )
    out = scaled(ctx, value, None if weight is None else wide(weight), None if bias is None else wide(bias))
    return (out, *statistics)


@lowers("group_norm")
def group_norm(
    ctx: Context,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    """Each group of channels of each sample normalised; channels are dimension 1."""
    each = x.shape[1] // groups
    x = ctx.reused(ctx.converted(x, ctx.dtype))
    apart = x.viewed((x.shape[0], groups, each, *x.shape[2:]), lambda i: (i[0], add(mul(i[1], each), i[2]), *i[3:]))
    mean, spread = variance(ctx, apart, tuple(range(2, apart.ndim)))
    small = ctx.as_dtype(Const(eps, "float32"), ctx.dtype)

    def per_channel(v: Value) -> Value:
        shape = (x.shape[0], x.shape[1], *(1 for _ in x.shape[2:]))
        return v.viewed(shape, lambda i: (i[0], ctx.stages.simplified(Op("floordiv", (i[1], Const(each))))))

    value = ctx.elementwise(
        lambda e, m, v: Op("mul", (Op("sub", (e, m)), Op("rsqrt", (Op("add", (v, small)),)))),
        x,
        per_channel(mean),
        per_channel(spread),
    )
    channel = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    own = (None if v is None else v.viewed(channel, lambda i: (i[1],)) for v in (weight, bias))
    return scaled(ctx, value, *own)


def scaled(ctx: Context, value: Value, weight: Value | None, bias: Value | None) -> Value:
    """value * weight + bias, which are broadcast."""
    if weight is not None:
        value = ctx.elementwise(lambda e, w: Op("mul", (e, w)), value, weight)
    if bias is not None:
        value = ctx.elementwise(lambda e, b: Op("add", (e, b)), value, bias)
    return value


@lowers("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar")
def vector_norm(
    ctx: Context, x: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """The norm along dimensions: the root of the sum of powers, or an extremum for an infinite order."""
    dims = dims_of(x, dim)
    x = ctx.reused(ctx.converted(x, ctx.dtype))
    order = 2.0 if ord is None else float(ord)
    if order == 2:
        total = reduced(ctx, "sum", Value(x.shape, x.dtype, lambda i: Op("mul", (x.at(i), x.at(i)))), dims)
        result = Value(total.shape, total.dtype, lambda i: ctx.stages.with_tie(Op("sqrt", (total.at(i),)), 0.0))
    elif order in (1.0, float("inf"), float("-inf")):
        sizes = Value(x.shape, x.dtype, lambda i: Op("abs", (x.at(i),)))
        marks = [] if order == 1 else [NAN_AMONG_EQUALS]
        result = reduced(ctx, "sum" if order == 1 else "max" if order > 0 else "min", sizes, dims, marks=marks)
    elif order == 0:
        zero, one = (ctx.as_dtype(Const(v, "float32"), x.dtype) for v in (0.0, 1.0))
        others = Value(x.shape, x.dtype, lambda i: Op("select", (Op("ne", (x.at(i), zero)), one, zero)))
        result = reduced(ctx, "sum", others, dims)
    else:
        power, root = (ctx.as_dtype(Const(v, "float32"), x.dtype) for v in (order, 1 / order))
        zero = ctx.as_dtype(Const(0.0, "float32"), x.dtype)

        endless = ctx.as_dtype(Const(float("inf"), "float32"), x.dtype)

        def at_zero(e: Expr, value: Expr, other: Expr) -> Expr:
            """A constant for 0, where the derivative of a power is NaN, and PyTorch's is 0."""
            return Op("select", (Op("eq", (e, zero)), value, other))

        def element(i: Index) -> Expr:
            return at_zero(x.at(i), zero if order > 0 else endless, Op("pow", (Op("abs", (x.at(i),)), power)))

        total = ctx.reused(reduced(ctx, "sum", Value(x.shape, x.dtype, element), dims))

        def rooted(i: Index) -> Expr:
            whole = Op("pow", (total.at(i), root))
            return at_zero(total.at(i), zero, whole) if order > 0 else whole

        result = Value(total.shape, total.dtype, rooted)
    return finished(result, x, dims, keepdim)


@lowers("cdist")
def distances(ctx: Context, a: Value, b: Value, p: float = 2.0, *_: Any) -> Value:
    """The distance of an order between every row of a matrix and every row of another."""
    shape = ctx.shape
    first = ctx.converted(a, ctx.dtype).expanded((*shape[:-1], a.shape[-1]))
    second = ctx.converted(b, ctx.dtype).expanded((*shape[:-2], shape[-1], b.shape[-1]))

    def apart(i: Index) -> Expr:
        return Op("sub", (first.at((*i[:-2], i[-1])), second.at((*i[:-3], *i[-2:]))))

    if p not in (0.0, 1.0, 2.0):
        return vector_norm(ctx, Value((*shape, a.shape[-1]), ctx.dtype, apart), p, -1)

    def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        difference = apart((*i, *r))
        if p == 0:
            # torch counts a NaN in a norm, but not here.
            zero, one, nan = (ctx.as_dtype(Const(v, "float32"), ctx.dtype) for v in (0.0, 1.0, float("nan")))
            other = Op("select", (Op("ne", (difference, zero)), one, zero))
            return Op("select", (Op("ne", (difference, difference)), nan, other))
        return Op("mul", (difference, difference)) if p == 2 else Op("abs", (difference,))

    total = ctx.stages.reduce("sum", shape, [a.shape[-1]], term, ctx.dtype)
    return total if p < 2 else Value(shape, ctx.dtype, lambda i: ctx.stages.with_tie(Op("sqrt", (total.at(i),)), 0.0))
