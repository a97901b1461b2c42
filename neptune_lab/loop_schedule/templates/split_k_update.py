"""Parallel splits that a second kernel combines: FlashDecoding from attention (paper, Figure 3 and section 4.3)."""

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
    """Parallel splits of the columns (keys), each with a rolling loop over its tiles, and a kernel that combines them.

    The kernel that combines the splits has tiles and warps of its own, chosen by its shape.

    Args:
        sch: a schedule without steps; the template applies its steps to it.
        config: tile sizes, launch hints and the number of splits (`SplitKConfig`); sizes that it leaves open are chosen
            by shape.
        block_q: rows per program, a size of `TileConfig` that can be given by name.
        block_kv: columns per tile, likewise.

    Returns:
        `sch`.

    Raises:
        ScheduleError: the definition has no such schedule, or `SplitKConfig` does not take a size; `sch` is unchanged.
    """
    chosen = config_of("split_k_update", SplitKConfig, with_sizes(config, block_q, block_kv))
    schedule_nests(sch, chosen, split=True)
    return sch
