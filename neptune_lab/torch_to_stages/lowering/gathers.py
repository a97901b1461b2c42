"""Elements at positions that an index tensor holds."""

from __future__ import annotations

from typing import Any

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.operators.captured_indices import is_from_zero
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.values import Value


@lowers("embedding", "index_select", "index.Tensor", "gather")
def gather(ctx: Context, *args: Any, **_: Any) -> Value:
    """Elements at positions that a tensor holds; torch counts negative ones from the end."""
    if ctx.name == "embedding":
        table, ids = args[:2]
        return table.viewed(ctx.shape, lambda i: (row(ctx, ids.at(i[: ids.ndim]), table.shape[0], False), i[-1]))
    if ctx.name == "index_select":
        x, dim, ids = args
        dim = dim % x.ndim
        return x.viewed(
            ctx.shape, lambda i: (*i[:dim], row(ctx, ids.at((i[dim],)), x.shape[dim], False), *i[dim + 1 :])
        )
    if ctx.name == "gather":
        x, dim, ids = args[:3]
        dim = dim % x.ndim
        return x.viewed(ctx.shape, lambda i: (*i[:dim], row(ctx, ids.at(i), x.shape[dim], False), *i[dim + 1 :]))
    return _indexed(ctx, args[0], args[1])


def row(ctx: Context, index: Expr, size: int, negative: bool) -> Expr:
    """An element of an index tensor as a position of a dimension; `negative` ones count from its end."""
    position = ctx.place(index)
    if not negative or is_from_zero(position):
        return position
    return Op("select", (Op("lt", (position, Const(0))), Op("add", (position, Const(size))), position))


def _indexed(ctx: Context, x: Value, indices: list[Value | None]) -> Value:
    """x[indices]: index tensors are broadcast with each other."""
    given = [d for d, index in enumerate(indices) if index is not None]
    tensors = [indices[d] for d in given]
    if any(t is not None and t.dtype == "bool" for t in tensors):
        raise ctx.refused("with a mask, whose result's shape depends on values")
    rank = max(t.ndim for t in tensors if t is not None)
    # Index tensors that are side by side stand where the first of them does, others in front.
    start = given[0] if given == list(range(given[0], given[-1] + 1)) else 0
    common = ctx.shape[start : start + rank]
    wide = dict(zip(given, (ctx.index(t).expanded(common) for t in tensors if t is not None), strict=True))

    def index(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        inner, others = i[start : start + rank], iter((*i[:start], *i[start + rank :]))
        return tuple(row(ctx, wide[d].at(inner), n, True) if d in wide else next(others) for d, n in enumerate(x.shape))

    return x.viewed(ctx.shape, index)
