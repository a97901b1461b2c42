"""The tag table of a phase, on the inputs that the page sends or on those of the payload."""

from __future__ import annotations

from neptune_lab.errors import NeptuneError
from neptune_widgets import tags
from neptune_widgets.pane import Message, answers
from neptune_widgets.session import Session


@answers("tags")
def answer(session: Session, message: Message) -> Message:
    """The table, or why there is none."""
    step, phase = int(message["step"]), str(message["phase"])
    try:
        schedule, note = tags.shown(session.schedule, session.sample)
        operator = schedule.operator
        given = message.get("inputs")
        inputs = tags.default_inputs(operator) if given is None else tags.read_inputs(operator, given)
        table = tags.table(schedule, step, phase, message.get("rolling"), inputs, note)
    except NeptuneError as error:
        return {"kind": "tags_error", "message": str(error)}
    return {"kind": "tags", "key": f"{step}.{phase}", "table": table}
