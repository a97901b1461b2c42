"""fuse_under: a block moved into a loop of an earlier nest, where everything it reads is complete by then."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule import fusion
from neptune_lab.loop_schedule.fusion import check_reads, loop_ref, names_under, under
from neptune_lab.loop_schedule.maps import upstream
from neptune_lab.loop_schedule.outcome import Outcome, plain


def fuse_under(program: Program, *, block: str, loop: str) -> Outcome:
    """A block moved to the end of a loop's body, along the dimensions it shares with the blocks there.

    Unlike reverse_compute_at, what it reads may also be written before that nest; unlike rolling_update, it breaks no
    dependence: a reduction that the loop leaves incomplete may not be read.

    before ⇒ after:
        for i: for t: A[i] += a(i, t)          for i: for t: A[i] += a(i, t)
        for i: for t: B[i] += A[i] * b(i, t) ⇒        for t: B[i] += A[i] * b(i, t)
    """
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    _, _, loops = tree.find_block(program, block)
    if under(program, block, target):
        raise ScheduleError(f"block {block!r} is under loop {loop!r} already", node=block)
    incomplete = [p for p in upstream(program, block, loop).producers if under(program, p, target)]
    if incomplete:
        raise ScheduleError(
            f"block {block!r} would read {', '.join(incomplete)} inside loop {loop!r}, which leaves it incomplete",
            node=block,
            help="use rolling_update or split_k_update, which repair that, or an outer loop",
        )
    if any(found.kind != "serial" for found in loops):
        raise ScheduleError(
            f"block {block!r} stands in a loop that is bound to the grid", node=block, help="fuse before binding loops"
        )
    there = names_under(program, loop)
    moved = fusion.fuse_under(program, block, loop)
    check_reads(moved, sorted(names_under(moved, loop) - there), loop)
    return plain("fuse_under", moved, f"{block} is computed inside {loop}.")
