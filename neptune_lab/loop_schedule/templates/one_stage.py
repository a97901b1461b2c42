"""One stage as one kernel: the fallback for every stage that is not fused."""

from __future__ import annotations

from math import prod

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Var
from neptune_lab.loop_ir.products import is_product
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.walks import loads, variables
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import extent_of, put_outermost, run_in_order, tile_loops

# The most elements of a tile, and the most along each axis of the tile of a matrix product, or of a transposition.
ELEMENTS, SIDE = 4096, 64
# Tiles of fewer elements keep a GPU idle.
FEW = 512
# The most programs along the second and the third axis of a grid (CUDA).
LARGEST_AXIS = 65535


def schedule_stage(sch: Schedule, name: str, elements: int = ELEMENTS, side: int | None = None) -> Schedule:
    """Schedules the stage `name`, which is alone in its nest, as one kernel.

    Its innermost loops are tiled; of its other loops, the parallel ones are bound to the grid, and those that it folds
    over run in order.  This works for every stage, but the kernel may be slow.

    Args:
        sch: the schedule.
        name: the stage.
        elements: the most of a tile, unless it is a product's.
        side: the most along each axis of a tile, which then does not depend on how long the others are.

    Returns:
        `sch`.

    Raises:
        ScheduleError: a step is refused.
    """
    _, block, loops = tree.find_block(sch.program, name)
    folded = {v for it in block.iters if it.kind == "reduce" for v in variables(it.binding)}
    extents = {loop.var: loop.extent for loop in loops}
    if side is None:
        sizes = _tile(block, extents, folded, elements)
    else:
        sizes = {v: min(extents[v], side) for v in tile_axes(block, extents)}
    # Parallel loops are always tiled, so that there is a loop to bind to the grid, even if it has one iteration.
    cut = {v: size for v, size in sizes.items() if v not in folded or size < extent_of(sch, name, v)}
    made = tile_loops(sch, name, cut) if cut else {}
    around = [v for v in (loop.var for loop in loops) if v not in sizes or v in cut]
    grid = [made.get(v, v) for v in around if v not in folded]
    in_order = [made.get(v, v) for v in around if v in folded]
    put_outermost(sch, name, *grid, *in_order)
    _bind(sch, name, grid)
    if in_order:
        sch.decompose_reduction(name, f"{name}.{in_order[0]}")
        for var in reversed(in_order):
            run_in_order(sch, name, var)
    return sch


def _tile(block: Block, extents: dict[str, int], folded: set[str], elements: int) -> dict[str, int]:
    """The loops that are dimensions of the tile, and their sizes: the innermost loop that the block folds over, and its
    two innermost parallel loops; of a transposition, the two loops along which memory is read and written."""
    inner = _inner(block, extents)
    across = None if folded else _read_along(block, inner)
    if across is not None and extents[inner[0]] * extents[across] >= FEW:
        side = min(extents[inner[0]], SIDE)
        other = min(extents[across], ELEMENTS // side)
        return {inner[0]: min(extents[inner[0]], ELEMENTS // other), across: other}
    product = is_product(block) and reducer_of(block) == "sum"
    order = [*(v for v in inner if v in folded), *(v for v in inner if v not in folded)]
    sizes: dict[str, int] = {}
    kept = 0
    for v in order:
        if v in folded and any(u in folded for u in sizes):
            continue  # a tile folds over one loop; the others run in order
        limit = SIDE if product else elements // prod(sizes.values())
        size = min(extents[v], limit)
        if size > 1 and kept < 2:
            sizes[v] = size
            kept += v not in folded
    return sizes


def tile_axes(block: Block, extents: dict[str, int]) -> tuple[str, ...]:
    """The loops that are dimensions of the tile of a block that folds over none.

    Args:
        block: with a store in each iteration.
        extents: of the loops around it.

    Returns:
        The innermost first: that along which it writes, and that along which it reads, else the next one.
    """
    inner = _inner(block, extents)
    across = _read_along(block, inner)
    return tuple(inner[:2]) if across is None else (inner[0], across)


def _inner(block: Block, extents: dict[str, int]) -> list[str]:
    """The block's loops of more than one iteration, the innermost first."""
    own = [it.binding.name for it in block.iters if isinstance(it.binding, Var)]
    return [v for v in reversed(own) if extents[v] > 1]


def _read_along(block: Block, inner: list[str]) -> str | None:
    """The loop whose neighbouring iterations read neighbours in memory, if they do not write neighbours: those of the
    largest tensor that is read so.  A tile along one of both loops alone would take a whole line of memory for each
    element that it reads or writes.

    Args:
        inner: the block's loops (`_inner`); it writes along the first.
    """
    loop_of = {it.name: it.binding.name for it in block.iters if isinstance(it.binding, Var)}
    found: dict[str, int] = {}
    for read in loads(block.body.value):
        last = read.indices[-1] if read.indices else None
        along = loop_of.get(last.name) if isinstance(last, Var) else None
        steps = {loop_of.get(name) for index in read.indices[:-1] for name in variables(index)}
        if along in inner[1:] and inner[0] in steps:
            found[along] = max(found.get(along, 0), len(steps))
    return max(found, key=lambda loop: found[loop], default=None)


def _bind(sch: Schedule, name: str, loops: list[str]) -> None:
    """Binds the loops to the grid, the innermost to x. If there are more than three, the outermost are fused; if an
    axis would be too long for CUDA, all are."""
    extents = [extent_of(sch, name, v) for v in loops]
    too_long = len(loops) > 1 and max(extents[:-1]) > LARGEST_AXIS
    fused = len(loops) if too_long else len(loops) - 2
    if fused > 1:
        loops = [loop_ref(sch.fuse(name, *loops[:fused]))[1], *loops[fused:]]
    for var, axis in zip(reversed(loops), "xyz", strict=False):
        sch.bind(f"{name}.{var}", f"blockIdx.{axis}")


__all__ = ["schedule_stage", "tile_axes"]
