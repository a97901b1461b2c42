"""The Python halves of panes: found by module, refused if two claim one thing, sent and answered."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from neptune_widgets import messages, pane, payload
from neptune_widgets.pane import Half, answers, data_of, halves, halves_in, kept_data, pane_data
from neptune_widgets.session import Session

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.operators import softmax


def count(session: Session) -> dict[str, Any]:
    """Steps of the schedule."""
    return {"steps": len(session.schedule.steps)}


def refuse(session: Session) -> None:
    """Refuses."""
    raise ScheduleError("there is nothing to count", help="add a step")


def reply(session: Session, message: dict[str, Any]) -> dict[str, Any]:
    """The message's number, doubled."""
    return {"kind": "doubled", "value": 2 * message["value"]}


def module(name: str, **functions: Any) -> ModuleType:
    """A module of panes with these functions in it, each as declared there."""
    made = ModuleType(f"neptune_widgets.panes.{name}")
    for key, (declare, function) in functions.items():

        def own(*args: Any, of: Any = function) -> Any:
            return of(*args)

        own.__module__ = made.__name__
        setattr(made, key, declare(own))
    return made


@pytest.fixture
def session() -> Session:
    return Session(nl.Schedule(softmax.figure1(2, 4)))


def test_the_panes_that_need_python_are_found():
    found = {(half.pane, half.part, half.kind) for half in halves()}
    assert {("schedule", "answer", "choices"), ("tags", "answer", "tags")} <= found


def test_a_module_declares_data_and_answers(session: Session, monkeypatch: pytest.MonkeyPatch):
    counting = module("counting", data=(pane_data, count), answer=(answers("double"), reply))
    found = halves_in([counting])
    assert [(h.pane, h.part, h.kind) for h in found] == [("counting", "data", ""), ("counting", "answer", "double")]
    for user in (payload, messages):
        monkeypatch.setattr(user, "halves", lambda: found)
    for made in (payload.live(session), payload.static(session)):
        assert json.loads(made.text)["panes"] == {"counting": {"steps": 0}}
    sent: list[dict[str, Any]] = []
    page = messages.Messages(session, sent.append, lambda *_: None)
    page.answer({"kind": "double", "seq": 3, "value": 21})
    page.answer({"kind": "double", "seq": 4})
    assert sent == [
        {"kind": "doubled", "value": 42, "seq": 3},
        {"kind": "failed", "message": "double: 'value'", "seq": 4},
    ]


def test_data_that_is_refused_says_why(session: Session):
    (error,) = data_of(session, [Half("counting", "data", "", refuse)]).values()
    assert error["error"].startswith("there is nothing to count")
    assert "add a step" in error["error"]


def test_without_data_the_payload_has_none(session: Session, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(payload, "halves", lambda: ())
    assert "panes" not in json.loads(payload.live(session).text)


def test_two_panes_that_claim_one_message_are_refused():
    one, two = (module(name, answer=(answers("double"), reply)) for name in ("one", "two"))
    with pytest.raises(TypeError, match="panes one and two both declare answer 'double'"):
        halves_in([one, two])
    twice = module("twice", a=(pane_data, count), b=(pane_data, count))
    with pytest.raises(TypeError, match="both declare data 'twice'"):
        halves_in([twice])


def test_a_list_in_a_message_is_checked():
    with pytest.raises(TypeError, match="steps is str, a list was expected"):
        pane.list_of({"steps": "x"}, "steps")


def test_kept_data_is_made_for_saved_pages_alone(session: Session, monkeypatch: pytest.MonkeyPatch):
    found = halves_in([module("counting", data=(kept_data, count))])
    monkeypatch.setattr(payload, "halves", lambda: found)
    assert "panes" not in json.loads(payload.live(session).text)
    assert json.loads(payload.static(session).text)["panes"] == {"counting": {"steps": 0}}


def test_what_is_kept_stands_in_the_stead_of_other_data(session: Session, monkeypatch: pytest.MonkeyPatch):
    found = halves_in([module("counting", kept=(kept_data, count), data=(pane_data, lambda _: "short"))])
    monkeypatch.setattr(payload, "halves", lambda: found)
    assert json.loads(payload.live(session).text)["panes"] == {"counting": "short"}
    assert json.loads(payload.static(session).text)["panes"] == {"counting": {"steps": 0}}
    with pytest.raises(TypeError, match="both declare kept"):
        halves_in([module("counting", first=(kept_data, count), second=(kept_data, count))])
