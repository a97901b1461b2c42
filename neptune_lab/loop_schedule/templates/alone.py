"""One stage as one kernel, whatever it reads: what everything that is not fused falls back to."""

from __future__ import annotations

from math import prod

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Var, variables
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import is_product
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import extent_of, put_outermost, run_in_order, tile_loops

# Elements of a tile that is computed at a time, and of one side of a matrix product's tile.
ELEMENTS, SIDE = 4096, 64
# Programs along the second and third axis of a grid, at most (CUDA).
LARGEST_AXIS = 65535


def one_kernel(sch: Schedule, name: str) -> Schedule:
    """The stage `name`, a nest of its own, as a kernel: tiles that fit, the rest of its loops on the grid or in order.

    So every stage can be written, if slowly.
    """
    _, block, loops = tree.find_block(sch.program, name)
    folded = {v for it in block.iters if it.kind == "reduce" for v in variables(it.binding)}
    sizes = _tile(block, {loop.var: loop.extent for loop in loops}, folded)
    # What is not folded is always tiled, so that there is a loop for the grid; one program of one tile is one too.
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


def _tile(block: Block, extents: dict[str, int], folded: set[str]) -> dict[str, int]:
    """The loops that are dimensions of the tile, and its sizes: of what is folded the innermost loop, then the two
    innermost others."""
    own = [it.binding.name for it in block.iters if isinstance(it.binding, Var)]
    inner = [v for v in reversed(own) if extents[v] > 1]
    product = is_product(block) and reducer_of(block) == "sum"
    order = [*(v for v in inner if v in folded), *(v for v in inner if v not in folded)]
    sizes: dict[str, int] = {}
    kept = 0
    for v in order:
        if v in folded and any(u in folded for u in sizes):
            continue  # one loop is folded in the tile, the others in order
        limit = SIDE if product else ELEMENTS // prod(sizes.values())
        size = min(extents[v], limit)
        if size > 1 and kept < 2:
            sizes[v] = size
            kept += v not in folded
    return sizes


def _bind(sch: Schedule, name: str, loops: list[str]) -> None:
    """The loops on the grid, the innermost along x; the outermost made one where there are more than three, and all
    of them where an axis would be too long for CUDA's."""
    extents = [extent_of(sch, name, v) for v in loops]
    whole = len(loops) > 1 and max(extents[:-1]) > LARGEST_AXIS
    together = len(loops) if whole else len(loops) - 2
    if together > 1:
        loops = [loop_ref(sch.fuse(name, *loops[:together]))[1], *loops[together:]]
    for var, axis in zip(reversed(loops), "xyz", strict=False):
        sch.bind(f"{name}.{var}", f"blockIdx.{axis}")


__all__ = ["one_kernel"]
