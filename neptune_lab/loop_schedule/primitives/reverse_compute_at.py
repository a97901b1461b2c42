"""reverse_compute_at: moves a consumer under a loop of its producers."""

from __future__ import annotations

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.walks import loads
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref, under
from neptune_lab.loop_schedule.kinds import BlockName, LoopRef
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.tvm_steps import apply_in_tvm, handle_of

_HELP = (
    "name a loop around every block that computes what it reads; if there is none, use "
    "rolling_update, split_k_update or fuse_under"
)


@primitive(after="compute_at")
def reverse_compute_at(program: Program, *, block: BlockName, loop: LoopRef) -> Outcome:
    """Moves a consumer under a loop of its producers; each iteration uses the elements that it has just computed.

    before ⇒ after:
        for i, j: A[i, j] = a                for i, j:
        for i, j: B[i, j] = b(A[i, j])  ⇒        A[i, j] = a
                                                 B[i, j] = b(A[i, j])

    Everything that the consumer reads must be complete in each iteration, so a reduction along the loop is refused.

    Args:
        block: the consumer.
        loop: a loop around every block that computes what the consumer reads, as "block.loop".

    Raises:
        ScheduleError: a block that computes what the consumer reads is outside the loop, or is a reduction along it.
    """
    _, consumer, _ = tree.find_block(program, block)
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    wanted = {read.buffer for read in loads(consumer.body.value)}
    writers = [b.name for b in tree.blocks(program) if b.writes in wanted and b.name != block]
    absent = [name for name in writers if not under(program, name, target)]
    result = apply_in_tvm(
        program,
        "reverse_compute_at",
        block,
        lambda s: s.reverse_compute_at(s.get_sblock(block), handle_of(s, program, loop)),
        absent=absent,
        help=_HELP,
    )
    return plain("reverse_compute_at", result, f"{block} is computed inside {loop}.")
