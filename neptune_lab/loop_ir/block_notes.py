"""Notes at the end of a block's line in the text of a program: its repair, its companion, its estimates.

    block s_sum(i, reduce j0):  repair=1  @repair_by=s_max

`notes_of` gives the notes that `printer` prints; `with_notes` reads them back for `parser`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from neptune_lab.loop_ir.nodes import Block
from neptune_lab.loop_ir.roles import RepairInfo
from neptune_lab.strict.tokens import Token, refusal

Note: TypeAlias = "tuple[str, str | int]"

# The notes that a block can have, in order, each with an example.
_EXAMPLES = {
    "companion_of": "@companion_of=squares",
    "repair": "repair=1",
    "repair_by": "@repair_by=s_max,s_min",
    "unproved_repair": '@unproved_repair="t * exp(r_before - r_now)"',
    "wrong_repair": "wrong_repair=1",
    "estimates": "@estimates=mean",
}
# Notes that are allowed only together with another one.
_NEEDS = {"repair_by": "repair", "unproved_repair": "repair", "wrong_repair": "unproved_repair"}


def notes_of(block: Block) -> tuple[Note, ...]:
    """The block's notes in order, (key, value); a flag has the value 1, and names are separated by commas."""
    notes: list[Note] = [("companion_of", block.companion_of)] if block.companion_of else []
    if block.repair is not None:
        notes.append(("repair", 1))
        notes += [("repair_by", ",".join(block.repair.by))] if block.repair.by else []
        notes += [("unproved_repair", block.repair.unproved)] if block.repair.unproved is not None else []
        notes += [("wrong_repair", 1)] if block.repair.wrong else []
    return (*notes, ("estimates", ",".join(block.estimates))) if block.estimates else tuple(notes)


def with_notes(block: Block, notes: Iterable[tuple[str, str | int, Token]]) -> Block:
    """The block with the notes of its line.

    Args:
        block: without notes.
        notes: key, value and place of each.

    Raises:
        TextError: an unknown note, a value that the note does not take, the same note twice, or a note without the one
            that it needs.
    """
    values: dict[str, str | int] = {}
    places: dict[str, Token] = {}
    for key, value, at in notes:
        if key not in _EXAMPLES:
            raise refusal(at, f"a note of a block: {', '.join(_EXAMPLES)}")
        flag = "=1" in _EXAMPLES[key]
        if key in values or value == "" or isinstance(value, str) == flag or (flag and value != 1):
            raise refusal(at, f"one note {key}, such as {_EXAMPLES[key]}")
        values[key], places[key] = value, at
    for key, needed in _NEEDS.items():
        if key in values and needed not in values:
            raise refusal(places[key], f"{_EXAMPLES[needed]} with {key}")
    repair = None
    if "repair" in values:
        unproved = values.get("unproved_repair")
        repair = RepairInfo(
            _names(values.get("repair_by")), None if unproved is None else str(unproved), "wrong_repair" in values
        )
    return replace(
        block,
        repair=repair,
        companion_of=str(values.get("companion_of", "")),
        estimates=_names(values.get("estimates")),
    )


def _names(value: str | int | None) -> tuple[str, ...]:
    return () if value is None else tuple(str(value).split(","))


__all__ = ["notes_of", "with_notes"]
