"""All reductions in one rolling loop: FlashAttention from attention, online softmax from softmax (paper, Figure 13)."""

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
    """One program per `block_q` rows (queries), with a rolling loop over tiles of `block_kv` columns (keys).

    Each nest that `plan` finds becomes a kernel.  A reduction that cannot be fused into its nest, because the algebra
    finds no repair term or the reduction needs a complete value, starts a nest of its own; a remark says why.  If one
    tile holds the whole reduce axis of a nest, because `block_kv` is as large or because the rows are long but fit a
    program, nothing rolls.

    Args:
        sch: a schedule without steps; the template applies its steps to it.
        config: tile sizes and launch hints; sizes that it leaves open are chosen by shape (`default_config`).
        block_q: rows per program, a size of `TileConfig` that can be given by name.
        block_kv: columns per tile, likewise.

    Returns:
        `sch`.

    Raises:
        ScheduleError: the definition has no such schedule, or `TileConfig` does not take a size; `sch` is unchanged.
    """
    chosen = config_of("rolling_update", TileConfig, with_sizes(config, block_q, block_kv))
    schedule_nests(sch, chosen, split=False)
    return sch
