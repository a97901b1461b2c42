"""Tile expressions in Triton: names and permutations of tiles, casts, reductions, dots.

Dtypes are exact: where Triton would promote (a quotient of float16, a reduction of bfloat16, a function with a
literal), the conversion is explicit.  Triton's interpreter computes bfloat16 on raw bits, so bfloat16 is computed in
float32 everywhere.
"""

from __future__ import annotations

import math
from typing import assert_never

from neptune_lab.errors import EmitError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import interval
from neptune_lab.htile.shapes import identity_of
from neptune_lab.htile.tile_bounds import tile_interval
from neptune_lab.htile.walk import region, same_index, tile_dims
from neptune_lab.htile_to_triton.addresses import inside, is_wide, subscript, times_step, vector
from neptune_lab.htile_to_triton.context import ADD, ATOM, COMPARE, MUL, Context, sizes_of
from neptune_lab.htile_to_triton.conversions import converted
from neptune_lab.htile_to_triton.elementwise import elementwise
from neptune_lab.htile_to_triton.expression_text import (
    ExpressionText,
    cast,
    converted_number,
    full,
    literal_expression,
    with_dtype,
)
from neptune_lab.htile_to_triton.memory import Condition, conjunction, load_once
from neptune_lab.strict.dtypes import EIGHTS, FLOATS
from neptune_lab.strict.values import INT32_MAX
from neptune_lab.wrapping import Doc, call, flat, seq

# The fewest elements that a product of floats of 8 bits sums over: one instruction takes 32 bytes.
LEAST_OF_EIGHTS = 32


def emit(ctx: Context, expr: ir.TileExpr, order: tuple[int, ...] | None = None) -> ExpressionText:
    """`expr` in Triton, its dimensions in `order` (None: as they are).

    Raises:
        EmitError: it reads a tile that has no value in the current scope, or reduces with a reducer that has no
            identity on its dtype.
    """
    if order is not None and order == tuple(range(len(order))):
        order = None
    match expr:
        case ir.Access(tensor=name):
            if ctx.program.tensor(name).space == "chip":
                return _chip(ctx, expr, order)
            return ExpressionText(load_once(ctx, expr, order or tuple(range(len(ctx.shape(expr))))))
        case ir.Cast(arg=ir.Literal(value=value), dtype=dtype):
            return literal_expression(converted_number(value, dtype), dtype)
        case ir.Cast(arg=arg, dtype=dtype):
            emitted = emit(ctx, arg, order)
            return converted(ctx, emitted, ctx.dtype(arg), dtype)
        case ir.Permute(arg=arg, order=own):
            return emit(ctx, arg, own if order is None else tuple(own[n] for n in order))
        case _ if order is not None:
            return _permuted(emit(ctx, expr), order)
        case ir.Gather(tensor=name, indices=indices):
            return _gather(ctx, name, indices)
        case ir.Iota(index=index):
            return _iota(ctx, index)
        case ir.Scalar(value=value):
            return _scalar(ctx, value)
        case ir.Literal(value=value, dtype=dtype):
            return literal_expression(value, dtype)
        case ir.Elementwise(op="where", args=(condition, ir.Gather() as read, ir.Literal() as other)) if _reads_as_zero(
            other
        ) and ctx.shape(read) == ctx.shape(expr):
            return _gather(ctx, read.tensor, read.indices, emit(ctx, condition))
        case ir.Elementwise(op="where", args=(condition, ir.Access() as read, ir.Literal() as other)) if _reads_as_zero(
            other
        ) and _is_end_of(ctx, condition, read, ctx.shape(expr)):
            return emit(ctx, read)
        case ir.Elementwise():
            return elementwise(ctx, expr, [emit(ctx, arg) for arg in expr.args])
        case ir.Grouped(arg=arg):
            return ExpressionText(
                call("tl.reshape", emit(ctx, arg).doc, f"[{', '.join(map(str, ctx.padding.shape(ctx.shape(expr))))}]")
            )
        case ir.Reduce():
            return _reduce(ctx, expr)
        case ir.Dot():
            return _dot(ctx, expr)
        case _:
            assert_never(expr)


def _permuted(emitted: ExpressionText, order: tuple[int, ...]) -> ExpressionText:
    if len(order) == 2:
        return ExpressionText(call("tl.trans", emitted.doc))
    return ExpressionText(call("tl.permute", emitted.doc, f"({', '.join(map(str, order))})"))


