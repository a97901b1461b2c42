"""The kernel that combines splits (paper, 4.3). It has a shape of its own, and so tiles of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.nodes import Var
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import NestPlan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import bind_grid, extent_of, free_axis, note_refusal, tile_loops
from neptune_lab.loop_schedule.templates.fusing import (
    fuse_epilogue,
    own_loops,
    second_pass_in_order,
    second_pass_on_grid,
)
from neptune_lab.loop_schedule.templates.nest_shape import NestConfig
from neptune_lab.power_of_two import power_of_two

# Elements, of all splits together, that a program combines at a time: 64 per lane of four warps.
ELEMENTS = 8192
# So many are 64 per lane of one warp, which waits for no other: decoding 64 heads in 8 over 32768 keys takes 36.8 us on
# an H200 in place of 37.6, on another one 38.4 in place of 39.1.
OF_ONE_WARP = 2048
# Columns per program of an output that needs the combined values and has the reduce axis (a second pass).
SECOND_PASS_COLUMNS = 4096


def combine(
    sch: Schedule, nest: NestPlan, config: NestConfig, splits: int, later: frozenset[str]
) -> tuple[str, Callable[[], None], int | None]:
    """Schedules the global reductions of a split nest, and what reads them, as one kernel.

    A program combines at most `ELEMENTS` elements at a time. It has as many rows as that allows. If a single row has
    more elements, its columns are tiled and bound to the grid too; each program then computes again what needs all
    columns.

    Args:
        sch: the schedule, in which the nest is split.
        nest: the nest.
        config: its tile sizes; those of the combining kernel are chosen here.
        splits: number of splits.
        later: blocks that other nests will contain.

    Returns:
        A block of the kernel; the step that tiles its columns, to be taken after all nests are scheduled; and the warps
        of a program, None: the emitter's default.
    """
    folded = [b.name for b in tree.blocks(sch.base) if b.name in (nest.first, *nest.reductions)]
    combined = [name for name in folded if sch.has_block(name) and _is_global(sch, name)]
    anchor = combined[0]
    dims = dimensions(sch.base)
    names_of = dims.all_of(tree.find_block(sch.base, anchor)[1])
    first = tree.find_block(sch.base, nest.first)[1]
    parallel = [names_of[dims.of(first, name)] for name in nest.parallel_axes]
    tiled = [names_of[dims.of(first, nest.row_axis)]] if nest.row_axis is not None and nest.row_size is None else []
    shared = {dims.of(first, name) for name in nest.parallel_axes}
    blocks = {name: tree.find_block(sch.base, name)[1] for name in combined}
    columns = {
        name: [own for c, own in dims.all_of(block, "spatial").items() if c not in shared]
        for name, block in blocks.items()
    }
    row_elements = {name: splits * prod(blocks[name].iter(own).extent for own in columns[name]) for name in combined}
    widest = max(combined, key=lambda name: row_elements[name])
    block_q = config.block_q
    while block_q > 1 and block_q * row_elements[widest] > ELEMENTS:
        block_q = -(-block_q // 2)
    rows = {v: size for v in tiled if (size := min(block_q, extent_of(sch, anchor, v))) > 1}
    made = tile_loops(sch, anchor, rows) if rows else {}
    names = [loop_ref(ref)[1] for ref in sch.loops(anchor)]
    outer = [made.get(v, v) for v in parallel]
    wide = _WideRows(widest, columns[widest][0], row_elements[widest]) if columns[widest] else None
    wide = wide if wide is not None and wide.elements > 2 * ELEMENTS else None
    grid = bind_grid(sch, anchor, outside=names[len(outer)], axes=3 if wide is None else 2)
    if grid is not None:
        for name in combined[1:]:
            try:
                sch.fuse_under(name, grid)
            except ScheduleError as error:
                note_refusal(sch, f"{name} is combined in a kernel of its own: {error.reason}", error)
    second_passes = fuse_epilogue(sch, nest, anchor, grid, later)
    width = prod(blocks[widest].iter(own).extent for own in columns[widest])
    elements = prod(rows.values()) * power_of_two(splits) * power_of_two(width)
    warps = 1 if columns[widest] and elements <= OF_ONE_WARP and not second_passes else None
    return anchor, partial(_tile_columns, sch, anchor, second_passes, wide, config.block_kv), warps


@dataclass(frozen=True, slots=True)
class _WideRows:
    """A global reduction with more elements per row than a program should combine.

    Args:
        block: the reduction.
        column: its outermost axis that is not parallel.
        elements: elements of a row, of all splits together.
    """

    block: str
    column: str
    elements: int


def _tile_columns(
    sch: Schedule, anchor: str, second_passes: tuple[str, ...], wide: _WideRows | None, block_kv: int
) -> None:
    """Tiles columns of the combining kernel and binds the tiles to the grid: of a second pass, else of `wide`.

    Args:
        anchor: a block of the kernel.
        second_passes: its outputs along the reduce axis.
        block_kv: columns per tile of second passes that are not on the grid.
    """
    grid_axis = free_axis(sch, anchor)
    on_grid: str | None = None
    for name in second_passes:
        if on_grid is None and grid_axis is not None:
            on_grid = second_pass_on_grid(sch, name, SECOND_PASS_COLUMNS)
            if on_grid is not None:
                continue
        second_pass_in_order(sch, name, block_kv)
    if on_grid is None and grid_axis is not None and wide is not None:
        on_grid = _tile_wide_rows(sch, wide)
    if on_grid is not None and grid_axis is not None:
        sch.bind(on_grid, grid_axis)


def _tile_wide_rows(sch: Schedule, wide: _WideRows) -> str | None:
    """Moves the loop over tiles of the rows' columns outermost: the new loop; None if that is refused or not needed."""
    loop = _own_loop(sch, wide)
    if loop is None:
        return None
    extent = extent_of(sch, *loop_ref(loop))
    largest = max(1, ELEMENTS // (wide.elements // extent))
    size = 1 << (largest.bit_length() - 1)
    if extent <= size:
        return None
    try:
        return sch.tile_outermost(loop, size)
    except ScheduleError as error:
        sch.remark(
            f"The kernel that combines {wide.block} computes all columns of a row in one program: {error.reason}"
        )
        return None


def _own_loop(sch: Schedule, wide: _WideRows) -> str | None:
    """The loop along the columns of `wide`, if it contains no other block."""
    binding = tree.find_block(sch.program, wide.block)[1].iter(wide.column).binding
    own = {loop.var for loop in own_loops(sch, wide.block)}
    return f"{wide.block}.{binding.name}" if isinstance(binding, Var) and binding.name in own else None


def _is_global(sch: Schedule, name: str) -> bool:
    block = tree.find_block(sch.program, name)[1]
    return block.role is Role.GLOBAL and reducer_of(block) is not None
