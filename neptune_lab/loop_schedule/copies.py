"""Checks and marks the copies of buffers that cache_read and cache_write make."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.roles import Role


def check_free(program: Program, name: str, block: str) -> None:
    """Checks that a copy's name is free. TVM names a copy "buffer_scope", and would merge two copies of one name.

    Args:
        program: the program before the copy.
        name: the copy's name, such as "inp_shared".
        block: the block that reads or writes the copy, for the message.

    Raises:
        ScheduleError: a buffer or a block has this name.
    """
    if name in {b.name for b in program.buffers} | {b.name for b in tree.blocks(program)}:
        raise ScheduleError(
            f"there is a block or buffer {name!r} already, which the copy for {block!r} would be called",
            node=block,
            help="make the copy in another scope",
        )


def check_untagged(program: Program, buffer: str, block: str) -> None:
    """Checks that a buffer has no tags. A copy would keep the value of one tag only.

    Args:
        program: the program before the copy.
        buffer: the buffer to copy.
        block: the block that reads or writes the copy, for the message.

    Raises:
        ScheduleError: the buffer keeps one value per tag.
    """
    if program.buffer(buffer).tagged:
        raise ScheduleError(
            f"block {block!r}: {buffer!r} keeps one value per tag, and a copy would not",
            node=block,
            help="retire_tags first, which leaves a previous and a current value",
        )


def with_origin(program: Program, known: set[str], origin: str) -> Program:
    """Gives the blocks that TVM made an origin, so that every block is traced to a stage of the definition.

    Args:
        program: the program after TVM's step.
        known: names of the blocks before the step.
        origin: the stage of the definition.

    Returns:
        The program in which every other block has this origin and the role `Role.CACHE`.
    """
    return tree.map_blocks(program, lambda b: b if b.name in known else replace(b, origin=origin, role=Role.CACHE))


__all__ = ["check_free", "check_untagged", "with_origin"]
