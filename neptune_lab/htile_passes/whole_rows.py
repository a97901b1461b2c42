"""Kernels that reduce and map whole rows: what passes that cut rows into parts ask of them."""

from __future__ import annotations

from collections.abc import Iterator

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import (
    expressions,
    read_tensors,
    reads,
    subexpressions,
    tile_dims,
    written_tensors,
)
from neptune_lab.htile_passes.cut_long_rows import Pieces


def only_rows(program: ir.Program, kernel: ir.Kernel, row: Pieces) -> bool:
    """Whether a kernel does nothing but reduce and map its rows.

    Formal statement: each statement makes one number of a row or the row, from numbers of the row and from elements at
    the same position of rows and vectors, of which it may reduce all; numbers stay on chip or are stored, rows are
    stored; and no statement reads what the kernel stores.  So a part of what is made is made of parts, and a reduction
    of a row is that of the reductions of its parts.
    """
    own = [stmt for stmt in kernel.body if isinstance(stmt, ir.Store)]
    if len(own) < len(kernel.body) or not all(_of_rows(store, program, row) for store in own):
        return False
    if not any(is_reduction(expr, program, row) for store in own for expr in expressions(store)):
        return False
    chip = {tensor.name for tensor in program.tensors if tensor.space == "chip"}
    used = set[str]().union(*map(read_tensors, own))
    made = [store.target.tensor for store in own if store.target.tensor in chip]
    return not used & (written_tensors(kernel) - chip) and len(made) == len(set(made))


def _of_rows(store: ir.Store, program: ir.Program, row: Pieces) -> bool:
    if store.mask is not None or any(not row.is_row(i) or i.start != ir.Int(0) for i in slices(store)):
        return False
    every = [store.target, *reads(store), *(e for e in expressions(store) if isinstance(e, ir.Iota))]
    if any(len(tile_dims(e.index)) > 1 for e in every):
        return False
    rows = [e for e in every if isinstance(e, ir.Access) and tile_dims(e.index)]
    if any(program.tensor(a.tensor).space == "chip" or not row.is_row(a.index[-1]) for a in rows):
        return False
    along = any(True for _ in slices(store))
    for expr in expressions(store):
        if along and isinstance(expr, ir.Dot | ir.Gather | ir.Permute):
            return False
        if isinstance(expr, ir.Reduce) and not _may_reduce(expr, program, row):
            return False
    return True


def _may_reduce(expr: ir.Reduce, program: ir.Program, row: Pieces) -> bool:
    """Whether the reductions of parts are numbers of 32 bits, which programs pass on at once with a mark."""
    inside = any(isinstance(node, ir.Reduce) for node in subexpressions(expr.arg))
    return is_reduction(expr, program, row) and not inside and dtype_of(expr.arg, program) == "float32"


def is_reduction(expr: ir.TileExpr, program: ir.Program, row: Pieces) -> bool:
    """Whether an expression is a reduction of the row."""
    return isinstance(expr, ir.Reduce) and shape_of(expr.arg, program) == (row.extent,)


def slices(store: ir.Store) -> Iterator[ir.Slice]:
    """Every slice of a statement's accesses and positions."""
    for expr in (store.target, *expressions(store)):
        if isinstance(expr, ir.Access | ir.Iota):
            yield from (index for index in expr.index if isinstance(index, ir.Slice))


__all__ = ["is_reduction", "only_rows", "slices"]
