"""A definition without reductions: maps are computed where they are read, and each result is one kernel."""

from __future__ import annotations

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import readers_of
from neptune_lab.loop_ir.nodes import Block, Load, Program
from neptune_lab.loop_ir.walks import walk
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.one_stage import schedule_stage

# The most operations of an element: a longer chain keeps some of its maps in memory.
LONGEST_TERM = 400
# The most elements of a tile: on an H200 the gradient of a log-sum-exp of 8192 x 4096 takes 33.5 us with them, as long
# as memory takes, 34.6 us with 4096 and 34.3 us with 1024; of 5000 x 3001, whose rows then begin at multiples of 16
# bytes, 15.6, 22.8 and 17.1 us.
ELEMENTS = 2048


def schedule_maps(sch: Schedule, side: int | None = None) -> Schedule:
    """Schedules maps, such as the gradient of a log-sum-exp.

    A map that is no result is inlined into its readers, unless their terms get longer than `LONGEST_TERM`; every block
    that is left is a kernel.

    Args:
        sch: the schedule of a definition without reductions, without steps.
        side: the most elements along each axis of a tile; None: by how many there are along the other.

    Returns:
        `sch`.

    Raises:
        ScheduleError: a step is refused.
    """
    for block in tree.blocks(sch.program):
        if block.writes in sch.program.outputs:
            continue
        own = tree.find_block(sch.program, block.name)[1]
        if all(_length_with(own, reader) <= LONGEST_TERM for reader in readers_of(sch.program, own.writes)):
            sch.inline(block.name)
    for block in tree.blocks(sch.program):
        schedule_stage(sch, block.name, ELEMENTS, side)
    return sch


def is_of_maps(program: Program) -> bool:
    """Whether a definition has no reduction."""
    return not any(block.is_reduction for block in tree.blocks(program))


def _length_with(block: Block, reader: Block) -> int:
    """Operations of a reader's term with the block's term in place of its reads."""
    nodes = list(walk(reader.body.value))
    reads = sum(isinstance(node, Load) and node.buffer == block.writes for node in nodes)
    return len(nodes) + reads * len(list(walk(block.body.value)))


__all__ = ["LONGEST_TERM", "is_of_maps", "schedule_maps"]
