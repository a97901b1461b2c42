"""Everything in one rolling loop: FlashAttention from attention, the online sum from softmax (paper, Figure 13)."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_schedule.arguments import check_options
from neptune_lab.loop_schedule.plan import Nest, plan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import (
    all_or_nothing,
    alone_in_order,
    bind_grid,
    check_plan,
    finish,
    fuse_after,
    fuse_before,
    join,
    planned_later,
    retire_all,
    start_contraction,
    start_outside,
    tile_contraction,
    tile_nest,
)


@all_or_nothing
def rolling_update(
    sch: Schedule, block_q: int = 64, block_kv: int = 64, num_warps: int | None = None, num_stages: int | None = None
) -> Schedule:
    """One program `block_q` rows (queries), rolling over tiles of `block_kv` columns (keys). Returns `sch`.

    Each nest that `plan` finds becomes a kernel.  A reduction that cannot be fused into its nest (the algebra has no
    repair term, or it needs a complete value) starts a nest of its own; a remark says why.
    """
    sizes = {"block_q": block_q, "block_kv": block_kv, "num_warps": num_warps, "num_stages": num_stages}
    check_options("rolling_update", rolling_update, sizes)
    nests = plan(sch.program)
    check_plan(sch, nests)
    loops: list[str] = []
    contractions: list[str] = []
    while len(loops) < len(nests):
        nests, loop, contraction = roll_nest(sch, nests, len(loops), block_q, block_kv)
        loops.append(loop)
        contractions += [contraction] if contraction else []
    # TVM moves no block any more once a value is written in two places, so this waits until all stand where they will.
    retire_all(sch)
    for loop in loops:
        start_outside(sch, loop)
        alone_in_order(sch, loop)
    for contraction in contractions:
        start_contraction(sch, contraction)
    finish(sch, block_q, block_kv, num_warps, num_stages)
    return sch


def roll_nest(
    sch: Schedule, nests: tuple[Nest, ...], n: int, block_q: int, block_kv: int
) -> tuple[tuple[Nest, ...], str, str | None]:
    """Schedules nest number `n`: all nests, with new ones behind it for reductions that could not be fused into it, and
    the rolling loop of this one, and the loop of its long contraction, if it has one."""
    nest = nests[n]
    loop = tile_nest(sch, nest, block_q, block_kv)
    contraction = tile_contraction(sch, nest, loop.partition(".")[2])
    grid = bind_grid(sch, nest.first, outside=loop.partition(".")[2])
    join(sch, nest, loop)
    for done, block in enumerate(nest.chain):
        try:
            sch.rolling_update(block, loop)
        except ScheduleError as error:
            sch.remark(f"{block} starts a loop of its own: {error.reason}")
            nests = (*nests[: n + 1], *plan(sch.definition, nest.chain[done:]), *nests[n + 1 :])
            break
    fuse_before(sch, nest, grid)
    fuse_after(sch, nest.first, grid, block_kv, planned_later(nests, n))
    return nests, loop, contraction
