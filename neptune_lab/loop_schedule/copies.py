"""Copies of a buffer that cache_read and cache_write make."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.roles import Role


def check_free(program: Program, name: str, block: str) -> None:
    """Raise ScheduleError if `name` is taken: TVM names a copy after buffer and scope, and merges two of one name."""
    if name in {b.name for b in program.buffers} | {b.name for b in tree.blocks(program)}:
        raise ScheduleError(
            f"there is a block or buffer {name!r} already, which the copy for {block!r} would be called",
            node=block,
            help="make the copy in another scope",
        )


def check_untagged(program: Program, buffer: str, block: str) -> None:
    """Raise ScheduleError if the buffer keeps one value per tag: a copy would keep one of them."""
    if program.buffer(buffer).tagged:
        raise ScheduleError(
            f"block {block!r}: {buffer!r} keeps one value per tag, and a copy would not",
            node=block,
            help="retire_tags first, which leaves a previous and a current value",
        )


def with_origin(program: Program, known: set[str], origin: str) -> Program:
    """Blocks that TVM made, i.e. none of `known`, get an origin: every line leads back to the definition."""
    return tree.map_blocks(program, lambda b: b if b.name in known else replace(b, origin=origin, role=Role.CACHE))


__all__ = ["check_free", "check_untagged", "with_origin"]
