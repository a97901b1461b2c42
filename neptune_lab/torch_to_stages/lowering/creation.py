"""Tensors that are made from indices and constants: arange, full, eye, and the triangles of a tensor."""

from __future__ import annotations

from typing import Any

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op, add, mul
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.masks import chosen
from neptune_lab.torch_to_stages.values import Index, Value, constant, narrowed, rounded_number, wrapped


@lowers("arange")
def arange(ctx: Context, *limits: float, **_: Any) -> Value:
    """start, start + step, …: the index itself, so that a comparison of two of them is a mask."""
    start, step = (limits[0] if len(limits) > 1 else 0), (limits[2] if len(limits) > 2 else 1)
    dtype = ctx.dtype
    if "int" in dtype:
        first, step = int(start), int(step)
        ends = first, first + (ctx.shape[0] - 1) * step
        if all(-(2**31) <= end < 2**31 for end in ends):
            own = "int64" if all(wrapped(end, dtype) == end for end in ends) else dtype
            return Value(ctx.shape, dtype, lambda i: narrowed(add(mul(i[0], step), Const(first)), own), plain=True)
        factor, offset = Const(step, "int64"), Const(first, "int64")
        return Value(
            ctx.shape, dtype, lambda i: Op("add", (Op("mul", (Cast("int64", i[0]), factor)), offset)), plain=True
        )

    def element(i: Index) -> Expr:
        value = ctx.as_dtype(i[0], dtype)
        if step != 1:
            value = Op("mul", (value, constant(step, dtype).at(())))
        return value if start == 0 else Op("add", (value, constant(start, dtype).at(())))

    return Value(ctx.shape, dtype, element, plain=True)


@lowers("full", "full_like", "scalar_tensor", "new_full")
def full(ctx: Context, *args: Any, **_: Any) -> Value:
    """One number, repeated."""
    number = args[0] if ctx.name == "scalar_tensor" else args[2] if ctx.name == "new_full" else args[1]
    if isinstance(number, Value):
        raise ctx.refused("with a tensor as the number")
    return constant(rounded_number(number, ctx.dtype), ctx.dtype, ctx.shape)


@lowers("ones", "ones_like", "new_ones")
def ones(ctx: Context, *_: Any, **__: Any) -> Value:
    """Ones."""
    return constant(1, ctx.dtype, ctx.shape)


@lowers("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty")
def zeros(ctx: Context, *_: Any, **__: Any) -> Value:
    """Zeros; what `empty` holds is not defined, and zeros will do."""
    return constant(0, ctx.dtype, ctx.shape)


@lowers("eye")
def eye(ctx: Context, *_: Any, **__: Any) -> Value:
    """Ones on the diagonal."""
    one, zero = constant(1, ctx.dtype).at(()), constant(0, ctx.dtype).at(())
    return Value(ctx.shape, ctx.dtype, lambda i: Op("select", (Op("eq", i), one, zero)))


@lowers("tril", "triu")
def triangle(ctx: Context, x: Value, diagonal: int = 0) -> Value:
    """The elements below or above a diagonal, and 0 elsewhere; of ones, a mask."""
    name = "le" if ctx.name == "tril" else "ge"
    zero = constant(0, x.dtype).at(())

    def element(i: Index) -> Expr:
        inside = Op(name, (i[-1], add(i[-2], Const(diagonal))))
        value = x.at(i)
        if isinstance(value, Const) and value.dtype == "bool":
            return inside if value.value else value
        return chosen(inside, value, zero)

    return Value(x.shape, x.dtype, element)


@lowers("cat")
def cat(ctx: Context, tensors: list[Value], dim: int = 0) -> Value:
    """Tensors one after the other along a dimension."""
    dim = dim % len(ctx.shape)
    parts = [ctx.converted(t, ctx.dtype) for t in tensors if 0 not in t.shape]

    def element(i: Index) -> Expr:
        start = sum(p.shape[dim] for p in parts[:-1])
        value = parts[-1].at((*i[:dim], add(i[dim], Const(-start)), *i[dim + 1 :]))
        for part in reversed(parts[:-1]):
            start -= part.shape[dim]
            own = part.at((*i[:dim], add(i[dim], Const(-start)), *i[dim + 1 :]))
            value = Op("select", (Op("lt", (i[dim], Const(start + part.shape[dim]))), own, value))
        return value

    return Value(ctx.shape, ctx.dtype, element)


@lowers("stack")
def stack(ctx: Context, tensors: list[Value], dim: int = 0) -> Value:
    """Tensors along a new dimension."""
    dim = dim % len(ctx.shape)
    parts = [ctx.converted(t, ctx.dtype) for t in tensors]

    def element(i: Index) -> Expr:
        inner = (*i[:dim], *i[dim + 1 :])
        value = parts[-1].at(inner)
        for n, part in reversed(list(enumerate(parts[:-1]))):
            value = Op("select", (Op("eq", (i[dim], Const(n))), part.at(inner), value))
        return value

    return Value(ctx.shape, ctx.dtype, element)


@lowers("constant_pad_nd")
def pad(ctx: Context, x: Value, widths: list[int], value: float = 0.0) -> Value:
    """Elements added around a tensor; a negative width takes some away."""
    before = {x.ndim - 1 - n: widths[2 * n] for n in range(len(widths) // 2)}
    fill = ctx.element(value).at(())

    def element(i: Index) -> Expr:
        moved = tuple(add(e, Const(-before.get(d, 0))) for d, e in enumerate(i))
        inside: Expr | None = None
        for d, e in enumerate(moved):
            for name, limit in (("ge", 0), ("lt", x.shape[d])):
                if d in before:
                    test = Op(name, (e, Const(limit)))
                    inside = test if inside is None else Op("and", (inside, test))
        return x.at(moved) if inside is None else Op("select", (inside, x.at(moved), fill))

    return Value(ctx.shape, x.dtype, element)


@lowers("copy")
def copy(ctx: Context, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """`source` in the shape and dtype of `x`: what is left of a write to a part of a tensor."""
    return ctx.converted(source, ctx.dtype).expanded(ctx.shape)


@lowers("select_scatter")
def select_scatter(ctx: Context, x: Value, source: Value, dim: int, index: int) -> Value:
    """`x` with one index of a dimension replaced by `source`."""
    dim, source = dim % x.ndim, ctx.converted(source, ctx.dtype)
    place = Const(index % x.shape[dim])

    def element(i: Index) -> Expr:
        return Op("select", (Op("eq", (i[dim], place)), source.at((*i[:dim], *i[dim + 1 :])), x.at(i)))

    return Value(ctx.shape, ctx.dtype, element)


@lowers("slice_scatter")
def slice_scatter(
    ctx: Context, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    """`x` with x[start:end:step] of a dimension replaced by `source`."""
    dim, source = dim % x.ndim, ctx.converted(source, ctx.dtype)
    first, last, _ = slice(start, end).indices(x.shape[dim])

    def element(i: Index) -> Expr:
        inside = Op("and", (Op("ge", (i[dim], Const(first))), Op("lt", (i[dim], Const(last)))))
        position = add(i[dim], Const(-first))
        if step != 1:
            inside = Op("and", (inside, Op("eq", (Op("floormod", (position, Const(step))), Const(0)))))
            position = Op("floordiv", (position, Const(step)))
        return Op("select", (inside, source.at((*i[:dim], position, *i[dim + 1 :])), x.at(i)))

    return Value(ctx.shape, ctx.dtype, element)
