"""The schedule's editor: the legal values of a step's arguments."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_widgets import choices
from neptune_widgets.pane import Message, answers, list_of
from neptune_widgets.session import Refused, Session


@answers("choices")
def answer(session: Session, message: Message) -> Message:
    """The parameters of the step at an index, each with its legal values."""
    steps, index, primitive = list_of(message, "steps"), int(message["index"]), str(message["primitive"])
    now = None
    if index < len(steps) and steps[index].get("primitive") == primitive:
        now = steps[index].get("arguments")
    try:
        found = choices.choices(session.before(steps, index), primitive, now)
    except Refused as refused:
        return {"kind": "choices", "parameters": [], "message": refused.refusal.message}
    except ScheduleError as error:
        return {"kind": "choices", "parameters": [], "message": error.reason}
    made: Message = {"kind": "choices", "parameters": [p.as_json() for p in found]}
    if any(p.required and p.choices == [] for p in found):
        made["message"] = f"{primitive} goes nowhere here"
    return made
