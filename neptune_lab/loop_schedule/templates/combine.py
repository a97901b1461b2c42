"""The kernel that combines splits (paper, 4.3): its own tiles, as it has its own shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.nodes import Block, Var
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import Nest
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import bind_grid, extent_of, free_axis, note_refusal, tile_loops
from neptune_lab.loop_schedule.templates.fusing import fuse_after, own_loops, recompute_over_column, spread_again
from neptune_lab.loop_schedule.templates.knobs import Knobs

# Elements of all splits that a program combines at a time: 64 for each lane of four warps.
ELEMENTS = 8192
# Columns of an output that needs the combined values and runs along the whole column once more.
AGAIN = 4096


def combine(
    sch: Schedule, nest: Nest, knobs: Knobs, splits: int, later: frozenset[str]
) -> tuple[str, Callable[[], None]]:
    """The global halves, and what reads them, in a kernel of their own: a block of it, and what is left to do once all
    blocks stand where they will.

    A program combines at most `ELEMENTS` elements at a time: it has as few rows as that takes, and where one row is
    still more, its columns are shared out too, what is needed along all of them computed again by each.
    """
    folded = [b.name for b in tree.blocks(sch.definition) if b.name in (nest.first, *nest.chain)]
    halves = [name for name in folded if sch.has_block(name) and _is_global(sch, name)]
    anchor = halves[0]
    dims = dimensions(sch.definition)
    names_of = dims.all_of(tree.find_block(sch.definition, anchor)[1])
    first = tree.find_block(sch.definition, nest.first)[1]
    shape = [names_of[dims.of(first, name)] for name in nest.grid]
    tiled = [names_of[dims.of(first, nest.row)]] if nest.row is not None and nest.row_size is None else []
    kept = {dims.of(first, name) for name in nest.grid}
    blocks = {name: tree.find_block(sch.definition, name)[1] for name in halves}
    others = {
        name: [own for c, own in dims.all_of(block, "spatial").items() if c not in kept]
        for name, block in blocks.items()
    }
    sizes = {name: splits * prod(blocks[name].iter(own).extent for own in others[name]) for name in halves}
    widest = max(halves, key=lambda name: sizes[name])
    block_q = knobs.block_q
    while block_q > 1 and block_q * sizes[widest] > ELEMENTS:
        block_q = -(-block_q // 2)
    rows = {v: size for v in tiled if (size := min(block_q, extent_of(sch, anchor, v))) > 1}
    made = tile_loops(sch, anchor, rows) if rows else {}
    names = [loop_ref(ref)[1] for ref in sch.loops(anchor)]
    outer = [made.get(v, v) for v in shape]
    wide = blocks[widest] if others[widest] and sizes[widest] > 2 * ELEMENTS else None
    grid = bind_grid(sch, anchor, outside=names[len(outer)], axes=3 if wide is None else 2)
    if grid is not None:
        for name in halves[1:]:
            try:
                sch.fuse_under(name, grid)
            except ScheduleError as error:
                note_refusal(sch, f"{name} is combined in a kernel of its own: {error.reason}", error)
    again = fuse_after(sch, nest, anchor, grid, later)
    return anchor, partial(_share_out, sch, anchor, again, wide, others[widest], sizes[widest], knobs.block_kv)


def _share_out(
    sch: Schedule, anchor: str, again: tuple[str, ...], wide: Block | None, columns: list[str], size: int, block_kv: int
) -> None:
    """Columns on the grid: of outputs that run along the whole column once more, else of the widest half.

    Args:
        anchor: a block of the kernel.
        again: those outputs.
        wide: that half, where a row of it is more than a program should combine.
        columns: its iterations besides the grid's.
        size: elements of a row of it, in all splits.
    """
    axis = free_axis(sch, anchor)
    spread: list[str] = []
    for name in again:
        if not spread and axis is not None and (loop := spread_again(sch, name, AGAIN)) is not None:
            spread.append(loop)
        else:
            recompute_over_column(sch, name, block_kv)
    if not spread and axis is not None and wide is not None and (loop := _loop_of(sch, wide, columns[0])) is not None:
        each = size // wide.iter(columns[0]).extent
        spread += filter(None, [_spread(sch, loop, max(1, ELEMENTS // each))])
    for loop in spread:
        assert axis is not None
        sch.bind(loop, axis)


def _spread(sch: Schedule, loop: str, size: int) -> str | None:
    """The loop's tiles outermost, where that can be."""
    size = 1 << (size.bit_length() - 1)
    if extent_of(sch, *loop_ref(loop)) <= size:
        return None
    try:
        return sch.tile_outermost(loop, size)
    except ScheduleError as error:
        sch.remark(f"The kernel that combines {loop_ref(loop)[0]} keeps its columns together: {error.reason}")
        return None


def _loop_of(sch: Schedule, block: Block, iteration: str) -> str | None:
    """The loop of the block's iteration, where only the block is in it."""
    found = tree.find_block(sch.program, block.name)[1]
    binding = found.iter(iteration).binding
    own = {loop.var for loop in own_loops(sch, block.name)}
    return f"{block.name}.{binding.name}" if isinstance(binding, Var) and binding.name in own else None


def _is_global(sch: Schedule, name: str) -> bool:
    block = tree.find_block(sch.program, name)[1]
    return block.role is Role.GLOBAL and reducer_of(block) is not None
