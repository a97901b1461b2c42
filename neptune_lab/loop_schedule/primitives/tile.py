"""tile: splits several loops, and moves all outer loops before all inner ones."""

from __future__ import annotations

from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.kinds import BlockName, TileSizes
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.primitives.reorder import reorder
from neptune_lab.loop_schedule.primitives.split import split
from neptune_lab.loop_schedule.renaming import names_beside, rename_loop
from neptune_lab.loop_schedule.tvm_steps import apply_in_tvm


@primitive(after="fuse", makes="several", made='The outer loops, then the inner ones, as "block.loop".')
def tile(program: Program, *, block: BlockName, tiles: TileSizes) -> Outcome:
    """Splits each loop by its tile size, and moves all outer loops before all inner ones: i, j ⇒ i0, j0, i1, j1.

    before ⇒ after, with i=16, j=16:
        for i, j in grid(64, 64): X[i, j] = e    ⇒    for i0, j0, i1, j1 in grid(4, 4, 16, 16): X[…] = e

    Args:
        block: a block inside the loops.
        tiles: the size of a tile along each loop, in iterations: `sch.tile("qk", i=128, j=64)`. A size need not divide
            the loop's extent; the block then gets a guard.

    Raises:
        ScheduleError: there is no such loop, a loop is bound or annotated, or the loops cannot be reordered.
    """
    for var in tiles:
        tree.find_loop(program, block, var)  # before any split, so that the error lists the loops that the user knows
    try:
        result, names = _tiled_at_once(program, block, tiles)
    except ScheduleError:  # the error of a single step names the loop
        result, names = _tiled_step_by_step(program, block, tiles)
    sizes = " × ".join(f"{var} {size}" for var, size in tiles.items())
    return plain("tile", result, f"Tiles of {sizes}.", tuple(f"{block}.{v}" for v in names))


def _tiled_step_by_step(program: Program, block: str, tiles: dict[str, int]) -> tuple[Program, list[str]]:
    """The program after a split of each loop and a reorder, and the names of the new loops: outer, then inner."""
    outer, inner = [], []
    for var, size in tiles.items():
        made = split(program, loop=f"{block}.{var}", factors=[None, size])
        program = made.program
        for names, ref in zip((outer, inner), made.made, strict=True):
            names.append(loop_ref(ref)[1])
    return reorder(program, block=block, loops=[*outer, *inner]).program, [*outer, *inner]


def _tiled_at_once(program: Program, block: str, tiles: dict[str, int]) -> tuple[Program, list[str]]:
    """As `_tiled_step_by_step`, with one TVM schedule: converting a program to TVM and back takes most of the time.

    Raises:
        ScheduleError: TVM refuses, or these tiles need single steps.
    """
    path, _, around = tree.find_block(program, block)
    outer, inner, replaced = [], [], set()
    for var in tiles:
        replaced.add(var)
        beside = names_beside(program, block, tree.find_loop(program, block, var)[1])
        for n, names in enumerate((outer, inner)):
            names.append(unique(f"{var}{n}", {*outer, *inner, *(beside - replaced)}, "_"))
    if any(size < 1 for size in tiles.values()) or any(x.var.startswith("ax") for x in around):
        raise ScheduleError("left to the single steps", node=block)

    def action(schedule: Any) -> None:
        loops = {x.var: rv for x, rv in zip(around, schedule.get_loops(schedule.get_sblock(block)), strict=True)}
        halves = [schedule.split(loops[var], [None, size]) for var, size in tiles.items()]
        schedule.reorder(*(h[0] for h in halves), *(h[1] for h in halves))

    # Formal statement: TVM's checks of a split and a reorder are about the loops and the blocks under them.
    result = apply_in_tvm(program, "tile", block, action, nest=path[0])
    wanted = iter([*outer, *inner])
    final = [name for x in around for name in ((next(wanted), next(wanted)) if x.var in tiles else (x.var,))]
    # Temporary names first ("i0@"): TVM's names may be among the final ones, in another order.
    for spelling in ("{}@", "{}"):
        for depth, name in enumerate(final):
            path, _, now = tree.find_block(result, block)
            if now[depth].var != name:
                result = rename_loop(result, path[: depth + 1], spelling.format(name))
    return result, [*outer, *inner]
