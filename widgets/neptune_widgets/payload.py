"""The payload: everything that the page shows, as one JSON text. widgets/PROTOCOL.md says what is in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import ScheduleError
from neptune_lab.trace import to_json
from neptune_widgets import checks, choices, tags
from neptune_widgets.pane import data_of, halves

if TYPE_CHECKING:
    from neptune_lab.trace import Trace
    from neptune_widgets.session import Session


def live(session: Session) -> str:
    """For a page with Python behind it; the numeric check is asked for by the page, since it takes a moment."""
    made, note = _tags(session, tags.BEFOREHAND)
    return _text(
        session.trace,
        {
            "check": None,
            "kernel_error": None if session.kernel_error is None else session.kernel_error.as_json(),
            "tags": made,
            "tags_note": note,
            "editor": editor(session),
            "device": device(),
            "live": True,
            **_panes(session),
        },
    )


def static(session: Session) -> str:
    """For a page on its own: checked, and with the tag tables of all phases where the program is small."""
    made, note = _tags(session, 10 * tags.LARGEST)
    if made is not None and not made["tables"]:
        made, note = None, "No tag tables in this page: too many phases; open it in a notebook."
    ok, text = checks.check(session.schedule, session.sample)
    return _text(
        session.trace,
        {
            "check": {"ok": ok, "text": text},
            "kernel_error": None if session.kernel_error is None else session.kernel_error.as_json(),
            "tags": made,
            "tags_note": note,
            "editor": None,
            "device": device(),
            "live": False,
            **_panes(session, kept=True),
        },
    )


def saved(trace: Trace) -> str:
    """For a record that was saved: there is no compiler behind it."""
    rest = {
        "check": None,
        "kernel_error": None,
        "tags": None,
        "tags_note": "A saved record: tag tables need the operator itself.",
        "editor": None,
        "device": "a saved record",
        "live": False,
    }
    return _text(trace, rest)


def _text(trace: Trace, rest: dict[str, Any]) -> str:
    """The record's own JSON with the rest beside it."""
    tail = json.dumps(rest, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f'{{"trace":{to_json(trace)},{tail[1:]}'


def _panes(session: Session, *, kept: bool = False) -> dict[str, Any]:
    """What panes declare as their data, if any does."""
    found = data_of(session, halves(), kept=kept)
    return {"panes": found} if found else {}


def _tags(session: Session, most: int) -> tuple[dict[str, Any] | None, str]:
    """Inputs, loops and the tables made beforehand, and a note: what is sampled, or why there are none."""
    try:
        schedule, note = tags.shown(session.schedule, session.sample)
    except ScheduleError as error:
        return None, error.reason
    inputs = tags.default_inputs(schedule.operator)
    made = {
        "inputs": tags.inputs_json(schedule.operator, inputs),
        "rolling": tags.rolling_loops(schedule),
        "tables": tags.tables(schedule, inputs, most, note),
    }
    return made, note


def editor(session: Session) -> dict[str, Any]:
    """The steps, and what steps there can be."""
    from neptune_lab import templates
    from neptune_lab.loop_schedule import PRIMITIVES

    primitives = [
        {
            "name": p.name,
            "ours": p.ours,
            "summary": p.summary,
            "parameters": [
                {"name": q.name, "kind": q.kind, "required": q.required, "choices": None} for q in choices.parameters(p)
            ],
        }
        for p in PRIMITIVES.values()
    ]
    return {
        "steps": [{**step.as_record(), "text": f"sch.{step}"} for step in session.schedule.steps],
        "primitives": primitives,
        "templates": list(templates.TEMPLATES),
        "undo": session.undoable,
        "redo": session.redoable,
    }


def device() -> str:
    """What kernels run on here."""
    from neptune_lab.runtime import device_facts, has_gpu

    return device_facts().name if has_gpu() else "interpreter, no GPU"
