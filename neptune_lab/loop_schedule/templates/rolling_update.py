"""Everything in one rolling loop: FlashAttention from attention, the online sum from softmax (paper, Figure 13)."""

from __future__ import annotations

from neptune_lab.loop_schedule.arguments import check_options
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import all_or_nothing
from neptune_lab.loop_schedule.templates.knobs import Options, PerNest
from neptune_lab.loop_schedule.templates.nests import schedule_nests
from neptune_lab.target import DEFAULT


@all_or_nothing
def rolling_update(
    sch: Schedule,
    block_q: PerNest = None,
    block_kv: PerNest = None,
    block_out: PerNest = None,
    num_warps: PerNest = None,
    num_stages: PerNest = None,
    pad_rows: bool = False,
    multiprocessors: int = DEFAULT.sm_count,
) -> Schedule:
    """One program `block_q` rows (queries), rolling over tiles of `block_kv` columns (keys). Returns `sch`.

    Each nest that `plan` finds becomes a kernel.  A reduction that cannot be fused into its nest (the algebra has no
    repair term, or it needs a complete value) starts a nest of its own; a remark says why.  A nest whose column is one
    tile, because `block_kv` is as long or because it is long rows that fit a program, is held whole: nothing rolls.

    The sizes are one number for all nests or a tuple with one entry a nest; None: chosen by shape (`default_knobs`).

    Args:
        block_q: rows of a program.
        block_kv: columns of a tile.
        block_out: columns of the output that a program computes, where the last product alone has them (the H of a
            chain of two products): each program computes the first product again (MCFuser's deep order).  None: all
            of them in one accumulator (its flat order).
        num_warps: warps of a program.
        num_stages: how many tiles are loaded ahead, and the one at work.
        pad_rows: a single row is made 16, so that its products run on matrix units.
        multiprocessors: of the GPU, for what is chosen by shape.
    """
    sizes = {"block_q": block_q, "block_kv": block_kv, "block_out": block_out}
    hints = {"num_warps": num_warps, "num_stages": num_stages}
    switches = {"pad_rows": pad_rows, "multiprocessors": multiprocessors}
    given = {**sizes, **hints, **switches}
    check_options("rolling_update", rolling_update, given)
    schedule_nests(sch, Options(**given), split=False)  # type: ignore[arg-type]
    return sch
