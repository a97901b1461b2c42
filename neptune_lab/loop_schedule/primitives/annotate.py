"""annotate: sets an annotation of a loop."""

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
    """Sets an annotation of a loop; no value changes.

    "num_warps" and "num_stages" are launch hints, for the outermost loop of a nest or a loop that is bound to the
    grid. On another loop they raise TileError when the program is translated to tiles. "sequential" keeps the loop
    from becoming a dimension of a tile. "note" is text for readers.

    Args:
        loop: the loop, as "block.loop".
        key: "num_warps", "num_stages", "sequential" or "note"; an earlier annotation with this key is replaced.
        value: for "num_warps" a power of two from 1 to 32; for "num_stages" 1 to 16; for "sequential" 1; for "note" a
            string or an int.

    Raises:
        ScheduleError: the value is not allowed for this key.
    """
    check_note(key, value, f"annotate on {loop!r}")
    path, target, _ = tree.find_loop(program, *loop_ref(loop))
    notes = (*((k, v) for k, v in target.annotations if k != key), (key, value))
    result = tree.map_loop(program, path, lambda x: replace(x, annotations=notes))
    return plain("annotate", result, f"{key} = {value} on {loop}.")
