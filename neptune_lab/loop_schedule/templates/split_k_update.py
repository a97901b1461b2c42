"""Splits in parallel, then combined: FlashDecoding from attention (paper, Figure 3 and section 4.3)."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import bind_grid, keep_on_chip, launch_hints, tile_sizes


def split_k_update(
    sch: Schedule, block_q: int = 64, block_kv: int = 64, num_warps: int | None = None, num_stages: int | None = None
) -> Schedule:
    """Splits of `block_kv` columns (keys), each in `block_q` rows a program; then a combining kernel. Returns `sch`."""
    if sch.has_block("qk"):
        first, chain, last = "qk", ("s_max", "s_sum", "acc"), "out"
    elif sch.has_block("s_max"):
        first, chain, last = "s_max", ("s_sum",), "s_sum"
    else:
        raise ScheduleError(f"no recipe for {sch.operator.name}", help="write the schedule step by step")
    sch.tile(first, **tile_sizes(sch, first, i=block_q, j=block_kv))
    if sch.has_block("score"):
        sch.reverse_compute_at("score", f"{first}.j0")
    for block in chain:
        sch.split_k_update(block, f"{first}.j0")
    local = first if sch.has_block("qk") else "s_max_local"
    bind_grid(sch, local, outside=sch.loops(local)[sch.loops(local).index(f"{local}.j0") + 1].split(".")[1])
    if rows := tile_sizes(sch, last, i=block_q):
        sch.tile(last, **rows)
    names = [loop.split(".")[1] for loop in sch.loops(last)]
    grid = bind_grid(sch, last, outside=names[names.index("i0" if rows else "i") + 1])
    for block in ("acc", "s_sum", "s_max"):
        if sch.has_block(block) and block != last:
            sch.compute_at(block, grid)
    keep_on_chip(sch)
    launch_hints(sch, local, num_warps, num_stages)
    return sch
