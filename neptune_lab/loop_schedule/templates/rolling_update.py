"""Everything in one rolling loop: FlashAttention from attention, the online sum from softmax (paper, Figure 13)."""

from __future__ import annotations

from neptune_lab.loop_schedule.arguments import closed_arguments
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import all_or_nothing
from neptune_lab.loop_schedule.templates.config import PLACES, PerNest, TileConfig, config_of, with_sizes
from neptune_lab.loop_schedule.templates.nests import schedule_nests


@closed_arguments(PLACES)
@all_or_nothing
def rolling_update(
    sch: Schedule,
    config: TileConfig | None = None,
    *,
    block_q: PerNest = None,
    block_kv: PerNest = None,
) -> Schedule:
    """One program `block_q` rows (queries), rolling over tiles of `block_kv` columns (keys). Returns `sch`.

    Each nest that `plan` finds becomes a kernel.  A reduction that cannot be fused into its nest (the algebra has no
    repair term, or it needs a complete value) starts a nest of its own; a remark says why.  A nest whose column is one
    tile, because `block_kv` is as long or because it is long rows that fit a program, is held whole: nothing rolls.

    Args:
        config: tile sizes and launch hints; what it leaves out is chosen by shape (`default_knobs`).
        block_q, block_kv: the two sizes of `TileConfig` that are given most, by name.

    Raises:
        ScheduleError: the definition has no such schedule, or a size is not what `TileConfig` takes; the schedule is
            as it was.
    """
    chosen = config_of("rolling_update", TileConfig, with_sizes(config, block_q, block_kv))
    schedule_nests(sch, chosen, split=False)
    return sch
