"""Views as maps of indices: nothing is copied, and a stage reads the element that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from neptune_lab.loop_ir.gradient_marks import stopped
from neptune_lab.loop_ir.nodes import Const, Expr, Op, add, mul
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.values import Index, Value


def view(ctx: Context, x: Value, shape: Sequence[int], index: Callable[[Index], Index]) -> Value:
    """`x` seen through `index`; what several operations read through it is computed before."""
    if ctx.users > 1:
        x = ctx.staged(x)
    return x.viewed(shape, index)


@lowers("permute")
def permute(ctx: Context, x: Value, dims: Sequence[int]) -> Value:
    """Dimensions in another order."""
    order = [d % x.ndim for d in dims]
    return view(ctx, x, ctx.shape, lambda i: tuple(i[order.index(d)] for d in range(x.ndim)))


@lowers("transpose.int")
def transpose(ctx: Context, x: Value, a: int, b: int) -> Value:
    """Two dimensions exchanged."""
    order = list(range(x.ndim))
    if order:
        order[a % x.ndim], order[b % x.ndim] = order[b % x.ndim], order[a % x.ndim]
    return permute(ctx, x, order)


@lowers("t")
def t(ctx: Context, x: Value) -> Value:
    """A matrix transposed."""
    return x if x.ndim < 2 else transpose(ctx, x, -2, -1)


@lowers("unsqueeze", "squeeze", "view.default", "_unsafe_view")
def reshape(ctx: Context, x: Value, *_: Any, **__: Any) -> Value:
    """The same elements, in the same order, in another shape."""
    own, shape = x.shape, ctx.shape
    groups = grouped(own, shape)

    def index(i: Index) -> Index:
        found: list[Expr] = []
        for (a, b), (c, d) in groups:
            sizes, target = own[a:b], shape[c:d]
            if sizes == target:
                found += i[c:d]
                continue
            position: Expr = Const(0)
            for n, e in zip(target, i[c:d], strict=True):
                position = add(mul(position, n), e) if n != 1 else position
            stride = 1
            split: list[Expr] = []
            for axis, n in reversed(list(enumerate(sizes))):
                if n == 1:
                    split.append(Const(0))
                    continue
                part = position if stride == 1 else Op("floordiv", (position, Const(stride)))
                first = all(m == 1 for m in sizes[:axis])
                split.append(part if first else Op("floormod", (part, Const(n))))
                stride *= n
            found += reversed(split)
        return tuple(ctx.stages.simplified(e) for e in found)

    return view(ctx, x, shape, index)


def grouped(own: Sequence[int], shape: Sequence[int]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The shortest runs of dimensions of both shapes that have as many elements, in order.

    >>> grouped((2, 6, 5), (2, 3, 2, 5))
    [((0, 1), (0, 1)), ((1, 2), (1, 3)), ((2, 3), (3, 4))]
    """
    groups = []
    a = c = 0
    while a < len(own) or c < len(shape):
        b, d = a, c
        left = right = 1
        while True:
            if left == right and (b > a or d > c):
                break
            if b < len(own) and (left <= right or d >= len(shape)):
                left *= own[b]
                b += 1
                if left == right and d == c and left == 1:
                    break
            elif d < len(shape):
                right *= shape[d]
                d += 1
        groups.append(((a, b), (c, d)))
        a, c = b, d
    return groups


@lowers("expand")
def expand(ctx: Context, x: Value, *_: Any, **__: Any) -> Value:
    """Broadcast to the result's shape."""
    x = ctx.staged(x) if ctx.users > 1 else x
    return x.expanded(ctx.shape)


@lowers("select.int")
def select(ctx: Context, x: Value, dim: int, index: int) -> Value:
    """One index of a dimension, which is dropped."""
    dim = dim % x.ndim
    at = Const(index % x.shape[dim])
    return view(ctx, x, ctx.shape, lambda i: (*i[:dim], at, *i[dim:]))


