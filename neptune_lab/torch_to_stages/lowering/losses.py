"""Losses and gathers by an index tensor."""

from __future__ import annotations

from typing import Any

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.lowering.reductions import mean_of, reduced
from neptune_lab.torch_to_stages.lowering.softmax import parts
from neptune_lab.torch_to_stages.values import Value

_REDUCTIONS = ("none", "mean", "sum")


def picked(ctx: Context, x: Value, target: Value, dim: int, hint: str = "") -> Value:
    """The element of `x` along `dim` that `target` says, as a sum in which all others are 0.

    So it folds along the same dimension as the sum of a softmax, and the row needs no storage.
    """
    own = ctx.stages.type_of(x.at(tuple(Const(0) for _ in x.shape)))
    zero = Const(0.0 if "float" in own else 0, own)

    def term(i: tuple[Expr, ...]) -> Expr:
        wanted = ctx.position(target.at((*i[:dim], *i[dim + 1 :])))
        return Op("select", (Op("eq", (i[dim], wanted)), x.at(i), zero))

    return reduced(ctx, "sum", Value(x.shape, x.dtype, term), (dim,), hint=hint)


@lowers("cross_entropy_loss")
def cross_entropy(
    ctx: Context,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Value:
    """log(sum exp(x - max x)) + max x - x[target], per row, and their mean or sum."""
    if weight is not None or label_smoothing:
        raise ctx.refused("with weight or label_smoothing")
    if target.dtype not in ("int64", "int32", "uint8"):
        raise ctx.refused("with probabilities as the target")
    dim = 1 if x.ndim > 1 else 0
    name = ctx.stages.hint
    x = ctx.staged(x, f"{name}_logits")
    own = picked(ctx, x, target, dim, f"{name}_target")
    _, largest, total = parts(ctx, x, dim)

    def loss(i: tuple[Expr, ...]) -> Expr:
        value = Op("sub", (Op("add", (largest.at(i), Op("log", (total.at(i),)))), own.at(i)))
        return Op(
            "select", (_counts(ctx, target.at(i), ignore_index), value, ctx.as_dtype(Const(0.0, "float32"), x.dtype))
        )

    losses = Value(own.shape, x.dtype, loss)
    return _combined(ctx, losses, target, ignore_index, reduction)


def _counts(ctx: Context, label: Expr, ignore_index: int) -> Expr:
    return Op("ne", (ctx.position(label), Const(ignore_index)))


def _combined(ctx: Context, losses: Value, target: Value, ignore_index: int, reduction: int) -> Value:
    """The losses, their mean over the labels that count, or their sum."""
    if _REDUCTIONS[reduction] == "none":
        return losses
    name, dims = ctx.stages.hint, tuple(range(losses.ndim))
    total = reduced(ctx, "sum", losses, dims, hint=f"{name}_sum")
    if _REDUCTIONS[reduction] == "sum":
        return total
    one, zero = (ctx.as_dtype(Const(v, "float32"), losses.dtype) for v in (1.0, 0.0))
    counted = Value(
        losses.shape,
        losses.dtype,
        lambda i: Op("select", (_counts(ctx, target.at(i), ignore_index), one, zero)),
    )
    number = reduced(ctx, "sum", counted, dims, hint=f"{name}_count")
    return Value(total.shape, total.dtype, lambda i: Op("div", (total.at(i), number.at(i))))


@lowers("nll_loss_nd")
def nll_loss(
    ctx: Context, x: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: int = -100
) -> Value:
    """-x[target], per row, and their mean or sum."""
    if weight is not None:
        raise ctx.refused("with weight")
    own = picked(ctx, x, target, 1 if x.ndim > 1 else 0)
    zero = ctx.as_dtype(Const(0.0, "float32"), x.dtype)
    losses = Value(
        own.shape,
        x.dtype,
        lambda i: Op("select", (_counts(ctx, target.at(i), ignore_index), Op("neg", (own.at(i),)), zero)),
    )
    return _combined(ctx, losses, target, ignore_index, reduction)


@lowers("mse_loss", "l1_loss")
def distance_loss(ctx: Context, x: Value, target: Value, reduction: int = 1) -> Value:
    """The squared or the absolute differences, and their mean or sum."""

    def element(a: Expr, b: Expr) -> Expr:
        difference = Op("sub", (a, b))
        return Op("mul", (difference, difference)) if ctx.name == "mse_loss" else Op("abs", (difference,))

    shape = x.shape if x.ndim >= target.ndim else target.shape
    a, b = (ctx.converted(v, ctx.dtype).expanded(shape) for v in (x, target))
    losses = Value(shape, ctx.dtype, lambda i: element(a.at(i), b.at(i)))
    if _REDUCTIONS[reduction] == "none":
        return losses
    dims = tuple(range(len(shape)))
    return reduced(ctx, "sum", losses, dims) if reduction == 2 else mean_of(ctx, losses, dims)


@lowers("embedding", "index_select", "index.Tensor", "gather")
def gather(ctx: Context, *args: Any, **_: Any) -> Value:
    """Elements at positions that a tensor holds; torch counts negative ones from the end."""
    if ctx.name == "embedding":
        table, ids = args[:2]
        return table.viewed(ctx.shape, lambda i: (_row(ctx, ids.at(i[: ids.ndim]), table.shape[0], False), i[-1]))
    if ctx.name == "index_select":
        x, dim, ids = args
        dim = dim % x.ndim
        return x.viewed(
            ctx.shape, lambda i: (*i[:dim], _row(ctx, ids.at((i[dim],)), x.shape[dim], False), *i[dim + 1 :])
        )
    if ctx.name == "gather":
        x, dim, ids = args[:3]
        dim = dim % x.ndim
        return x.viewed(ctx.shape, lambda i: (*i[:dim], _row(ctx, ids.at(i), x.shape[dim], False), *i[dim + 1 :]))
    return _indexed(ctx, args[0], args[1])


def _row(ctx: Context, index: Expr, size: int, negative: bool) -> Expr:
    position = ctx.position(index)
    if not negative:
        return position
    return Op("select", (Op("lt", (position, Const(0))), Op("add", (position, Const(size))), position))


def _indexed(ctx: Context, x: Value, indices: list[Value | None]) -> Value:
    """x[indices]: index tensors are broadcast with each other, and stand where the first of them does."""
    given = [d for d, index in enumerate(indices) if index is not None]
    tensors = [indices[d] for d in given]
    if any(t is not None and t.dtype == "bool" for t in tensors):
        raise ctx.refused("with a mask, whose result's shape depends on values")
    if given != list(range(given[0], given[-1] + 1)):
        raise ctx.refused("with index tensors that are not side by side")
    rank = max(t.ndim for t in tensors if t is not None)
    start = given[0]
    common = ctx.shape[start : start + rank]
    wide = [t.expanded(common) for t in tensors if t is not None]

    def index(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        inner = i[start : start + rank]
        found = [_row(ctx, t.at(inner), x.shape[d], True) for d, t in zip(given, wide, strict=True)]
        return (*i[:start], *found, *i[start + rank :])

    return x.viewed(ctx.shape, index)