def _chip(ctx: Context, access: ir.Access, order: tuple[int, ...] | None) -> ExpressionText:
    name = access.tensor
    if name not in ctx.defined:
        raise EmitError(
            f"tile {name} is read in {ctx.node} where it has no value: in Triton, a variable that a loop defines is "
            "not visible after it",
            node=ctx.node,
            help=f"store an initial value of {name} before the loop",
        )
    kept = [isinstance(dim, ir.Slice) for dim in tile_dims(access.index)]
    order = tuple(range(len(kept))) if order is None else order
    # The variable's own dimensions, in the order in which the result has them.
    own = [sum(kept[:dim]) for dim in order if kept[dim]]
    emitted = ExpressionText(ctx.tiles[name])
    if own != sorted(own):
        emitted = _permuted(emitted, tuple(own))
    place = subscript(len(order), *(n for n, dim in enumerate(order) if kept[dim]))
    return ExpressionText(seq(emitted.doc, place)) if place else emitted


def _iota(ctx: Context, index: tuple[ir.Slice | ir.NewAxis, ...]) -> ExpressionText:
    rank = len(index)
    dim, part = next((n, part) for n, part in enumerate(index) if isinstance(part, ir.Slice))
    if part.extent == 1:
        ones = ", ".join("1" for _ in range(rank))
        return ExpressionText(call("tl.full", f"[{ones}]", ctx.index(part.start), "tl.int32"))
    return ExpressionText(f"{vector(ctx, part)}{subscript(rank, dim)}")


def _reads_as_zero(literal: ir.Literal) -> bool:
    """Whether a literal is what a load gives for an element that its mask leaves out: 0 and not -0."""
    return literal.value == 0 and math.copysign(1.0, literal.value) > 0


def _is_end_of(ctx: Context, condition: ir.TileExpr, read: ir.Access, shape: tuple[int, ...]) -> bool:
    """Whether a condition says no more than that the elements of a load exist."""
    # Formal statement: element x of dimension n is at start + x; the condition is start + x < size, of the same start,
    # extent and dimension, and the size is the tensor's there.  `load` gives 0 where it is false.
    match condition:
        case ir.Elementwise(op="lt", args=(ir.Iota(index=index), ir.Literal() | ir.Scalar() as end)):
            pass
        case _:
            return False
    tensor = ctx.program.tensor(read.tensor)
    dims = tile_dims(read.index)
    if tensor.space == "chip" or ctx.shape(read) != shape or len(index) != len(dims):
        return False
    n, part = next((n, part) for n, part in enumerate(index) if isinstance(part, ir.Slice))
    loaded = dims[n]
    if not isinstance(loaded, ir.Slice) or not same_index(part, loaded) or part.extent == 1:
        return False
    sliced = [s for s, entry in zip(sizes_of(tensor), region(read), strict=True) if isinstance(entry, ir.Slice)]
    size = sliced[sum(isinstance(entry, ir.Slice) for entry in dims[:n])]
    return same_index(size, ir.Int(int(end.value)) if isinstance(end, ir.Literal) else end.value)


def _gather(
    ctx: Context, name: str, indices: tuple[ir.TileExpr, ...], condition: ExpressionText | None = None
) -> ExpressionText:
    """A load by one pointer per element; an element outside the tensor, or where `condition` is false, is not loaded
    and reads as 0."""
    tensor = ctx.program.tensor(name)
    known = tensor.sizes is None
    wide = is_wide(tensor) if known else tensor.strides is not None or ctx.most(sizes_of(tensor)) > INT32_MAX
    address = [ctx.pointers[name]]
    conditions: list[Condition] = [] if condition is None else [(flat(condition.doc), condition.level)]
    for n, (index, size) in enumerate(zip(indices, sizes_of(tensor), strict=True)):
        place, low, high = _place(ctx, name, index, size)
        if place != "0":
            place = f"tl.cast({place}, tl.int64)" if wide else place
            address.append(place + times_step(ctx, tensor, n))
        conditions += [] if low else [(f"{place} >= 0", COMPARE)]
        conditions += [] if high else [(f"{place} < {ctx.index(size, COMPARE + 1)}", COMPARE)]
    args: list[Doc] = [" + ".join(address)]
    if conditions:
        args += [f"mask={conjunction(conditions)}", f"other={'0.0' if tensor.dtype in FLOATS else '0'}"]
    return ExpressionText(call("tl.load", *args))


