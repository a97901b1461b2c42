"""The largest, the k-th and the middle element of a row: the rank of an element is the number of those before it.

So a row of n elements takes n * n steps, and n more for each element of the result, whose place is looked up by its
rank.  Equal elements keep their order.  A whole sort is refused, since torch's takes far fewer steps.
"""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.values import Index, Value

_POSITIONS = "int64"


def _ranks(ctx: Context, x: Value, dim: int, descending: bool) -> Value:
    """How many elements are before each one in a stable sort, where NaN is the largest: a permutation of the places."""

    def before(i: Index, r: Index) -> Expr:
        mine, other = x.at(i), x.at((*i[:dim], r[0], *i[dim + 1 :]))
        first, same = Op("gt" if descending else "lt", (other, mine)), Op("eq", (other, mine))
        if "float" in x.dtype:
            no_number, neither = Op("ne", (mine, mine)), Op("ne", (other, other))
            least, largest = (mine, neither) if descending else (other, no_number)
            first = Op("or", (first, Op("and", (largest, Op("eq", (least, least))))))
            same = Op("or", (same, Op("and", (no_number, neither))))
        counts = Op("or", (first, Op("and", (same, Op("lt", (r[0], i[dim]))))))
        return Op("select", (counts, Const(1), Const(0)))

    return ctx.stages.reduce("sum", x.shape, [x.shape[dim]], before, _POSITIONS, f"{ctx.stages.hint}_rank")


def _ordered(ctx: Context, x: Value, dim: int, descending: bool, ranks: range | Value) -> tuple[Value, Value]:
    """The elements of some ranks along a dimension, and where they are; a tensor of ranks has size 1 along it."""
    x = ctx.staged(x)
    rank = _ranks(ctx, ctx.converted(x, "int32") if x.dtype == "bool" else x, dim, descending)
    count = len(ranks) if isinstance(ranks, range) else 1

    def place(i: Index, r: Index) -> Expr:
        element = (*i[:dim], r[0], *i[dim + 1 :])
        wanted = Op("add", (i[dim], Const(ranks.start))) if isinstance(ranks, range) else ctx.position(ranks.at(i))
        return Op("select", (Op("eq", (ctx.position(rank.at(element)), wanted)), r[0], Const(0)))

    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    index = ctx.stages.reduce("max", shape, [x.shape[dim]], place, _POSITIONS, f"{ctx.stages.hint}_index")
    # (read at the position, which has all of the gradient, as in PyTorch)
    return x.viewed(shape, lambda i: (*i[:dim], ctx.position(index.at(i)), *i[dim + 1 :])), index


def _row(ctx: Context, x: Value, dim: int) -> tuple[Value, int]:
    """A tensor with at least one dimension, and the dimension counted from 0."""
    if x.ndim == 0:
        return x.viewed((1,), lambda i: ()), 0
    if x.shape[dim] == 0:
        raise ctx.refused("of a dimension without elements")
    return x, dim % x.ndim


def _like(found: tuple[Value, Value], x: Value) -> tuple[Value, Value]:
    """Elements and places with the dimensions of the operand: without the one that `_row` adds to a number."""
    if x.ndim:
        return found
    values, index = (each.viewed((), lambda i: (Const(0),)) for each in found)
    return values, index


@lowers("topk")
def topk(
    ctx: Context, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    """The k largest or smallest elements in order, and where they are; of equal ones, the first."""
    row, at = _row(ctx, x, dim)
    if k == 0:
        raise ctx.refused("of no elements")
    return _like(_ordered(ctx, row, at, largest, range(k)), x)


@lowers("kthvalue")
def kthvalue(ctx: Context, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The k-th smallest element, and where it is."""
    row, at = _row(ctx, x, dim)
    return _one(_ordered(ctx, row, at, False, range(k - 1, k)), at, keepdim or not x.ndim, x)


@lowers("median.dim", "nanmedian.dim")
def median(ctx: Context, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The middle element, the lower one of two, and where it is; `median` gives the first NaN, if there is one."""
    row, at = _row(ctx, x, dim)
    n = row.shape[at]
    ranks: range | Value = range((n - 1) // 2, (n + 1) // 2)
    if "float" in x.dtype:
        row = ctx.staged(row)

        def is_none(i: Index, r: Index) -> Expr:
            element = row.at((*i[:at], r[0], *i[at + 1 :]))
            return Op("select", (Op("ne", (element, element)), Const(1), Const(0)))

        shape = (*row.shape[:at], 1, *row.shape[at + 1 :])
        nones = ctx.stages.reduce("sum", shape, [n], is_none, _POSITIONS, f"{ctx.stages.hint}_nan")

        def rank(i: Index) -> Expr:
            numbers = Op("sub", (Const(n), ctx.position(nones.at(i))))
            if ctx.name == "nanmedian":
                return Op("floordiv", (Op("max", (Op("sub", (numbers, Const(1))), Const(0))), Const(2)))
            return Op("select", (Op("lt", (numbers, Const(n))), numbers, Const((n - 1) // 2)))

        ranks = replace(nones, at=rank, dtype="int32", plain=False)
    return _one(_ordered(ctx, row, at, False, ranks), at, keepdim or not x.ndim, x)


def _one(found: tuple[Value, Value], dim: int, keepdim: bool, x: Value) -> tuple[Value, Value]:
    """Elements and places of which there is one along a dimension, which is left out unless it is kept."""
    if keepdim:
        return _like(found, x)
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    values, index = (each.viewed(shape, lambda i: (*i[:dim], Const(0), *i[dim:])) for each in found)
    return values, index
