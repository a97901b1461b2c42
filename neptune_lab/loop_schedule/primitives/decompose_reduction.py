"""decompose_reduction: writes a reduction's start value in a separate block."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.start_values import start_before
from neptune_lab.loop_ir.walks import folded_loops
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.kinds import BlockName, OwnLoopRef
from neptune_lab.loop_schedule.outcome import Outcome, plain


@primitive(after="set_scope", makes="one", made="The block that writes the start value.")
def decompose_reduction(program: Program, *, block: BlockName, loop: OwnLoopRef) -> Outcome:
    """Writes the start value of a reduction in a separate block, before `loop`.

    before ⇒ after, at loop j:
        for i, j: X[i] = X[i] (f) e    ⇒    for i:
                                                X[i] = initial
                                                for j: X[i] = X[i] (f) e

    Args:
        block: a reduction that still writes its start value itself.
        loop: the outermost loop that the block folds along, or a loop outside that one, as "block.loop" with this
            block.

    Raises:
        ScheduleError: `loop` names another block, the block has no start value, or it folds along a loop outside
            `loop`.
    """
    _, reduction, loops = tree.find_block(program, block)
    named, var = loop_ref(loop)
    if named != block:
        raise ScheduleError(
            f"loop {loop!r} is named by another block than {block!r}",
            node=block,
            help=f"name the loop '{block}.{var}'; the loops around {block}: {', '.join(x.var for x in loops)}",
        )
    tree.find_loop(program, block, var)
    if not reduction.is_reduction or reduction.init is None:
        raise ScheduleError(
            f"block {block!r} has no start value to take out: "
            + ("it has been taken out already" if reduction.is_reduction else "it is not a reduction"),
            node=block,
            help="name a sum, max or other reduction that still starts itself",
        )
    # Formal statement: the start value is written once, i.e. no loop outside `loop` folds.
    depth = tree.depth_of(loops, var)
    folded = folded_loops(reduction)
    outside = [x.var for x in loops[:depth] if x.var in folded]
    if outside:
        raise ScheduleError(
            f"block {block!r} folds along {outside[0]!r}, which is outside {var!r}: its start value would be written "
            "again in every iteration",
            node=block,
            help=f"decompose_reduction({block!r}, '{block}.{outside[0]}')",
        )
    result = start_before(program, reduction, depth)
    made = tuple(b.name for b in tree.blocks(result) if not tree.has_block(program, b.name))
    return plain("decompose_reduction", result, f"{reduction.writes} gets its start value before {var}.", made)
