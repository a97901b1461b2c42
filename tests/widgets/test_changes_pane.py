"""What an edit changed: the versions that an explorer compares with, their records and traffic, and saved pages."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from neptune_widgets import payload
from neptune_widgets.panes import changes, traffic
from neptune_widgets.session import Refused, Session

import neptune_lab as nl
from neptune_lab.errors import MachineCodeError
from neptune_lab.operators import softmax


def steps_of(schedule):
    return [step.as_record() for step in schedule.steps]


def without(steps, primitive):
    """The steps without the last one of a primitive."""
    at = max(n for n, step in enumerate(steps) if step["primitive"] == primitive)
    return steps[:at] + steps[at + 1 :]


@pytest.fixture
def session(softmax_kernel):
    return Session(softmax_kernel.schedule, softmax_kernel)


def test_nothing_to_compare_with_before_the_first_edit(session):
    assert changes.names(session) == {}
    assert changes.answer(session, {"version": "before"})["side"] is None


@pytest.mark.nightly
def test_after_an_edit_the_schedule_before_it_which_is_the_first_one_too(session, softmax_kernel):
    first = steps_of(softmax_kernel.schedule)
    session.edit(without(first, "set_scope"))
    assert list(changes.names(session)) == ["before"]
    found = changes.answer(session, {"version": "before"})["side"]
    assert found["steps"] == json.loads(json.dumps(first))
    assert found["trace"]["kernel"]["source"] == softmax_kernel.source
    assert found["traffic"] is None, "it is shown before its traffic is counted"
    later = changes.version_traffic(session, {"version": "before"})
    session.edit(first)  # what is counted is what was asked about
    assert later()["traffic"] == traffic.counted(softmax_kernel.schedule, softmax_kernel)
    assert changes.version_traffic(session, {"version": "none"})["traffic"] is None


def test_after_two_edits_the_one_before_and_the_first(session, softmax_kernel):
    first = steps_of(softmax_kernel.schedule)
    second = without(first, "set_scope")
    session.edit(second)
    kept = session.kernel
    session.edit(without(second, "set_scope"))
    assert list(changes.names(session)) == ["before", "opened"]
    assert changes.side(session, "before")["trace"]["kernel"]["source"] == kept.source
    assert changes.side(session, "opened")["trace"]["kernel"]["source"] == softmax_kernel.source


def test_undo_is_an_edit_and_the_first_schedule_is_not_compared_with_itself(session, softmax_kernel):
    second = without(steps_of(softmax_kernel.schedule), "set_scope")
    session.edit(second)
    session.undo()
    assert list(changes.names(session)) == ["before"]
    assert changes.side(session, "before")["steps"] == json.loads(json.dumps(second))


def test_a_refused_edit_changes_no_version(session, softmax_kernel):
    session.edit(without(steps_of(softmax_kernel.schedule), "set_scope"))
    before = session.before
    with pytest.raises(Refused):
        session.edit([{"primitive": "tile", "arguments": {"block": "nothing", "tiles": {"i": 2}}}])
    assert session.before is before


@pytest.mark.nightly
def test_a_version_is_read_once_and_anew_after_the_next_edit(session, softmax_kernel, monkeypatch):
    counted = []
    real = traffic.counted
    monkeypatch.setattr(traffic, "counted", lambda *given: counted.append(given) or real(*given))
    second = without(steps_of(softmax_kernel.schedule), "set_scope")
    session.edit(second)
    count = lambda: changes.version_traffic(session, {"version": "before"})()["traffic"]  # noqa: E731
    assert changes.side(session, "before") is changes.side(session, "before")
    assert counted == []
    assert count() is count()
    assert len(counted) == 1
    session.edit(without(second, "set_scope"))
    assert changes.side(session, "before")["steps"] == json.loads(json.dumps(second))
    count()
    assert len(counted) == 2
    # The same schedule with other options is another kernel.
    session.source = replace(session.source, code=nl.CodeOptions(loop_stages=3))
    session.before = type(session.opened)(session.opened.source, None)
    assert count() is not None
    assert len(counted) == 3


@pytest.mark.nightly
def test_a_page_with_python_has_names_and_a_saved_one_the_versions(session, softmax_kernel):
    session.edit(without(steps_of(softmax_kernel.schedule), "set_scope"))
    assert json.loads(payload.live(session).text)["panes"]["changes"] == {"before": None}
    kept = json.loads(payload.static(session).text)["panes"]["changes"]
    assert kept["before"]["trace"]["kernel"]["source"] == softmax_kernel.source
    counted = traffic.counted(softmax_kernel.schedule, softmax_kernel)
    assert kept["before"]["traffic"] == json.loads(json.dumps(counted))


def test_a_version_without_a_kernel_ends_with_its_loops():
    session = Session(nl.Schedule(softmax.figure1(2, 4)))
    session.opened = type(session.opened)(session.source, None)
    session.edit([{"primitive": "rolling_update", "arguments": {"block": "s_sum", "loop": "s_max.j", "maps": "keep"}}])
    session.before = type(session.opened)(session.opened.source, None)
    found = changes.side(session, "before")
    assert found["trace"]["kernel"] is None
    counted = changes.version_traffic(session, {"version": "before"})()["traffic"]
    assert [f["name"] for f in counted["forms"]] == ["definition"]


@pytest.mark.nightly
def test_resources_are_those_of_the_machine_code_of_both(session, softmax_kernel):
    session.edit(without(steps_of(softmax_kernel.schedule), "set_scope"))
    answer = changes.resources(session, {"gpu": "a100", "version": "before"})()
    want = softmax_kernel.machine_code("a100").kernels
    launches = answer["kernels"]["before"]["launches"]
    assert [(x["registers"], x["shared"], x["blocks"]) for x in launches] == [
        (k.resources.registers, k.resources.shared_bytes, k.resources.occupancy.blocks) for k in want
    ]
    assert answer["kernels"]["now"]["error"] == ""


def test_resources_say_why_they_are_not_known(session, softmax_kernel, monkeypatch):
    def fails(*_):
        raise MachineCodeError("there is no assembler")

    monkeypatch.setattr(type(softmax_kernel), "machine_code", fails)
    answer = changes.resources(session, {"gpu": "a100", "version": "before"})()
    assert answer["kernels"] == {"now": {"error": "there is no assembler", "launches": []}, "before": None}
