"""Tile expressions in Gluon: the Triton emitter's text, with an explicit layout for every vector."""

from __future__ import annotations

from typing import assert_never

from neptune_lab.errors import EmitError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import tile_dims
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.gather import diagonal_reads, gathered
from neptune_lab.htile_to_gluon.memory import load, vector
from neptune_lab.htile_to_gluon.rows import ROWS, part_of_store
from neptune_lab.htile_to_triton.context import ATOM
from neptune_lab.htile_to_triton.elementwise import elementwise
from neptune_lab.htile_to_triton.expression_text import (
    ExpressionText,
    cast,
    converted_number,
    literal_expression,
    literal_text,
    triton_dtype,
    with_dtype,
)
from neptune_lab.htile_to_triton.expressions import fold_function, reduced_in
from neptune_lab.wrapping import Doc, call, seq


def emit(ctx: GluonContext, expr: ir.TileExpr, columns: int) -> ExpressionText:
    """`expr` in Gluon.

    Args:
        columns: columns of the tile that it is a part of; for a vector of rows, of the leading product.

    Raises:
        EmitError: it has an operation that the form of match.py excludes, or reads a tile without a value.
    """
    match expr:
        case ir.Access(tensor=name):
            if ctx.program.tensor(name).space == "chip":
                return _chip(ctx, expr, columns)
            return ExpressionText(load(ctx, expr, columns))
        case ir.Cast(arg=ir.Literal(value=value), dtype=dtype):
            return literal_expression(converted_number(value, dtype), dtype)
        case ir.Cast(arg=arg, dtype=dtype):
            emitted = emit(ctx, arg, columns)
            return emitted if ctx.dtype(arg) == dtype else cast(emitted, dtype)
        case ir.Iota(index=index):
            return _iota(ctx, index, columns)
        case ir.Scalar(value=value):
            text, bracketed = ctx.index(value), ctx.index(value, ATOM)
            return ExpressionText(text, ATOM if text == bracketed else 0, python=True)
        case ir.Literal(value=value, dtype=dtype):
            return literal_expression(value, dtype)
        case ir.Elementwise(op="add", args=(ir.Elementwise(op="mul", args=(a, b)), c)) if ctx.fuses:
            return ExpressionText(
                call("gl.fma", *(with_dtype(emit(ctx, arg, columns), ctx.dtype(arg)) for arg in (a, b, c)))
            )
        case ir.Elementwise(args=args):
            return elementwise(ctx, expr, [emit(ctx, arg, columns) for arg in args])
        case ir.Reduce(op=op, arg=arg):
            return _reduce(ctx, op, arg)
        case ir.Gather():
            if expr in ctx.ahead:
                return ExpressionText(ctx.ahead[expr])
            return ExpressionText(gathered(ctx, expr, columns, emit))
        case ir.Permute() | ir.Grouped() | ir.Dot():
            raise EmitError(
                f"{type(expr).__name__} is not supported here by the Gluon emitter",
                help='compile with code=nl.CodeOptions(code="triton")',
            )
        case _:
            assert_never(expr)


def read_ahead(ctx: GluonContext, stmts: tuple[ir.Store, ...], rows: int, each: int = ROWS) -> None:
    """Starts what row work reads along diagonals, before it waits for a product."""
    ctx.ahead.clear()
    for stmt in stmts:
        ctx.node, ctx.origin = stmt.node_id, stmt.origin
        for read in diagonal_reads(part_of_store(stmt, rows, each)):
            if read not in ctx.ahead:
                name = ctx.name_for(("ahead", read.tensor), f"{read.tensor}_tile", ctx.scope)
                ctx.line(seq(f"{name} = ", emit(ctx, read, ctx.shape(read)[1]).doc))
                ctx.ahead[read] = name


def _chip(ctx: GluonContext, access: ir.Access, columns: int) -> ExpressionText:
    if access.tensor not in ctx.defined:
        raise EmitError(
            f"tile {access.tensor} is read where it has no value",
            help='compile with code=nl.CodeOptions(code="triton")',
        )
    name = ctx.tiles[access.tensor]
    if [isinstance(dim, ir.Slice) for dim in tile_dims(access.index)] != [True, False]:
        return ExpressionText(name)
    if columns != ctx.columns:  # every thread has its rows already, so no data moves
        name = f"gl.convert_layout({name}, {ctx.rows_layout(columns)}, assert_trivial=True)"
    return ExpressionText(f"{name}[:, None]")


def _iota(ctx: GluonContext, index: tuple[ir.Slice | ir.NewAxis, ...], columns: int) -> ExpressionText:
    dim, part = next((n, part) for n, part in enumerate(index) if isinstance(part, ir.Slice))
    is_columns = dim == 1
    name = vector(ctx, part, columns, is_columns=is_columns)
    if len(index) == 1:
        return ExpressionText(name)
    return ExpressionText(f"{name}[{'None, :' if is_columns else ':, None'}]")


def _reduce(ctx: GluonContext, op: str, arg: ir.TileExpr) -> ExpressionText:
    columns = ctx.shape(arg)[1]
    dtype = ctx.dtype(arg)
    wide = reduced_in(dtype)
    emitted = emit(ctx, arg, columns)
    emitted = emitted if wide == dtype else cast(emitted, wide)
    result: Doc = call(fold_function(ctx, op, wide), emitted.doc, "axis=1")
    if columns != ctx.columns:
        result = call("tl.convert_layout", result, ctx.rows_layout(), "assert_trivial=True")
    if dtype == "bool":
        return ExpressionText(seq("(", result, " != 0)"))
    return ExpressionText(result) if wide == dtype else cast(ExpressionText(result), dtype)


def whole_tile(ctx: GluonContext, expr: ir.TileExpr, shape: tuple[int, ...], dtype: str) -> Doc:
    """`expr` as a whole tile of `shape`, for a variable that later statements read."""
    columns = shape[1] if len(shape) == 2 else ctx.columns
    emitted = emit(ctx, expr, columns)
    if emitted.literal is not None:
        return full(ctx, shape, literal_text(emitted.literal.value, dtype), dtype)
    if emitted.python:
        emitted = cast(emitted, dtype)
    if ctx.shape(expr) != shape:
        # Adding a tile of zeros broadcasts and keeps the layout explicit.
        zeros = full(ctx, shape, literal_text(0, dtype), dtype)
        return seq(emitted.at(ATOM), " + ", zeros)
    return emitted.doc


def full(ctx: GluonContext, shape: tuple[int, ...], text: str, dtype: str) -> Doc:
    """A tile of one value."""
    if not shape:
        return f"tl.to_tensor({text})"
    layout = ctx.tile_layout(shape[1]) if len(shape) == 2 else ctx.rows_layout()
    extents = f"[{', '.join(map(str, shape))}]"
    return call("tl.full", extents, text, triton_dtype(dtype), f"layout={layout}")
