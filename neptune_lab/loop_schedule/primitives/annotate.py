"""annotate: a note on a loop."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.arguments import check_note
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.kinds import LoopRef, NoteKey, NoteValue
from neptune_lab.loop_schedule.outcome import Outcome, plain


@primitive(after="decompose_reduction", same_values=True)
def annotate(program: Program, *, loop: LoopRef, key: NoteKey, value: NoteValue = 1) -> Outcome:
    """Annotates a loop; no result changes.

    "num_warps" and "num_stages" reach the launch; they belong to the outermost loop of a nest or to one on the grid,
    and are refused elsewhere when the program becomes tiles. "sequential" keeps a loop from being a dimension of a
    tile. "note" is text for readers.

    Args:
        loop: "block.loop".
        key: "num_warps", "num_stages", "sequential" or "note".
        value: an int, or the words of a note.

    Raises:
        ScheduleError: the value is not allowed for this key.
    """
    check_note(key, value, f"annotate on {loop!r}")
    path, found, _ = tree.find_loop(program, *loop_ref(loop))
    notes = (*((k, v) for k, v in found.annotations if k != key), (key, value))
    result = tree.map_loop(program, path, lambda x: replace(x, annotations=notes))
    return plain("annotate", result, f"{key} = {value} on {loop}.")
