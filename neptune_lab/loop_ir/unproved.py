"""Blocks that carry a repair which was given and is not proved: the note on them, which every stage and view reads."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.loop_ir.nodes import Block, Program
from neptune_lab.loop_ir.tree import blocks

# The repair as it was given; and 1 where numbers show that it is wrong.
_UNPROVED, _WRONG = "unproved_repair", "wrong_repair"

Notes = tuple[tuple[str, str | int], ...]


def unproved_notes(h: str, *, wrong: bool) -> Notes:
    """The annotations of a block that repairs by `h`, which is not proved."""
    return ((_UNPROVED, h), *(((_WRONG, 1),) if wrong else ()))


def unproved(block: Block) -> str | None:
    """The repair of a block that is not proved, as it was given; None where there is none."""
    return next((str(value) for key, value in block.annotations if key == _UNPROVED), None)


def has_wrong_repair(program: Program) -> bool:
    """Whether a block repairs by something that numbers show to be wrong."""
    return any((_WRONG, 1) in block.annotations for block in blocks(program))


def without_notes(block: Block) -> Block:
    """The block without the annotations of this module."""
    return replace(block, annotations=tuple(n for n in block.annotations if n[0] not in (_UNPROVED, _WRONG)))
