"""The schedule's editor: the legal values of a step's arguments."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from neptune_lab.errors import ScheduleError
from neptune_widgets import choices
from neptune_widgets.pane import Message, answers, list_of
from neptune_widgets.session import Refused, Session

# What was tried in each explorer, with the steps before; only for the latest place, since trials are many.
_TRIALS: WeakKeyDictionary[Session, tuple[tuple[object, ...], choices.Trials]] = WeakKeyDictionary()


def _trials(session: Session, place: tuple[object, ...]) -> choices.Trials:
    """What was tried at this place: before, if the last question was about it too."""
    if session not in _TRIALS or _TRIALS[session][0] != place:
        _TRIALS[session] = (place, choices.Trials())
    return _TRIALS[session][1]


@answers("choices")
def answer(session: Session, message: Message) -> Message:
    """The parameters of the step at an index, each with its legal values; `more` if the page must ask again."""
    steps, index, primitive = list_of(message, "steps"), int(message["index"]), str(message["primitive"])
    now = None
    if index < len(steps) and steps[index].get("primitive") == primitive:
        now = steps[index].get("arguments")
    try:
        before = session.schedule_before(steps, index)
        trials = _trials(session, (primitive, *before.steps))
        found = choices.choices(before, primitive, now, trials)
    except choices.Unfinished:
        return {"kind": "choices", "parameters": [], "more": True}
    except Refused as refused:
        return {"kind": "choices", "parameters": [], "message": refused.refusal.message}
    except ScheduleError as error:
        return {"kind": "choices", "parameters": [], "message": error.reason}
    made: Message = {"kind": "choices", "parameters": [p.as_json() for p in found]}
    if any(p.required and p.choices == [] for p in found):
        made["message"] = f"{primitive} goes nowhere here"
    elif trials.limited:
        made["message"] = f"the first {choices.MOST_TRIALS:,} sets of arguments were tried; others may be legal too"
    return made
