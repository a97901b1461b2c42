"""fuse: fuses nested loops into one."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import BlockName, LoopNames, NewName
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.renaming import names_beside, rename_loop
from neptune_lab.loop_schedule.tvm_steps import apply_in_tvm, handle_of

_HELP = "name loops that follow each other directly, outermost first"


@primitive(after="reorder", makes="one", made='The new loop, as "block.loop".')
def fuse(program: Program, *, block: BlockName, loops: LoopNames, name: NewName | None = None) -> Outcome:
    """Fuses nested loops into one.

    before ⇒ after, for i of 4 and j of 8:
        for i, j in grid(4, 8): X[i, j] = e    ⇒    for ij in range(32): X[ij // 8, ij % 8] = e

    Args:
        block: a block inside the loops.
        loops: two or more loops, each directly inside the one before, outermost first, named without the block.
        name: the name of the new loop; default: their names joined.

    Raises:
        ScheduleError: a loop is not directly inside the one before, the name is taken, or a loop is bound or
            annotated.
    """
    if len(loops) < 2:
        raise ScheduleError(f"fuse on {block!r} takes two loops or more, got {loops}", node=block, help=_HELP)
    path, outermost, _ = tree.find_loop(program, block, loops[0])
    taken = names_beside(program, block, outermost) - set(loops)
    if name in taken:
        raise ScheduleError(
            f"loop name {name!r} is not free around block {block!r}", node=block, help="pass a name= that is new"
        )
    new = name or unique("".join(loops), taken, "_")
    refs = [f"{block}.{var}" for var in loops]
    result = apply_in_tvm(
        program, "fuse", block, lambda s: s.fuse(*(handle_of(s, program, r) for r in refs)), help=_HELP
    )
    result = rename_loop(result, path, new)
    return plain("fuse", result, f"{', '.join(loops)} are fused to {new}.", (f"{block}.{new}",))
