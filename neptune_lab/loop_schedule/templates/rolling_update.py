"""Everything in one rolling loop: FlashAttention from attention, the online sum from softmax (paper, Figure 13)."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import bind_grid, keep_on_chip, launch_hints, tile_sizes


def rolling_update(
    sch: Schedule, block_q: int = 64, block_kv: int = 64, num_warps: int | None = None, num_stages: int | None = None
) -> Schedule:
    """One program a `block_q` rows (queries), rolling over tiles of `block_kv` columns (keys). Returns `sch`."""
    if sch.has_block("qk"):
        first, chain = "qk", ("s_max", "s_sum", "acc")
    elif sch.has_block("s_max"):
        first, chain = "s_max", ("s_sum",)
    else:
        raise ScheduleError(f"no recipe for {sch.operator.name}", help="write the schedule step by step")
    sch.tile(first, **tile_sizes(sch, first, i=block_q, j=block_kv))
    grid = bind_grid(sch, first, outside="j0")
    if sch.has_block("score"):
        sch.reverse_compute_at("score", f"{first}.j0")
    for block in chain:
        sch.rolling_update(block, f"{first}.j0")
    if sch.has_block("out"):
        sch.reverse_compute_at("out", grid)
    sch.retire_tags("s_max")
    for block in chain[chain.index("s_sum") :]:
        sch.decompose_reduction(block, f"{block}.j0")
    keep_on_chip(sch)
    launch_hints(sch, first, num_warps, num_stages)
    return sch