@lowers("slice.Tensor")
def slice_(
    ctx: Context, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    """x[start:end:step] along one dimension."""
    first, _, stride = slice(start, end, step).indices(x.shape[dim % x.ndim])
    return sliced(ctx, x, dim % x.ndim, first, stride)


def sliced(ctx: Context, x: Value, dim: int, first: int, step: int = 1) -> Value:
    """The elements first, first + step, … of a dimension, as many as the result's shape says."""

    def index(i: Index) -> Index:
        return (*i[:dim], add(mul(i[dim], step), Const(first)), *i[dim + 1 :])

    return view(ctx, x, ctx.shape, index)


@lowers("split.Tensor", "split_with_sizes")
def split(ctx: Context, x: Value, _: Any, dim: int = 0) -> tuple[Value, ...]:
    """Consecutive parts along a dimension."""
    dim = dim % x.ndim
    x = ctx.staged(x)
    parts, start = [], 0
    for shape in ctx.shapes:
        parts.append(x.viewed(shape, _shifted(dim, start)))
        start += shape[dim]
    return tuple(parts)


def _shifted(dim: int, by: int) -> Callable[[Index], Index]:
    return lambda i: (*i[:dim], add(i[dim], Const(by)), *i[dim + 1 :])


@lowers("unbind.int")
def unbind(ctx: Context, x: Value, dim: int = 0) -> tuple[Value, ...]:
    """Every index of a dimension, which is dropped."""
    dim = dim % x.ndim
    x = ctx.staged(x)
    return tuple(x.viewed(s, lambda i, n=n: (*i[:dim], Const(n), *i[dim:])) for n, s in enumerate(ctx.shapes))


@lowers("flip")
def flip(ctx: Context, x: Value, dims: Sequence[int]) -> Value:
    """Dimensions in reverse."""
    turned = {d % x.ndim for d in dims}

    def index(i: Index) -> Index:
        return tuple(Op("sub", (Const(x.shape[d] - 1), e)) if d in turned else e for d, e in enumerate(i))

    return view(ctx, x, ctx.shape, index)


@lowers("repeat")
def repeat(ctx: Context, x: Value, counts: Sequence[int]) -> Value:
    """The tensor, repeated along each dimension."""
    skipped = len(counts) - x.ndim

    def index(i: Index) -> Index:
        return tuple(
            e if counts[skipped + d] == 1 else Op("floormod", (e, Const(x.shape[d]))) for d, e in enumerate(i[skipped:])
        )

    return view(ctx, x, ctx.shape, index)


@lowers("repeat_interleave.self_int")
def repeat_interleave(ctx: Context, x: Value, repeats: int, dim: int | None = None, **_: Any) -> Value:
    """Each element of a dimension `repeats` times in a row."""
    if dim is None:
        own, dim = x.shape, 0
        x = x.viewed((math.prod(own),), lambda i: _place_of(i[0], own))
    dim = dim % x.ndim
    return view(ctx, x, ctx.shape, lambda i: (*i[:dim], Op("floordiv", (i[dim], Const(repeats))), *i[dim + 1 :]))


def _place_of(position: Expr, shape: Sequence[int]) -> Index:
    """The index of the element at a position of a tensor that is flattened."""
    found: list[Expr] = []
    for axis, size in enumerate(shape):
        rest = math.prod(shape[axis + 1 :])
        part = Op("floordiv", (position, Const(rest))) if rest > 1 else position
        found.append(Op("floormod", (part, Const(size))) if axis else part)
    return tuple(found)


@lowers("diagonal")
def diagonal(ctx: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal of two dimensions, as the last one."""
    a, b = dim1 % x.ndim, dim2 % x.ndim

    def index(i: Index) -> Index:
        others, last = iter(i[:-1]), i[-1]
        row, column = add(last, Const(max(0, -offset))), add(last, Const(max(0, offset)))
        return tuple(row if d == a else column if d == b else next(others) for d in range(x.ndim))

    return view(ctx, x, ctx.shape, index)


@lowers("alias", "detach", "clone")
def alias(ctx: Context, x: Value, **_: Any) -> Value:
    """The tensor itself."""
    return x


@lowers("stop_gradient")
def stop_gradient(ctx: Context, x: Value) -> Value:
    """The tensor, whose derivative is 0."""
    return replace(x, at=lambda i: stopped(x.at(i))) if "float" in x.dtype else x


@lowers("unfold")
def unfold(ctx: Context, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of a dimension, each in a new last dimension."""
    dim = dim % x.ndim
    return view(ctx, x, ctx.shape, lambda i: (*i[:dim], add(mul(i[dim], step), i[-1]), *i[dim + 1 : -1]))


@lowers("dropout")
def dropout(ctx: Context, x: Value, p: float, train: bool) -> Value:
    """The tensor itself, outside of training."""
    if train and p:
        raise ctx.refused(f"in training, with p={p}")
    return x
