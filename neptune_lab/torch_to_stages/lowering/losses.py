"""Losses of labels and of targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.lowering.reductions import mean_of, reduced
from neptune_lab.torch_to_stages.lowering.softmax import parts
from neptune_lab.torch_to_stages.values import Index, Value

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
    """max x - x[target] + log(sum exp(x - max x)), per row, and their mean or sum.

    With smoothing s over n classes, 1 - s of that, and s / n of the sum of w * (log(sum exp(x - max x)) + max x - x);
    with probabilities p as the target, the sum of p' * w * the same, with p' = (1 - s) * p + s / n.
    """
    dim = 1 if x.ndim > 1 else 0
    name = ctx.stages.hint
    x = ctx.staged(x, f"{name}_logits")
    labels = "float" not in target.dtype
    if labels and target.dtype not in ("int64", "int32", "uint8"):
        raise ctx.refused(f"with a target of {target.dtype}")
    own = picked(ctx, x, target, dim, f"{name}_target") if labels else None
    _, largest, total = parts(ctx, x, dim)

    def loss(value: Expr, i: Index, weight: Expr | None = None) -> Expr:
        """weight * (log(sum exp(x - max x)) + max x) - value; the difference of large numbers is taken first."""
        rows = [largest.at(i), Op("log", (total.at(i),))]
        top, rest = rows if weight is None else [Op("mul", (weight, v)) for v in rows]
        return Op("add", (Op("sub", (top, value)), rest))

    if own is None:
        return _of_probabilities(ctx, x, target, weight, loss, dim, reduction, label_smoothing)
    share = Labels(ctx, target, ignore_index, weight, x.dtype)
    losses = share.weighted(Value(own.shape, x.dtype, lambda i: loss(own.at(i), i)))
    if label_smoothing:
        every = _every_class(ctx, x, weight, loss, dim)
        kept, spread = (ctx.as_dtype(Const(v, "float32"), x.dtype) for v in (1 - label_smoothing, label_smoothing))
        count = ctx.as_dtype(Const(float(x.shape[dim]), "float32"), x.dtype)

        def mixed(i: Index) -> Expr:
            rest = Op("mul", (Op("div", (spread, count)), share.counted_only(every.at(i), i)))
            return Op("add", (Op("mul", (kept, losses.at(i))), rest))

        return _combined(ctx, Value(own.shape, x.dtype, mixed), share, reduction)
    return _combined(ctx, losses, share, reduction)


def _every_class(
    ctx: Context,
    x: Value,
    weight: Value | None,
    loss: Callable[[Expr, Index, Expr], Expr],
    dim: int,
    share: Value | None = None,
) -> Value:
    """The sum over the classes of share * weight * (the logarithm of the sum of exponentials - x).

    Two sums without the maximum: that of share * weight * x, and that of share * weight, which needs no loop if it is a
    number.  So both fold along with the softmax's sum.
    """
    name = ctx.stages.hint

    def factor(i: Index) -> Expr | None:
        parts = [] if weight is None else [ctx.as_dtype(weight.at((i[dim],)), x.dtype)]
        parts += [] if share is None else [ctx.as_dtype(share.at(i), x.dtype)]
        return Op("mul", (parts[0], parts[1])) if len(parts) == 2 else parts[0] if parts else None

    def term(i: Index) -> Expr:
        own = factor(i)
        return x.at(i) if own is None else Op("mul", (own, x.at(i)))

    folded = reduced(ctx, "sum", Value(x.shape, x.dtype, term), (dim,), hint=f"{name}_every")
    one = ctx.as_dtype(Const(1.0, "float32"), x.dtype)
    factors = Value(x.shape, x.dtype, lambda i: factor(i) or one)
    whole = reduced(ctx, "sum", factors, (dim,), hint=f"{name}_every_weight")
    return replace(folded, at=lambda i: loss(folded.at(i), i, whole.at(i)), plain=False)


def _of_probabilities(
    ctx: Context,
    x: Value,
    target: Value,
    weight: Value | None,
    loss: Callable[[Expr, Index, Expr], Expr],
    dim: int,
    reduction: int,
    smoothing: float,
) -> Value:
    """The cross entropy with a probability per class; its mean is over the rows, whatever the weights are."""
    spread, count = (ctx.as_dtype(Const(v, "float32"), x.dtype) for v in (smoothing, float(x.shape[dim])))
    kept = ctx.as_dtype(Const(1 - smoothing, "float32"), x.dtype)

    def share(i: Index) -> Expr:
        own = ctx.as_dtype(target.at(i), x.dtype)
        return Op("add", (Op("mul", (own, kept)), Op("div", (spread, count)))) if smoothing else own

    losses = _every_class(ctx, x, weight, loss, dim, Value(x.shape, x.dtype, share))
    if _REDUCTIONS[reduction] == "none":
        return losses
    dims = tuple(range(losses.ndim))
    total = reduced(ctx, "sum", losses, dims, hint=f"{ctx.stages.hint}_sum")
    if _REDUCTIONS[reduction] == "sum":
        return total
    rows = ctx.as_dtype(Const(float(math.prod(losses.shape)), "float32"), x.dtype)
    return Value(total.shape, total.dtype, lambda i: Op("div", (total.at(i), rows)))


@dataclass(frozen=True)
class Labels:
    """How much the loss of each label counts: 0 if it is ignored, else the weight of its class.

    Args:
        ctx: the operation.
        target: the labels.
        ignored: the label that does not count.
        weight: per class; None: each counts as 1.
        dtype: torch's dtype of the losses.
    """

    ctx: Context
    target: Value
    ignored: int
    weight: Value | None
    dtype: str

    def counted_only(self, value: Expr, i: Index) -> Expr:
        """`value` if the label at `i` counts, and 0 otherwise, even where `value` is not finite."""
        zero = self.ctx.as_dtype(Const(0.0, "float32"), self.dtype)
        counts = Op("ne", (self.ctx.position(self.target.at(i)), Const(self.ignored)))
        return Op("select", (counts, value, zero))

    def at(self, i: Index) -> Expr:
        """How much the label at `i` counts."""
        if self.weight is None:
            return self.counted_only(self.ctx.as_dtype(Const(1.0, "float32"), self.dtype), i)
        label = self.ctx.position(self.target.at(i))
        inside = Op("select", (Op("ne", (label, Const(self.ignored))), label, Const(0)))
        return self.counted_only(self.ctx.as_dtype(self.weight.at((inside,)), self.dtype), i)

    def weighted(self, losses: Value) -> Value:
        """The losses, each times how much its label counts."""
        if self.weight is None:
            return replace(losses, at=lambda i: self.counted_only(losses.at(i), i))
        return replace(losses, at=lambda i: self.counted_only(Op("mul", (losses.at(i), self.at(i))), i))


def _combined(ctx: Context, losses: Value, labels: Labels, reduction: int) -> Value:
    """The losses, their mean over the labels by how much these count, or their sum."""
    if _REDUCTIONS[reduction] == "none":
        return losses
    name, dims = ctx.stages.hint, tuple(range(losses.ndim))
    total = reduced(ctx, "sum", losses, dims, hint=f"{name}_sum")
    if _REDUCTIONS[reduction] == "sum":
        return total
    number = reduced(ctx, "sum", Value(losses.shape, losses.dtype, labels.at), dims, hint=f"{name}_count")
    return Value(total.shape, total.dtype, lambda i: Op("div", (total.at(i), number.at(i))))


@lowers("nll_loss_nd")
def nll_loss(
    ctx: Context, x: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: int = -100
) -> Value:
    """-x[target], per row, and their mean or sum."""
    own = picked(ctx, x, target, 1 if x.ndim > 1 else 0)
    share = Labels(ctx, target, ignore_index, weight, x.dtype)
    losses = share.weighted(Value(own.shape, x.dtype, lambda i: Op("neg", (own.at(i),))))
    return _combined(ctx, losses, share, reduction)


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


@lowers("xlogy", "special_xlogy")
def x_log_y(ctx: Context, a: Value | float, b: Value | float) -> Value:
    """a * log(b), and 0 for a = 0; its derivative by a is log(b) there too, as in PyTorch, or 0 where b has none."""

    def element(x: Expr, y: Expr) -> Expr:
        zero, own = Const(0.0, ctx.stages.type_of(x)), ctx.stages.type_of(y)
        without = Op("or", (Op("le", (y, Const(0.0, own))), Op("eq", (y, Const(math.inf, own)))))
        left_out = Op("and", (Op("eq", (x, zero)), without))
        return Op("mul", (x, Op("log", (Op("select", (left_out, Const(1.0, own), y)),))))

    return ctx.elementwise(element, *(ctx.reused(v) if isinstance(v, Value) else v for v in (a, b)))
