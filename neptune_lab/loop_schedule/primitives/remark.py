"""remark: a sentence in the record, between two steps."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import Sentence
from neptune_lab.loop_schedule.outcome import Outcome, plain


@primitive(ours=True, same_values=True, silent=True)
def remark(program: Program, *, text: Sentence) -> Outcome:
    """Adds a sentence for readers of the record; the program is unchanged.

    Args:
        text: the reason for the next steps of the schedule.

    Raises:
        ScheduleError: the text is empty.
    """
    if not text.strip():
        raise ScheduleError(
            f"remark takes a sentence, got {text!r}", help="say in words why the schedule goes on as it does"
        )
    return plain("remark", program, text)
