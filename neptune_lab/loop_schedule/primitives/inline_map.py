"""inline_map: a map of inputs is computed where it is read, and is no stage any more."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import readers_of, writer_of
from neptune_lab.loop_ir.dtypes import dtype_of
from neptune_lab.loop_ir.nodes import Block, Cast, Expr, Load, Program
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.walks import loads, transform, walk
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.definition.stages import computed, stage, without_dead
from neptune_lab.loop_schedule.kinds import BlockName
from neptune_lab.loop_schedule.outcome import Outcome, Phase

# Of a value that is computed where it is read.
MOST_NODES = 64


@primitive(ours=True, normalises=True)
def inline_map(program: Program, *, block: BlockName) -> Outcome:
    """Computes a map of inputs where it is read, as often as it was computed or read before.

    before ⇒ after:
        for i, j: s[i, j] = x[i, j] * 0.5
        for i, j: m[i] max= s[i, j]               ⇒    for i, j: m[i] max= x[i, j] * 0.5
        for i, j: y[i, j] = s[i, j] / m[i]             for i, j: y[i, j] = x[i, j] * 0.5 / m[i]

    A reduction and a second pass over its row can then be one kernel, since neither waits for the stage.  A reader that
    would compute an element more than once, such as a product of matrices, is refused.

    Formal statement: the stage is elementwise, so an element is a function of inputs that its place names; a reader
    computes that function at the place it reads, and converts the value to the stage's dtype as the stage does.

    Args:
        block: the stage.

    Raises:
        ScheduleError: the stage is no map of inputs, is a result of the program, has a long value, or is read along
            further axes.
    """
    own = stage(program, block)
    if reducer_of(own) is not None or own.is_reduction or own.writes in program.outputs:
        what = "is a result of the program" if own.writes in program.outputs else "folds values"
        raise ScheduleError(f"stage {block!r} {what}", node=block, help="name an elementwise stage that others read")
    made = sorted({read.buffer for read in loads(own.body.value) if writer_of(program, read.buffer) is not None})
    if made:
        raise ScheduleError(
            f"stage {block!r} reads {made[0]!r}, which the program computes",
            node=block,
            help="name a stage that reads inputs only",
        )
    if sum(1 for _ in walk(own.body.value)) > MOST_NODES:
        raise ScheduleError(
            f"the value of {block!r} has more than {MOST_NODES} operations and operands: computed again by each "
            "reader, and by theirs, it would become larger and larger",
            node=block,
            help="leave the stage as it is",
        )
    for reader in readers_of(program, own.writes):
        _check_reader(program, own, reader)
    result = without_dead(tree.map_blocks(program, lambda b: _with_values(program, b, own)))
    note = f"{block} is computed where it is read, from inputs."
    return Outcome(result, (Phase("inline_map", "computed where it is read", note, result),))


def _check_reader(program: Program, own: Block, reader: Block) -> None:
    if _size(reader) > _size(own):
        raise ScheduleError(
            f"{reader.name!r} would compute elements of {own.name!r} more than once: it has {_size(reader):,} "
            f"iterations, and {own.name!r} {_size(own):,}",
            node=own.name,
            help="name a stage whose readers have its axes and no others",
        )
    for read in loads(reader.body.value):
        if read.buffer == own.writes and computed(program, read) is None:
            raise ScheduleError(
                f"{reader.name!r} reads {own.name!r} at a place from which its value does not follow",
                node=own.name,
                help="name a stage that stores at its own iterations",
            )


def _size(block: Block) -> int:
    return prod(it.extent for it in block.iters)


def _with_values(program: Program, block: Block, own: Block) -> Block:
    """A block that computes the stage's elements itself."""
    dtype = program.buffer(own.writes).dtype

    def rule(e: Expr) -> Expr:
        value = computed(program, e) if isinstance(e, Load) and e.buffer == own.writes else None
        if value is None:
            return e
        return value if dtype_of(value, program) == dtype else Cast(dtype, value)

    return (
        block
        if block.name == own.name
        else replace(block, body=replace(block.body, value=transform(block.body.value, rule)))
    )


__all__ = ["inline_map"]
