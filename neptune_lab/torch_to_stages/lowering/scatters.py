"""Elements written, added or folded at positions that an index tensor holds.

Each element of the result looks through all positions for its own, so a result is the same in each run, whatever the
order of the positions; the work is the size of the result times the number of positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op, add, mul
from neptune_lab.loop_ir.reduction import identity
from neptune_lab.operators.ties import WITHOUT_FILLING
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.lowering.gathers import row
from neptune_lab.torch_to_stages.masks import chosen
from neptune_lab.torch_to_stages.stages import Reducer
from neptune_lab.torch_to_stages.values import NARROW_INTEGERS, Index, Value, computed_dtype, constant

# Positions of an element up to which what is written is a chain of choices; more of them are folded.
_MOST_CHOICES = 8
_FOLDS: dict[str, Reducer] = {
    "sum": "sum",
    "add": "sum",
    "mean": "sum",
    "prod": "prod",
    "multiply": "prod",
    "amax": "max",
    "amin": "min",
}


@dataclass(frozen=True)
class _Writes:
    """What is written to a tensor.

    Args:
        ctx: the operation.
        x: the tensor before, in the result's dtype.
        counts: of the positions that may be an element's, by axis.
        hit: whether a position is the element's, from the element's index and the position's.
        given: what is written there, from the same indices; read only where `hit` holds.
    """

    ctx: Context
    x: Value
    counts: tuple[int, ...]
    hit: Callable[[Index, Index], Expr]
    given: Callable[[Index, Index], Expr]

    def replaced(self) -> Value:
        """The tensor with the elements replaced; of several positions of an element, the last one counts."""
        if math.prod(self.counts) > _MOST_CHOICES:
            return self._with_last()

        def element(i: Index) -> Expr:
            value = self.x.at(i)
            for n in range(math.prod(self.counts)):
                place = self._place(Const(n))
                value = Op("select", (self.hit(i, place), self.given(i, place), value))
            return value

        return Value(self.x.shape, self.ctx.dtype, element)

    def _with_last(self) -> Value:
        def found(i: Index, r: Index) -> Expr:
            order: Expr = Const(0)
            for n, size in zip(r, self.counts, strict=True):
                order = add(mul(order, size), n)
            return Op("select", (self.hit(i, r), order, Const(-1)))

        last = self._fold("max", found, "int32", "last")

        def element(i: Index) -> Expr:
            order = last.at(i)
            some = Op("ge", (order, Const(0)))
            return Op("select", (some, self.given(i, self._place(order)), self.x.at(i)))

        return Value(self.x.shape, self.ctx.dtype, element)

    def _place(self, order: Expr) -> Index:
        """The index of a position from its number."""
        found: list[Expr] = []
        for axis, size in enumerate(self.counts):
            rest = math.prod(self.counts[axis + 1 :])
            part = order if rest == 1 else Op("floordiv", (order, Const(rest)))
            found.append(Op("floormod", (part, Const(size))) if axis else part)
        return tuple(self.ctx.stages.simplified(e) if isinstance(order, Const) else e for e in found)

    def overwritten(self, value: Expr) -> Value:
        """The tensor with one number at all positions."""
        some = self._any()
        return Value(self.x.shape, self.ctx.dtype, lambda i: Op("select", (some.at(i), value, self.x.at(i))))

    def folded(self, how: str, include_self: bool) -> Value:
        """The tensor with what is written folded into its elements.

        Args:
            how: torch's name of the fold: "sum", "mean", "prod", "amax" or "amin".
            include_self: whether an element that is written to counts too; one that is not stays in any case.
        """
        reducer, own = _FOLDS[how], self._dtype
        start, first = identity(reducer, own), self.counts[0]
        # Equal extrema share a gradient, as in PyTorch, if the element before is one more position.
        extreme = include_self and how in ("amax", "amin")

        def given(i: Index, r: Index, inside: Expr | None = None) -> Expr:
            hit = self.hit(i, r) if inside is None else Op("and", (inside, self.hit(i, r)))
            return Op("select", (hit, self._as(self.given(i, r), own), start))

        def given_or_own(i: Index, r: Index) -> Expr:
            inside = Op("lt", (r[0], Const(first)))
            return Op("select", (inside, given(i, r, inside), self._own(i)))

        if extreme:
            return self._fold(reducer, given_or_own, self.ctx.dtype, how, (first + 1, *self.counts[1:]))
        total = self._fold(reducer, given, self.ctx.dtype, how)
        if how == "mean":
            return self._mean(total, include_self)
        if include_self:
            name = "add" if reducer == "sum" else "mul"
            return replace(total, at=lambda i: Op(name, (self._own(i), total.at(i))), plain=False)
        return self._where_written(total)

    def _mean(self, total: Value, include_self: bool) -> Value:
        own = self._dtype
        zero, one = (Const(v if "int" in own else float(v), own) for v in (0, 1))
        count = self._fold("sum", lambda i, r: Op("select", (self.hit(i, r), one, zero)), self.ctx.dtype, "count")
        quotient = "floordiv" if "int" in own else "div"

        def with_own(i: Index) -> Expr:
            return Op(quotient, (Op("add", (self._own(i), total.at(i))), Op("add", (count.at(i), one))))

        def without(i: Index) -> Expr:
            return Op(quotient, (total.at(i), Op("max", (count.at(i), one))))

        if include_self:
            return replace(total, at=with_own, plain=False)
        return self._where_written(replace(total, at=without, plain=False))

    def _where_written(self, value: Value) -> Value:
        some = self._any()
        return replace(value, at=lambda i: Op("select", (some.at(i), value.at(i), self._own(i))), plain=False)

    @property
    def _dtype(self) -> str:
        """The dtype in which elements are folded: torch folds int64 in 64 bits, for which 32 might not do."""
        return "int64" if self.ctx.dtype == "int64" else computed_dtype(self.ctx.dtype)

    def _own(self, i: Index) -> Expr:
        return self._as(self.x.at(i), self._dtype)

    def _as(self, expr: Expr, dtype: str) -> Expr:
        if self.ctx.stages.type_of(expr) == dtype:
            return expr
        return Const(expr.value, dtype) if isinstance(expr, Const) else Cast(dtype, expr)

    def _any(self) -> Value:
        return self._fold("any", self.hit, "bool", "hit")

    def _fold(
        self,
        reducer: Reducer,
        term: Callable[[Index, Index], Expr],
        dtype: str,
        hint: str,
        counts: Sequence[int] | None = None,
    ) -> Value:
        stages, marks = self.ctx.stages, [WITHOUT_FILLING] if reducer in ("max", "min") and "float" in dtype else []
        return stages.reduce(reducer, self.x.shape, counts or self.counts, term, dtype, f"{stages.hint}_{hint}", marks)


def _along(ctx: Context, x: Value, dim: int, index: Value, given: Value | None) -> _Writes:
    """Writes of `given` to the positions along `dim` that `index`, of as many dimensions as `x`, holds.

    Where `index` has fewer elements along another dimension, the others stay.
    """
    if x.ndim == 0:
        x, index = (v.viewed((1,), lambda _: ()) for v in (x, index))
        given = None if given is None else given.viewed((1,), lambda _: ())
    x, dim, index = ctx.converted(x, ctx.dtype), dim % x.ndim, ctx.reused(index)
    shorter = [d for d in range(x.ndim) if d != dim and index.shape[d] < x.shape[d]]

    def place(i: Index, n: Expr) -> Index:
        return (*i[:dim], n, *i[dim + 1 :])

    def inside(i: Index, value: Expr, beside: Expr) -> Expr:
        test = _all([Op("lt", (i[d], Const(index.shape[d]))) for d in shorter])
        return value if test is None else Op("select", (test, value, beside))

    def hit(i: Index, r: Index) -> Expr:
        return Op("eq", (i[dim], inside(i, ctx.place(index.at(place(i, r[0]))), Const(-1))))

    def taken(i: Index, r: Index) -> Expr:
        assert given is not None
        return inside(i, given.at(place(i, r[0])), constant(0, ctx.dtype).at(()))

    return _Writes(ctx, x, (index.shape[dim],), hit, taken)


def _all(conditions: Sequence[Expr]) -> Expr | None:
    whole: Expr | None = None
    for condition in conditions:
        whole = condition if whole is None else Op("and", (whole, condition))
    return whole


def _finished(ctx: Context, value: Value) -> Value:
    """The result in its own shape, which may have no dimensions."""
    return value if ctx.shape else value.viewed((), lambda _: (Const(0),))


@lowers("scatter.value", "scatter.src")
def scatter(ctx: Context, x: Value, dim: int, index: Value, source: Value | float | int | bool) -> Value:
    """`x` with the positions along `dim` that `index` lists replaced.

    Where several positions are equal, the last one of `source` is taken, which torch leaves open.
    """
    values = ctx.converted(ctx.tensor(source, ctx.dtype), ctx.dtype)
    if isinstance(source, Value):
        return _finished(ctx, _along(ctx, x, dim, index, values).replaced())
    writes = _along(ctx, x, dim, index, None)
    if writes.counts[0] > _MOST_CHOICES:
        return _finished(ctx, writes.overwritten(values.at(())))
    return _finished(ctx, replace(writes, given=lambda i, r: values.at(())).replaced())


@lowers("scatter.reduce", "scatter.value_reduce", "scatter_add", "scatter_reduce.two")
def scatter_fold(
    ctx: Context,
    x: Value,
    dim: int,
    index: Value,
    source: Value | float,
    reduce: str = "sum",
    *,
    include_self: bool = True,
) -> Value:
    """`x` with the elements of `source` folded into the positions along `dim` that `index` lists."""
    if wide := _in_32_bits(ctx, reduce):
        return ctx.converted(scatter_fold(wide, x, dim, index, source, reduce, include_self=include_self), ctx.dtype)
    values = ctx.converted(ctx.tensor(source, ctx.dtype), ctx.dtype)
    if not isinstance(source, Value):
        values = values.expanded(index.shape)
    return _finished(ctx, _along(ctx, x, dim, index, values).folded(reduce, include_self))


@lowers("index_add", "index_reduce")
def index_fold(
    ctx: Context,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str = "sum",
    *,
    alpha: float = 1,
    include_self: bool = True,
) -> Value:
    """`x` with the rows of `source` folded into the rows along `dim` that `index` lists."""
    if wide := _in_32_bits(ctx, reduce):
        folded = index_fold(wide, x, dim, index, source, reduce, alpha=alpha, include_self=include_self)
        return ctx.converted(folded, ctx.dtype)
    values = ctx.converted(source, ctx.dtype)
    if alpha != 1:
        factor, own = ctx.tensor(alpha, ctx.dtype).at(()), values
        values = replace(own, at=lambda i: ctx.applied("mul", own.at(i), factor), plain=False)
    if x.ndim == 0:
        x, values = x.viewed((1,), lambda _: ()), values.viewed((1,), lambda _: () if not source.ndim else (Const(0),))
    x, dim = ctx.converted(x, ctx.dtype), dim % x.ndim
    count = index.shape[0] if index.ndim else 1

    def hit(i: Index, r: Index) -> Expr:
        return Op("eq", (i[dim], ctx.place(index.at(r[: index.ndim]))))

    def given(i: Index, r: Index) -> Expr:
        return values.at((*i[:dim], r[0], *i[dim + 1 :]))

    return _finished(ctx, _Writes(ctx, x, (count,), hit, given).folded(reduce, include_self))


def _in_32_bits(ctx: Context, reduce: str) -> Context | None:
    """The context of the fold in int32, for narrower integers, which wrap around afterwards, and for conditions, which
    are true if what is folded is not 0; None: in the dtype itself."""
    if reduce not in _FOLDS:
        raise ctx.refused(f"with reduce={reduce!r}")
    narrow = ctx.dtype in NARROW_INTEGERS and reduce not in ("amax", "amin")
    if not narrow and ctx.dtype != "bool":
        return None
    if reduce == "mean":
        what = "conditions" if ctx.dtype == "bool" else ctx.dtype
        raise ctx.refused(f"for {what} with reduce='mean': convert to int32 or float32 before, with .int() or .float()")
    return replace(ctx, dtypes=("int32",))


@lowers("index_put", "_unsafe_index_put")
def index_put(ctx: Context, x: Value, indices: list[Value | None], values: Value, accumulate: bool = False) -> Value:
    """`x` after x[indices] = values, or x[indices] += values where equal positions add up."""
    if accumulate and (wide := _in_32_bits(ctx, "sum")):
        return ctx.converted(index_put(wide, x, indices, values, accumulate), ctx.dtype)
    x, values = ctx.converted(x, ctx.dtype), ctx.converted(values, ctx.dtype)
    if any(index is not None and index.dtype == "bool" for index in indices):
        return _masked_put(ctx, x, indices, values, accumulate)
    given = [d for d, index in enumerate(indices) if index is not None]
    tensors = [index for index in indices if index is not None]
    rank = max(t.ndim for t in tensors)
    common = tuple(
        max(t.shape[axis - rank + t.ndim] for t in tensors if axis - rank + t.ndim >= 0) for axis in range(rank)
    )
    wide = dict(zip(given, (ctx.reused(t).expanded(common) for t in tensors), strict=True))
    # As in a read, index tensors that are side by side stand where the first of them does, others in front.
    start = given[0] if given == list(range(given[0], given[-1] + 1)) else 0
    others = [n for d, n in enumerate(x.shape) if d not in wide]
    values = values.expanded((*others[:start], *common, *others[start:]))

    def hit(i: Index, r: Index) -> Expr:
        inner = r[: len(common)]
        whole = _all([Op("eq", (i[d], row(ctx, t.at(inner), x.shape[d], True))) for d, t in wide.items()])
        assert whole is not None
        return whole

    def taken(i: Index, r: Index) -> Expr:
        rest = [e for d, e in enumerate(i) if d not in wide]
        return values.at((*rest[:start], *r[: len(common)], *rest[start:]))

    writes = _Writes(ctx, x, common or (1,), hit, taken)
    return writes.folded("sum", True) if accumulate else writes.replaced()


def _masked_put(ctx: Context, x: Value, indices: list[Value | None], values: Value, accumulate: bool) -> Value:
    """x[mask] = values, of values that are the same wherever the mask holds."""
    mask, before = None, 0
    for index in indices:
        if index is None:
            before += mask is None
        elif mask is not None or index.dtype != "bool":
            raise ctx.refused("with a mask and further indices: write torch.where(mask, value, x)")
        else:
            mask = index
    assert mask is not None
    after = x.ndim - before - mask.ndim
    # Values have one dimension for the elements that the mask takes.
    if values.ndim > after and values.shape[-1 - after] != 1:
        raise ctx.refused("with a mask and a value for each element that it takes: write torch.where(mask, value, x)")
    values = values.expanded((*x.shape[:before], 1, *x.shape[x.ndim - after :]))

    def element(i: Index) -> Expr:
        end = before + mask.ndim
        own, new = x.at(i), values.at((*i[:before], Const(0), *i[end:]))
        return chosen(mask.at(i[before:end]), ctx.applied("add", own, new) if accumulate else new, own)

    return Value(x.shape, ctx.dtype, element)