def _place(ctx: Context, name: str, index: ir.TileExpr, size: ir.IndexExpr) -> tuple[str, bool, bool]:
    """An index of a gather as an atom, whether it is never negative, and whether it is always before the end."""
    if isinstance(index, ir.Scalar):
        inside = ctx.interval(index.value).lo >= 0, not ctx.passes(index.value, 1, size)
        return ctx.index(index.value, ATOM), *inside
    text = ctx.name_for(("index", name), f"{name}_at", ctx.scope)
    ctx.line(seq(f"{text} = ", emit(ctx, index).doc))
    if isinstance(index, ir.Iota):
        part = next(part for part in index.index if isinstance(part, ir.Slice))
        ends = not ctx.padding.is_padded(part.extent) and not ctx.passes(part.start, part.extent, size)
        return text, ctx.interval(part.start).lo >= 0, ends
    found = [(tile_interval(index, env, ctx.padding.extent), interval(size, env).lo) for env in ctx.envs]
    low = all(bounds is not None and bounds.lo >= 0 for bounds, _ in found)
    return text, low, all(bounds is not None and bounds.hi < least for bounds, least in found)


def _scalar(ctx: Context, value: ir.IndexExpr) -> ExpressionText:
    text, bracketed = ctx.index(value), ctx.index(value, ATOM)
    return ExpressionText(text, ATOM if text == bracketed else 0, python=True)


def identity(op: ir.Reducer, dtype: str) -> float | int:
    """The identity of a reducer.

    Raises:
        EmitError: the reducer has none on this dtype.
    """
    value = identity_of(op, dtype)
    if value is None:
        raise EmitError(f"no identity of reducer {op!r} on {dtype}", help="fold in float32: convert the term")
    return value


def fill_padding(
    ctx: Context, expr: ir.TileExpr, emitted: ExpressionText, dim: int, value: float | int | bool, dtype: str
) -> ExpressionText:
    """`emitted`, the text of `expr` as `dtype`, with `value` in the lanes that padding added to dimension `dim`."""
    shape = ctx.shape(expr)
    if not ctx.padding.is_padded(shape[dim]) or (value == 0 and ctx.padding.zero_filled(expr, dim)):
        return emitted
    keep = f"{inside(ctx, shape[dim])}{subscript(len(shape), dim)}"
    return ExpressionText(call("tl.where", keep, emitted.doc, with_dtype(literal_expression(value, dtype), dtype)))


def fold_function(ctx: Context, op: str, dtype: str) -> str:
    """The function that reduces a tile with `op` ("sum", "max" or "min"); extrema of floats keep NaN."""
    if op in ("max", "min") and dtype in FLOATS:
        ctx.helper(f"_{op}imum")
        return ctx.helper(f"_{op}")
    return f"tl.{op}"


def reduced_in(dtype: str) -> str:
    """The dtype in which a tile of `dtype` is reduced."""
    return {"float16": "float32", "bfloat16": "float32", "bool": "int32"}.get(dtype, dtype)


def _reduce(ctx: Context, expr: ir.Reduce) -> ExpressionText:
    if (number := _folded_at_once(ctx, expr)) is not None:
        return number
    dtype = ctx.dtype(expr.arg)
    wide = reduced_in(dtype)
    emitted = emit(ctx, expr.arg)
    emitted = emitted if wide == dtype else cast(emitted, wide)
    emitted = fill_padding(ctx, expr.arg, emitted, expr.dim, identity(expr.op, wide), wide)
    result = _fold(ctx, expr.op, wide, emitted.doc, expr.dim)
    if dtype == "bool":
        return ExpressionText(seq(result.doc, " != 0"), COMPARE)
    return result if dtype in ("float32", "float64", "int32", "int64") else cast(result, dtype)


def _fold(ctx: Context, op: ir.Reducer, dtype: str, tile: Doc, dim: int) -> ExpressionText:
    if op == "prod":
        return ExpressionText(call("tl.reduce", tile, str(dim), ctx.helper("_product")))
    return ExpressionText(call(fold_function(ctx, op, dtype), tile, f"axis={dim}"))


