"""Splits in parallel, then combined: FlashDecoding from attention (paper, Figure 3 and section 4.3)."""

from __future__ import annotations

from neptune_lab.loop_schedule.arguments import closed_arguments
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import all_or_nothing
from neptune_lab.loop_schedule.templates.config import PLACES, PerNest, SplitKConfig, TileConfig, config_of, with_sizes
from neptune_lab.loop_schedule.templates.nests import schedule_nests


@closed_arguments(PLACES)
@all_or_nothing
def split_k_update(
    sch: Schedule,
    config: TileConfig | None = None,
    *,
    block_q: PerNest = None,
    block_kv: PerNest = None,
) -> Schedule:
    """Splits of the columns (keys) in parallel, each rolling over its tiles; then a combining kernel. Returns `sch`.

    The kernel that combines has tiles and warps of its own, by its shape.

    Args:
        config: tile sizes, launch hints and the number of splits (`SplitKConfig`); what it leaves out is chosen by
            shape.
        block_q, block_kv: the two sizes that are given most, by name.

    Raises:
        ScheduleError: as `rolling_update`.
    """
    chosen = config_of("split_k_update", SplitKConfig, with_sizes(config, block_q, block_kv))
    schedule_nests(sch, chosen, split=True)
    return sch
