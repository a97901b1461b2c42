"""reverse_compute_at: a consumer moved under a loop of its producers."""

from __future__ import annotations

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program, loads
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref, under
from neptune_lab.loop_schedule.kinds import BlockName, LoopRef
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.tvm_steps import apply_in_tvm, handle_of

_HELP = (
    "all that the block reads must be written inside the loop; rolling_update, split_k_update or fuse_under take what "
    "is not"
)


@primitive(after="compute_at")
def reverse_compute_at(program: Program, *, block: BlockName, loop: LoopRef) -> Outcome:
    """Moves a consumer under a loop of its producers.

    before ⇒ after:
        for i, j: A[i, j] = a                for i, j:
        for i, j: B[i, j] = b(A[i, j])  ⇒        A[i, j] = a
                                                 B[i, j] = b(A[i, j])

    All that the consumer reads is complete there: a reduction that the loop still folds along is refused.

    Args:
        block: the consumer.
        loop: "block.loop", around all that it reads.

    Raises:
        ScheduleError: what it reads is written outside the loop, or is not complete inside.
    """
    _, found, _ = tree.find_block(program, block)
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    wanted = {read.buffer for read in loads(found.body.value)}
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
