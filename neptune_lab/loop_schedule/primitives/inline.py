"""inline: substitutes an elementwise block into its consumers."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import readers_of
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule import maps
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import BlockName
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.tvm_steps import apply_in_tvm

_HELP = "inline elementwise stages that another block reads"


@primitive(after="reverse_compute_at")
def inline(program: Program, *, block: BlockName) -> Outcome:
    """Removes an elementwise block; its consumers compute its expression themselves.

    before ⇒ after:
        for i, j: E[i, j] = exp(A[i, j])     for i, j: S[i] += exp(A[i, j])
        for i, j: S[i] += E[i, j]        ⇒

    Args:
        block: the elementwise block.

    Raises:
        ScheduleError: the block is a reduction, writes an output, carries a value from one iteration to the next, or
            does not store at its own iteration variables.
    """
    _, inlined, _ = tree.find_block(program, block)
    if inlined.role in (Role.SCAN, Role.CURRENT, Role.RETIRE, Role.INITIAL):
        raise ScheduleError(
            f"block {block!r} carries a value from one iteration to the next: it cannot be inlined",
            node=block,
            help=_HELP,
        )
    if reducer_of(inlined) is not None or inlined.writes in program.outputs:
        what = "is a reduction" if reducer_of(inlined) is not None else f"writes the output {inlined.writes!r}"
        raise ScheduleError(f"block {block!r} {what}: it cannot be inlined", node=block, help=_HELP)
    if reducer_of(inlined) is None and inlined.writes not in program.outputs and _is_alone_in_nest(program, block):
        result = program
        for reader in readers_of(program, inlined.writes):
            result = maps.inline(result, inlined, reader.name)
    else:
        result = apply_in_tvm(program, "inline", block, lambda s: s.compute_inline(s.get_sblock(block)), help=_HELP)
    return plain("inline", result, f"{block} is inlined into its consumers.")


def _is_alone_in_nest(program: Program, block: str) -> bool:
    """Whether no other block is in the block's nest. What it reads is then complete, and is not changed later."""
    path, _, _ = tree.find_block(program, block)
    return len(tree.blocks_under(program.body[path[0]])) == 1
