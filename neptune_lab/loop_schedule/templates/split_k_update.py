"""Splits in parallel, then combined: FlashDecoding from attention (paper, Figure 3 and section 4.3)."""

from __future__ import annotations

from neptune_lab.loop_schedule.arguments import check_options
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import all_or_nothing
from neptune_lab.loop_schedule.templates.knobs import Options, PerNest
from neptune_lab.loop_schedule.templates.nests import schedule_nests
from neptune_lab.target import DEFAULT


@all_or_nothing
def split_k_update(
    sch: Schedule,
    block_q: PerNest = None,
    block_kv: PerNest = None,
    block_out: PerNest = None,
    splits: PerNest = None,
    num_warps: PerNest = None,
    num_stages: PerNest = None,
    pad_rows: bool = False,
    multiprocessors: int = DEFAULT.sm_count,
) -> Schedule:
    """Splits of the columns (keys) in parallel, each rolling over its tiles; then a combining kernel. Returns `sch`.

    The kernel that combines has tiles and warps of its own, by its shape.

    Args:
        splits: how many parts the columns are cut into, in whole tiles; it need not divide, and the last part may be
            shorter.  1: the nest rolls.  None: as many as make whole waves of programs on the multiprocessors; of
            several nests, one that fills the GPU without rolls instead.
        multiprocessors: of the GPU, for what is chosen by shape.

    The other arguments are those of `rolling_update`.
    """
    sizes = {"block_q": block_q, "block_kv": block_kv, "block_out": block_out, "splits": splits}
    hints = {"num_warps": num_warps, "num_stages": num_stages}
    switches = {"pad_rows": pad_rows, "multiprocessors": multiprocessors}
    given = {**sizes, **hints, **switches}
    check_options("split_k_update", split_k_update, given)
    schedule_nests(sch, Options(**given), split=True)  # type: ignore[arg-type]
    return sch
