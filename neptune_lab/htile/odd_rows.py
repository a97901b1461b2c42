"""Rows of an odd number of elements: every other one begins beside each larger unit of memory, so that lanes load one
element of a row at a time."""

from __future__ import annotations

from collections.abc import Iterator

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import reads


def row_tiles(program: ir.Program, kernel: ir.Kernel) -> Iterator[ir.Access]:
    """The tiles along rows and vectors that statements outside of loops read and store, outside of the chip."""
    for stmt in kernel.body:
        if isinstance(stmt, ir.Store):
            for access in (stmt.target, *reads(stmt)):
                if len(shape_of_access(access)) == 1 and program.tensor(access.tensor).space != "chip":
                    yield access


def has_odd_rows(program: ir.Program, kernel: ir.Kernel) -> bool:
    """Whether all rows that a kernel reads and stores have one odd length, and it takes them at fixed places."""
    tiles = [*row_tiles(program, kernel)]
    lengths = {tensor.shape[-1] for access in tiles if len((tensor := program.tensor(access.tensor)).shape) > 1}
    fixed = all(
        isinstance(index, ir.Slice)
        and isinstance(index.start, ir.Int)
        and program.tensor(access.tensor).strides is None
        for access in tiles
        for index in access.index[-1:]
    )
    return fixed and len(lengths) == 1 and all(length % 2 for length in lengths)


__all__ = ["has_odd_rows", "row_tiles"]
