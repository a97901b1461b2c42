"""compute_at: moves a producer under a loop of its consumers."""

from __future__ import annotations

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import readers_of
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref, under
from neptune_lab.loop_schedule.kinds import BlockName, LoopRef
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.tvm_steps import apply_in_tvm, handle_of

_HELP = "name a producer, and a loop around every block that reads it"


@primitive(after="bind")
def compute_at(program: Program, *, block: BlockName, loop: LoopRef) -> Outcome:
    """Moves a producer under a loop of its consumers; each iteration computes only the elements that it reads.

    before ⇒ after:
        for i, j: A[i, j] = a                for i:
        for i, j: B[i, j] = b(A[i, j])  ⇒        for j: A[i, j] = a
                                                 for j: B[i, j] = b(A[i, j])

    Args:
        block: the producer.
        loop: a loop around every block that reads it, as "block.loop".

    Raises:
        ScheduleError: a reader is outside the loop, or would read an element before it is written.
    """
    _, producer, _ = tree.find_block(program, block)
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    absent = [b.name for b in readers_of(program, producer.writes) if not under(program, b.name, target)]
    result = apply_in_tvm(
        program,
        "compute_at",
        block,
        lambda s: s.compute_at(s.get_sblock(block), handle_of(s, program, loop)),
        absent=absent,
        help=_HELP,
    )
    return plain("compute_at", result, f"{block} is computed inside {loop}.")
