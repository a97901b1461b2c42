"""bind: binds a loop to a grid axis."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.annotations import GRID
from neptune_lab.loop_ir.nodes import Loop, Program
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import variables
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.kinds import GridAxis, LoopRef
from neptune_lab.loop_schedule.outcome import Outcome, plain


@primitive(after="tile", same_values=True)
def bind(program: Program, *, loop: LoopRef, thread: GridAxis) -> Outcome:
    """Binds a loop to a grid axis: its iterations become program instances, which run in parallel.

    before ⇒ after:
        for i in range(4): X[i] = e    ⇒    for i in range(4):  # blockIdx.x
                                                X[i] = e

    Args:
        loop: the loop to bind, as "block.loop".
        thread: the grid axis: "blockIdx.x", "blockIdx.y" or "blockIdx.z".

    Raises:
        ScheduleError: a block carries a value from one iteration of the loop to the next, or a loop around or inside
            it is bound to that axis already.
    """
    block, var = loop_ref(loop)
    path, target, around = tree.find_loop(program, block, var)
    # Formal statement: no value is carried along the loop, i.e. no reduction folds along it, no scan visits its tags
    # along it, and no block copies the current value to the previous one along it.
    # TVM's own check is stricter: it requires an affine binding for every block, which tails of privatised reductions
    # do not have.
    for inner in tree.blocks_under(target):
        carried = [i for i in inner.iters if i.kind == "reduce"] + (
            list(inner.iters[:1]) if inner.role is Role.SCAN else []
        )
        copies_to_previous = inner.role is Role.RETIRE and not any(var in variables(i.binding) for i in inner.iters)
        if copies_to_previous or any(var in variables(i.binding) for i in carried):
            raise ScheduleError(
                f"loop {loop!r} cannot run in parallel: {inner.name!r} carries a value from one iteration to the next",
                node=inner.name,
                help="bind an outer loop, or make the reduction private along this one with split_k_update",
            )
    taken = [x.var for x in (*around, target) if x.kind == thread] + [
        x.var for x in _loops_in(target) if x.kind == thread
    ]
    if taken:
        raise ScheduleError(
            f"{thread} is taken by loop {taken[0]!r} of the same nest",
            node=block,
            help=f"bind to another of {', '.join(GRID)}, or fuse the two loops",
        )
    result = tree.map_loop(program, path, lambda x: replace(x, kind=thread))
    return plain("bind", result, f"{var} is bound to {thread}.")


def _loops_in(loop: Loop) -> list[Loop]:
    inner = [s for s in loop.body if isinstance(s, Loop)]
    return inner + [x for s in inner for x in _loops_in(s)]
