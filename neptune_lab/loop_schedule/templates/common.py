"""What whole schedules share: tile sizes that fit, the grid, and what stays on chip."""

from __future__ import annotations

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program, reads
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.schedule import Schedule


def tile_sizes(sch: Schedule, block: str, **wanted: int) -> dict[str, int]:
    """Tile sizes for the loops of `block` that it has, none larger than its loop.

    Rows of one iteration stay whole; columns are always tiled, since their outer loop is the one to fuse under.
    """
    sizes = {}
    for var, size in wanted.items():
        if f"{block}.{var}" in sch.loops(block):
            extent = tree.find_loop(sch.program, block, var)[1].extent
            if extent > 1 or var == "j":
                sizes[var] = min(size, extent)
    return sizes


def bind_grid(sch: Schedule, block: str, *, outside: str) -> str:
    """Binds the loops of `block` outside its loop `outside` to the grid, the innermost along x; the innermost one.

    A grid has three axes: where there are more loops, the outermost are fused.
    """
    names = [loop_ref(ref)[1] for ref in sch.loops(block)]
    grid = names[: names.index(outside)]
    if len(grid) > 3:
        fused = sch.fuse(block, *grid[: len(grid) - 2])
        grid = [loop_ref(fused)[1], *grid[-2:]]
    for var, axis in zip(reversed(grid), "xyz", strict=False):
        sch.bind(f"{block}.{var}", f"blockIdx.{axis}")
    return f"{block}.{grid[-1]}"


def launch_hints(sch: Schedule, block: str, num_warps: int | None, num_stages: int | None) -> None:
    """Notes num_warps and num_stages, where given, on the outermost loop of the kernel of `block`."""
    for key, value in (("num_warps", num_warps), ("num_stages", num_stages)):
        if value is not None:
            sch.annotate(sch.loops(block)[0], key, value)


def keep_on_chip(sch: Schedule) -> None:
    """Every internal buffer that a single kernel touches lives on chip."""
    for block in tree.blocks(sch.program):
        buffer = sch.program.buffer(block.writes)
        if buffer.name not in sch.program.params and buffer.scope == "global" and _one_kernel(sch.program, buffer.name):
            sch.set_scope(block.name, "local")


def _one_kernel(program: Program, buffer: str) -> bool:
    touching = [
        n
        for n, nest in enumerate(program.body)
        if any(b.writes == buffer or reads(b, buffer) for b in tree.blocks_under(nest))
    ]
    return len(touching) == 1
