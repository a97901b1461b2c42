"""reorder: changes the order of nested loops."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import BlockName, LoopNames
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.tvm_steps import apply_in_tvm, handle_of

_HELP = "name loops of one nest, each outside or inside the next with no other block between them"


@primitive(after="split", makes="several", made='The loops in their new order, as "block.loop".')
def reorder(program: Program, *, block: BlockName, loops: LoopNames) -> Outcome:
    """Puts loops around `block` in the given order, outermost first; other loops keep their places.

    before ⇒ after, with loops ("j", "i"):
        for i, j: X[i, j] = e    ⇒    for j, i: X[i, j] = e

    Args:
        block: a block inside the loops.
        loops: two or more of the loops around it, in the new order, named without the block.

    Raises:
        ScheduleError: there is another block between the loops, a loop is named twice, or a scan would visit its tags
            in another order.
    """
    if len(loops) < 2 or len(set(loops)) < len(loops):
        raise ScheduleError(
            f"reorder on {block!r} takes two loops or more, each once, got {loops}",
            node=block,
            help=f"the loops around {block}: {', '.join(x.var for x in tree.find_block(program, block)[2])}",
        )
    refs = [f"{block}.{var}" for var in loops]
    # Formal statement: TVM's checks of a reorder are about the loops and the blocks under them.
    result = apply_in_tvm(
        program,
        "reorder",
        block,
        lambda s: s.reorder(*(handle_of(s, program, r) for r in refs)),
        nest=tree.find_block(program, block)[0][0],
        help=_HELP,
    )
    return plain("reorder", result, f"The order of the loops of {block} is now {', '.join(loops)}.", tuple(refs))