def _folded_at_once(ctx: Context, expr: ir.Reduce) -> ExpressionText | None:
    """A tile that `expr` folds to one number, one dimension after the other: all elements in a row, folded once.

    Triton 3.7.1 fails on the former where products are in tensor memory: its choice of their layouts takes the last
    fold for one along a dimension of a matrix.

    Returns:
        The number; None on other GPUs, of other tiles, or if a dimension is folded in another way or rounded between.
    """
    arg: ir.TileExpr = expr
    while isinstance(arg, ir.Reduce) and arg.op == expr.op:
        arg = arg.arg
    shape, dtype = ctx.shape(arg), ctx.dtype(arg)
    if not ctx.options.target.tensor_memory or ctx.shape(expr) or len(shape) < 2 or reduced_in(dtype) != dtype:
        return None
    emitted = emit(ctx, arg)
    for dim in range(len(shape)):
        emitted = fill_padding(ctx, arg, emitted, dim, identity(expr.op, dtype), dtype)
    elements = math.prod(ctx.padding.shape(shape))
    return _fold(ctx, expr.op, dtype, call("tl.reshape", emitted.doc, f"[{elements}]"), 0)


def _dot(ctx: Context, expr: ir.Dot) -> ExpressionText:
    """A product of tiles: by the matrix unit, in float32 by elements if an extent is 1, with what one dtype needs."""
    rank = len(ctx.shape(expr.a))
    dtype = ctx.dtype(expr.a)
    left = fill_padding(ctx, expr.a, emit(ctx, expr.a), rank - 1, 0, dtype)
    right = fill_padding(ctx, expr.b, emit(ctx, expr.b), rank - 2, 0, dtype)
    m, k, n = ctx.padding.dot_extents(expr)
    acc = None if expr.acc is None or _is_zero(expr.acc) else emit(ctx, expr.acc)
    if 1 in (m, k, n):
        left, right = (converted(ctx, side, dtype, "float32") for side in (left, right))
        return _small_dot(left, right, rank, k, acc)
    if dtype in EIGHTS and k < LEAST_OF_EIGHTS:
        left, right = (converted(ctx, side, dtype, "float16") for side in (left, right))
    elif dtype in EIGHTS:
        # The GPU adds products of 8 bits to an accumulator of fewer digits than float32: only one tile's are.
        name = ctx.helper("_from_e4m3" if dtype == "float8_e4m3fn" else "_from_e5m2").removeprefix("_from_")
        product = ExpressionText(call(ctx.helper(f"_dot_of_{name}"), left.doc, right.doc))
        return _plus(acc, product)
    args: list[Doc] = [left.doc, right.doc]
    shape = ctx.padding.shape(ctx.shape(expr))
    scalar_acc = acc is not None and expr.acc is not None and ctx.shape(expr.acc) == ()
    if dtype == "bfloat16":
        zeros = full(shape, 0.0, "float32")
        product = ExpressionText(call(ctx.helper("_dot"), *args, zeros if acc is None or scalar_acc else acc.doc))
    else:
        if acc is not None and not scalar_acc:
            args.append(seq("acc=", acc.doc))
        if dtype == "float32":
            args.append('input_precision="ieee"')
        product = ExpressionText(call("tl.dot", *args))
    return _plus(acc, product) if acc is not None and scalar_acc else product


def _small_dot(
    left: ExpressionText, right: ExpressionText, rank: int, k: int, acc: ExpressionText | None
) -> ExpressionText:
    """A product with an extent of 1, by multiplying and summing, since `tl.dot` needs extents of 16."""
    if k == 1:
        return _plus(acc, ExpressionText(seq(left.at(MUL), " * ", right.at(MUL + 1)), MUL))
    columns = subscript(rank + 1, *range(rank))
    rows = subscript(rank + 1, *range(rank - 2), rank - 1, rank)
    product = seq(left.at(ATOM), columns, " * ", right.at(ATOM), rows)
    return _plus(acc, ExpressionText(call("tl.sum", product, f"axis={rank - 1}")))


def _plus(acc: ExpressionText | None, product: ExpressionText) -> ExpressionText:
    return product if acc is None else ExpressionText(seq(acc.at(ADD), " + ", product.at(ADD + 1)), ADD)


def _is_zero(expr: ir.TileExpr) -> bool:
    return isinstance(expr, ir.Literal) and expr.value == 0


def whole_tile(ctx: Context, value: ir.TileExpr, shape: tuple[int, ...], dtype: str) -> Doc:
    """`value` as a whole tile of `shape` (without padding), for a variable that later statements read."""
    emitted = emit(ctx, value)
    padded = ctx.padding.shape(shape)
    if emitted.literal is not None:
        return full(padded, emitted.literal.value, dtype)
    if emitted.python:
        emitted = cast(emitted, dtype)
    if ctx.shape(value) != shape:
        return call("tl.broadcast_to", emitted.doc, f"[{', '.join(map(str, padded))}]")
    return emitted.doc
