"""The payload: what the page shows, as JSON; of a large record, its first part (widgets/PROTOCOL.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import ScheduleError
from neptune_widgets import checks, choices, parts, tags
from neptune_widgets.pane import data_of, halves
from neptune_widgets.repeat import as_python

View = dict[str, Any]
_AGAIN = "Recompile, in the header, makes its operator and steps again here."

if TYPE_CHECKING:
    from neptune_lab.loop_schedule import Primitive
    from neptune_lab.trace import Trace
    from neptune_widgets.session import Session, Source


@dataclass(frozen=True, slots=True)
class Payload:
    """What a page gets.

    Args:
        text: JSON of the payload.
        rest: the other parts of its record, as JSON; empty if the payload has it whole.
        name: of these parts.
    """

    text: str
    rest: tuple[str, ...] = ()
    name: str = ""


def live(session: Session, view: View | None = None) -> Payload:
    """For a page with Python behind it; the numeric check is asked for by the page, since it takes a moment."""
    made, note = _tags(session, tags.BEFOREHAND)
    return _payload(
        session.trace,
        view,
        {
            "check": None,
            "kernel_error": None if session.kernel_error is None else session.kernel_error.as_json(),
            "tags": made,
            "tags_note": note,
            "editor": editor(session),
            "device": device(),
            "python": as_python(session),
            "live": True,
            **_panes(session),
        },
    )


def static(session: Session, view: View | None = None) -> Payload:
    """For a page on its own: checked, and with the tag tables of all phases where the program is small."""
    made, note = _tags(session, 10 * tags.LARGEST, whole=True)
    if made is not None and not made["tables"]:
        made, note = None, "No tag tables in this page: its phases are too many. In a notebook, each is made if shown."
    ok, text = checks.check(session.schedule, session.sample)
    return _payload(
        session.trace,
        view,
        {
            "check": {"ok": ok, "text": text},
            "kernel_error": None if session.kernel_error is None else session.kernel_error.as_json(),
            "tags": made,
            "tags_note": note,
            "editor": None,
            "device": device(),
            "python": as_python(session),
            "live": False,
            **_panes(session, kept=True),
        },
    )


def saved(trace: Trace, view: View | None = None, *, again: bool = False) -> Payload:
    """For a record that was saved: there is no compiler behind it; `again`: one can be had if the page asks for it."""
    rest = {
        "check": None,
        "kernel_error": None,
        "tags": None,
        "tags_note": f"A saved record has no tag tables. {_AGAIN if again else 'They need the operator itself.'}",
        "editor": None,
        "device": "a saved record",
        "live": False,
        "again": again,
    }
    return _payload(trace, view, rest)


def _payload(trace: Trace, view: View | None, rest: dict[str, Any]) -> Payload:
    """The record, or its first part, with the rest beside it."""
    first = None
    match view:
        case {"step": int(step), "phase": str(phase)}:
            first = (step, phase)
    sent = parts.sent(trace, first=first)
    tail = json.dumps(rest, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Payload(f'{{"trace":{sent.head},{tail[1:]}', sent.rest, sent.name)


def _panes(session: Session, *, kept: bool = False) -> dict[str, Any]:
    """What panes declare as their data, if any does."""
    found = data_of(session, halves(), kept=kept)
    return {"panes": found} if found else {}


def _tags(session: Session, most: int, *, whole: bool = False) -> tuple[dict[str, Any] | None, str]:
    """Inputs, loops and the tables made beforehand, and a note: what is sampled, or why there are none.

    Args:
        most: stores of all phases up to which their tables are made.
        whole: whether tables of a sample are better than none, since no others can be asked for.
    """
    try:
        schedule, note = tags.shown(session.schedule, session.sample, most=most if whole else None)
    except ScheduleError as error:
        return None, error.reason
    inputs = tags.default_inputs(schedule.operator)
    made = {
        "inputs": tags.inputs_json(schedule.operator, inputs),
        "rolling": tags.rolling_loops(schedule),
        "tables": tags.tables(schedule, inputs, most, note),
    }
    return made, note


def _parameters(primitive: Primitive) -> list[dict[str, Any]]:
    """A primitive's arguments, with a sentence on each."""
    about = primitive.about()
    return [
        {"name": p.name, "kind": p.kind, "required": p.required, "choices": None, "about": about[p.name]}
        for p in choices.parameters(primitive)
    ]


def editor(session: Session) -> dict[str, Any]:
    """The steps, and what steps there can be."""
    from neptune_lab import templates
    from neptune_lab.loop_schedule import PRIMITIVES

    primitives = [
        {
            "name": p.name,
            "ours": p.ours,
            "summary": p.summary,
            "parameters": _parameters(p),
        }
        for p in PRIMITIVES.values()
    ]
    return {
        "steps": [{**step.as_record(), "text": f"sch.{step}"} for step in session.schedule.steps],
        "primitives": primitives,
        "templates": list(templates.TEMPLATES),
        "undo": session.undoable,
        "redo": session.redoable,
        "code": code_text(session.source),
    }


def code_text(source: Source) -> str:
    """The options of code generation that differ from their defaults, and the GPU that was named; "" if none does."""
    from neptune_lab.pipeline import Choice

    options = [f"{name}={value!r}" for name, value in Choice(code=source.code).options.items()]
    return ", ".join([*options, *([] if source.target is None else [f"target={source.target}"])])


def device() -> str:
    """What kernels run on here."""
    from neptune_lab.runtime import device_facts, has_gpu

    return device_facts().name if has_gpu() else "interpreter, no GPU"
