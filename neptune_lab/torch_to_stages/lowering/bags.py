"""Sums, means and maxima of rows of a table, over bags of indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neptune_lab.loop_ir.nodes import Const, Expr, Op, Var, add, mul
from neptune_lab.loop_ir.reduction import identity
from neptune_lab.operators.ties import FIRST_OF_EQUALS, WITHOUT_FILLING
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.values import Index, Value, computed_dtype, constant

_SUM, _MEAN, _MAX = 0, 1, 2


@dataclass(frozen=True)
class _Bags:
    """Bags of indices.

    Args:
        count: how many positions are looked at for each bag.
        position: the place in the list of indices, from a bag and the number of a position.
        inside: whether a position is in the bag; None: each is.
    """

    count: int
    position: Callable[[Expr, Expr], Expr]
    inside: Callable[[Expr, Expr], Expr] | None = None


@lowers("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    ctx: Context,
    table: Value,
    ids: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value | None, ...]:
    """The rows of each bag, added up, their mean or their maxima; 0 for a bag without rows.

    The further results are what torch's own backward pass reads.
    """
    if scale_grad_by_freq:
        raise ctx.refused("with scale_grad_by_freq=True")
    bags, own = _bags(ctx, ids.shape[0], offsets), computed_dtype(ctx.dtype)
    zero, one = (constant(v, ctx.dtype).at(()) for v in (0, 1))

    def counted(i: Index, n: Expr, value: Expr, beside: Expr) -> Expr:
        """`value` of a position that is in the bag and no padding, else another one."""
        tests = [] if bags.inside is None else [bags.inside(i[0], n)]
        if padding_idx >= 0:
            tests.append(Op("ne", (ctx.place(ids.at((bags.position(i[0], n),))), Const(padding_idx))))
        for test in reversed(tests):
            value = Op("select", (test, value, beside))
        return value

    def rows(beside: Expr) -> Callable[[Index, Index], Expr]:
        def term(i: Index, r: Index) -> Expr:
            place = bags.position(i[0], r[0])
            value = ctx.as_dtype(table.at((ctx.place(ids.at((place,))), i[1])), ctx.dtype)
            if per_sample_weights is not None:
                value = Op("mul", (value, ctx.as_dtype(per_sample_weights.at((place,)), ctx.dtype)))
            return counted(i, r[0], value, beside)

        return term

    def folded(reducer: str, term: Callable[[Index, Index], Expr], hint: str) -> Value:
        name = f"{ctx.stages.hint}_{hint}"
        marks = [FIRST_OF_EQUALS, WITHOUT_FILLING] if reducer == "max" else []
        return ctx.stages.reduce(reducer, ctx.shape, [bags.count], term, ctx.dtype, name, marks)  # type: ignore[arg-type]

    if mode == _MAX:
        total = folded("max", rows(identity("max", own)), "max")
    else:
        total = folded("sum", rows(zero), "sum")
    if mode == _SUM:
        return total, None, None, None
    if padding_idx < 0 and bags.inside is None:
        share = constant(1 / bags.count, ctx.dtype).at(())
        mean = Value(ctx.shape, ctx.dtype, lambda i: Op("mul", (total.at(i), share)))
        return (mean if mode == _MEAN else total), None, None, None
    number = folded("sum", lambda i, r: counted(i, r[0], one, zero), "count")

    def element(i: Index) -> Expr:
        if mode == _MEAN:
            return Op("div", (total.at(i), Op("max", (number.at(i), one))))
        return Op("select", (Op("eq", (number.at(i), zero)), zero, total.at(i)))

    return Value(ctx.shape, ctx.dtype, element), None, None, None


def _bags(ctx: Context, count: int, offsets: Value) -> _Bags:
    """The bags between offsets: rows of a matrix of indices if each has as many, as in a call with a matrix."""
    bags, bag = ctx.shape[0], Var("?0")
    length = count // bags
    if length * bags == count and offsets.at((bag,)) == mul(bag, length):
        return _Bags(length, lambda b, n: add(mul(b, length), n))
    last = offsets.shape[0] - 1

    def inside(b: Expr, n: Expr) -> Expr:
        next_bag = add(b, Const(1))
        end = Op("select", (Op("le", (next_bag, Const(last))), ctx.place(offsets.at((next_bag,))), Const(count)))
        return Op("and", (Op("ge", (n, ctx.place(offsets.at((b,))))), Op("lt", (n, end))))

    return _Bags(count, lambda b, n: n, inside)
