"""What kernels for all sizes do with programs of tiles: how large sizes may be, and what the record shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from neptune_lab.errors import TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile import sizes as htile_sizes
from neptune_lab.htile.walk import evaluate, is_bounded_by_data, names_of_index
from neptune_lab.htile_passes.skip_tiles_by_data import MOST_TILES
from neptune_lab.htile_passes.skip_tiles_by_list import MOST_LISTED

# The largest value of a size that no tile cuts: the most programs along the second and the third axis of a grid.
LARGEST_UNCUT = 65_535


def within_grids(program: ir.Program) -> ir.Program:
    """`program` with sizes that no tile cuts so small that the second and third axes of grids, which may be products of
    them, have no more programs than a GPU launches."""
    axes = [axis.size for kernel in program.kernels for axis in kernel.grid[1:] if axis.size is not None]
    sizes = {size.name: size.most for size in program.sizes}
    for axis in axes:
        while evaluate(axis, sizes) > LARGEST_UNCUT:
            name = max(names_of_index(axis), key=sizes.__getitem__)
            sizes[name] //= 2
            if not sizes[name]:
                return program  # its emitter says why
    return replace(program, sizes=tuple(replace(size, most=sizes[size.name]) for size in program.sizes))


def most_tiles(program: ir.Program) -> int:
    """The most tiles of a loop that data bounds (`skip_any_tiles_by_data`) or lists (`skip_any_tiles_by_list`); 0 if it
    does for none."""
    loops = [stmt for kernel in program.kernels for stmt in kernel.body if isinstance(stmt, ir.For)]
    if any(loop.listed is not None for loop in loops):
        return MOST_LISTED
    return MOST_TILES if any(is_bounded_by_data(loop, program) for loop in loops) else 0


def launched_as(first: ir.Program, program: ir.Program) -> ir.Program:
    """`program` with the warps and stages of `first`, which may be chosen by the number of rows or columns."""
    if len(program.kernels) != len(first.kernels):
        return program
    pairs = zip(first.kernels, program.kernels, strict=True)
    return replace(program, kernels=tuple(replace(k, num_warps=f.num_warps, num_stages=f.num_stages) for f, k in pairs))


def joined_or_first(programs: list[ir.Program], joined: Callable[[list[ir.Program]], ir.Program]) -> ir.Program:
    """For the record: a program before the last pass need not be one tree at all samples."""
    try:
        return joined(programs)
    except TileError:
        return programs[0]


def sized(program: ir.Program) -> list[ir.IndexExpr]:
    """The expressions of sizes in a program, in order, but for strides, which differ with the numbers of heads."""
    names = {size.name for size in program.sizes}
    plain = replace(program, tensors=tuple(replace(tensor, steps=None) for tensor in program.tensors))
    return list(htile_sizes.expressions(plain, names))


__all__ = [
    "LARGEST_UNCUT",
    "joined_or_first",
    "launched_as",
    "most_tiles",
    "sized",
    "within_grids",
]
