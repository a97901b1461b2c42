"""Reads along diagonals, such as `bias[h, q - kv + S]`: an element per pair of positions, through pointers.

Threads of a tile read few elements of such a tensor, several times each: the assembler loads each once, since the
address of an element is a position of the thread and a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine, expression
from neptune_lab.htile.bounds import interval
from neptune_lab.htile.tile_bounds import tile_interval
from neptune_lab.htile.walk import names_of_index, subexpressions
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.memory import vector
from neptune_lab.htile_to_triton.addresses import is_wide, times_step
from neptune_lab.htile_to_triton.context import ADD, MUL, sizes_of
from neptune_lab.htile_to_triton.expression_text import ExpressionText
from neptune_lab.strict.dtypes import HALVES
from neptune_lab.wrapping import Doc, call, flat

DTYPES = (*HALVES, "float32")
Emit: TypeAlias = Callable[[GluonContext, ir.TileExpr, int], ExpressionText]


def is_along_diagonals(program: ir.Program, read: ir.Gather) -> bool:
    """Whether a read is of floats, at one sum or difference of a row's and a column's position.

    Formal statement: one index is Iota(rows) ± Iota(columns), or the reverse, and the others are the same for the whole
    tile; no strides, steps or sizes at the launch make its address more than 32 bits.
    """
    tensor = program.tensor(read.tensor)
    plain = tensor.sizes is None and tensor.strides is None and tensor.steps is None and not is_wide(tensor)
    pairs = [index for index in read.indices if not isinstance(index, ir.Scalar)]
    return plain and tensor.dtype in DTYPES and len(pairs) == 1 and _is_difference(pairs[0])


def _is_difference(index: ir.TileExpr) -> bool:
    match index:
        case ir.Elementwise(op="add" | "sub", args=(ir.Iota(index=a), ir.Iota(index=b)), dtype="int32"):
            return {_axis(a), _axis(b)} == {0, 1}
        case _:
            return False


def _axis(index: tuple[ir.Slice | ir.NewAxis, ...]) -> int | None:
    """The dimension of a tile of two that an index runs along."""
    if len(index) != 2:
        return None
    return next(n for n, entry in enumerate(index) if isinstance(entry, ir.Slice))


def diagonal_reads(store: ir.Store) -> tuple[ir.Gather, ...]:
    """What a statement reads along diagonals, once each."""
    return tuple(dict.fromkeys(e for e in subexpressions(store.value) if isinstance(e, ir.Gather)))


def gathered(ctx: GluonContext, read: ir.Gather, columns: int, emit: Emit) -> Doc:
    """The load of `read`; an element outside the tensor is not loaded and reads as 0.

    A pointer for each row, and a distance for each column: so the address of an element differs from that of another of
    the thread by a constant.

    Args:
        columns: columns of the tile.
        emit: of the expressions module.
    """
    tensor = ctx.program.tensor(read.tensor)
    parts, names = [ctx.pointers[read.tensor]], frozenset[str]()
    conditions: list[str] = []
    moved = distance = ""
    for n, (index, size) in enumerate(zip(read.indices, sizes_of(tensor), strict=True)):
        step = times_step(ctx, tensor, n)
        if isinstance(index, ir.Scalar):
            parts.append(f"+ {ctx.index(index.value, MUL)}{step}")
            names |= names_of_index(index.value)
            low, high = ctx.interval(index.value).lo >= 0, not ctx.passes(index.value, 1, size)
            place = ctx.index(index.value, ADD)
        else:
            assert isinstance(index, ir.Elementwise)
            for sign, iota in zip(("+", "+" if index.op == "add" else "-"), index.args, strict=True):
                assert isinstance(iota, ir.Iota)
                (part,) = (i for i in iota.index if isinstance(i, ir.Slice))
                if _axis(iota.index) == 1:
                    once, moved, distance = _distance(ctx, part, sign, columns, step)
                    parts.append(once)
                else:
                    parts.append(f"{sign} {vector(ctx, part, columns, is_columns=False)}{step}")
                    names |= names_of_index(part.start)
            found = [(tile_interval(index, env), interval(size, env).lo) for env in ctx.envs]
            low = all(bounds is not None and bounds.lo >= 0 for bounds, _ in found)
            high = all(bounds is not None and bounds.hi < least for bounds, least in found)
            place = "" if low and high else flat(emit(ctx, index, columns).doc)
        conditions += [] if low else [f"({place} >= 0)"]
        conditions += [] if high else [f"({place} < {ctx.index(size, ADD)})"]
    text = " ".join(parts)
    row = ctx.define(("diagonals", text), f"{read.tensor}_row", names, text)
    args: list[Doc] = [f"({row} {moved})[:, None] + {distance}[None, :]"]
    if conditions:
        args += [f"mask={' & '.join(conditions)}", "other=0.0"]
    return call("gl.load", *args)


def _distance(ctx: GluonContext, part: ir.Slice, sign: str, columns: int, step: str) -> tuple[str, str, str]:
    """How far the pointers of rows are moved once, how far for each tile's columns, and the distance of each column.

    Distances are not negative and the same for all tiles.  With those of positions, the compiler keeps a pointer for
    each element through the loop: attention of width 128 under a causal mask spills 288 bytes then, and none so.
    """
    lanes = vector(ctx, ir.Slice(ir.Int(0), part.extent, part.axis), columns, is_columns=True)
    form = affine(part.start)
    start = ctx.index(expression(form + -form.constant), MUL)
    once = form.constant
    if sign == "-":
        once += part.extent - 1
        lanes = f"({part.extent - 1} - {lanes})"
    return f"{sign} {once}{step}", f"{sign} {start}{step}", f"{lanes}{step}"


__all__ = ["diagonal_reads", "gathered", "is_along_diagonals"]
