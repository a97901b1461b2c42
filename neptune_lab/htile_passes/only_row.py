"""Tiles of rows of which only the first counts, as of one query that matrix units multiply with others."""

from __future__ import annotations

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Interval, grid_env, interval
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import expressions, stores


def only_row(program: ir.Program, kernel: ir.Kernel) -> int:
    """How many rows the products of a kernel have, if only the first of them counts; else 0.

    Formal statement: each tensor outside of the chip that the kernel stores to has one element along the rows, at 0.
    No reduction and no product sums over a dimension of as many elements as there are rows, so whatever is computed at
    a row depends on that row alone, and what the others hold is not read by any other kernel.
    """
    every = tuple(stores(kernel.body))
    inside = [expr for store in every for expr in expressions(store)]
    counts = {shape_of(e.a, program)[-2] for e in inside if isinstance(e, ir.Dot)}
    if len(counts) != 1 or (rows := counts.pop()) == 1:
        return 0
    if any(_combines(expr, rows, program) for expr in inside):
        return 0
    stored = [s.target for s in every if program.tensor(s.target.tensor).space != "chip"]
    return rows if all(_stores_first(target, rows, program, kernel) for target in stored) else 0


def _combines(expr: ir.TileExpr, rows: int, program: ir.Program) -> bool:
    """Whether an expression sums over a dimension of so many elements."""
    if isinstance(expr, ir.Reduce):
        return shape_of(expr.arg, program)[expr.dim] == rows
    return isinstance(expr, ir.Dot) and shape_of(expr.a, program)[-1] == rows


def _stores_first(target: ir.Access, rows: int, program: ir.Program, kernel: ir.Kernel) -> bool:
    """Whether only the first of so many rows is within the tensor."""
    index = [part for part in target.index if not isinstance(part, ir.NewAxis)]
    shape = program.tensor(target.tensor).shape
    along = [(i, n) for i, n in zip(index, shape, strict=True) if isinstance(i, ir.Slice) and i.extent == rows]
    env = grid_env(kernel)
    return len(along) == 1 and all(n == 1 and interval(i.start, env) == Interval(0, 0) for i, n in along)


__all__ = ["only_row"]
