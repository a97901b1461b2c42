"""The traffic pane's Python half: counted when asked, once per kernel, and kept in saved pages."""

from __future__ import annotations

import json

import pytest
from neptune_widgets import payload
from neptune_widgets.panes import traffic
from neptune_widgets.session import Session

import neptune_lab as nl
from neptune_lab.operators import softmax
from neptune_lab.target import GPUS


def in_form(found, gpu, index):
    (chosen,) = [g for g in found["gpus"] if g["name"] == gpu]
    return found["counts"][chosen["counts"][index]], chosen["us"][index], chosen["bound"][index]


def test_it_is_counted_when_asked_and_not_in_every_compile(softmax_page):
    assert "traffic" not in softmax_page.payload.get("panes", {})
    answer = softmax_page.ask("traffic")
    assert answer["kind"] == "traffic"
    json.dumps(answer, allow_nan=False)


@pytest.mark.nightly
def test_every_form_at_every_gpu_is_what_the_kernel_counts(attention_kernel):
    found = traffic.data(Session(attention_kernel.schedule, attention_kernel))
    assert [g["name"] for g in found["gpus"]] == list(GPUS)
    for gpu in ("h200", "l40s"):
        forms = attention_kernel.traffic(gpu, blocks=1).forms
        assert [f["name"] for f in found["forms"]] == [f.name for f in forms]
        assert [(f["step"], f["phase"]) for f in found["forms"]] == [(f.step, f.phase) for f in forms]
        for n, form in enumerate(forms):
            counts, us, bound = in_form(found, gpu, n)
            assert (counts["read"], counts["written"]) == (form.read, form.written)
            assert (counts["moved"], counts["chip"], counts["operations"]) == (form.moved, form.chip, form.operations)
            assert [t["name"] for t in counts["tensors"]] == [t.name for t in form.tensors]
            assert (us, bound) == (form.roofline.us, form.roofline.bound)


@pytest.mark.nightly
def test_every_form_is_a_stop_of_the_record(attention_kernel):
    session = Session(attention_kernel.schedule, attention_kernel)
    stops = {(step.index, phase.key) for step in session.trace.steps for phase in step.phases}
    assert {(f["step"], f["phase"]) for f in traffic.data(session)["forms"]} == stops | {(None, "")}


@pytest.mark.nightly
def test_the_same_kernel_is_counted_once_and_an_edited_one_anew(softmax_page, monkeypatch):
    counted = []
    real = traffic.counted
    monkeypatch.setattr(traffic, "counted", lambda *given: counted.append(given) or real(*given))
    first = softmax_page.ask("traffic")["traffic"]
    assert softmax_page.ask("traffic")["traffic"] is first
    assert len(counted) == 1
    steps = softmax_page.steps
    tile = next(n for n, s in enumerate(steps) if s["primitive"] == "set_scope")
    assert softmax_page.ask("edit", steps=steps[:tile] + steps[tile + 1 :])["kind"] == "edited"
    second = softmax_page.ask("traffic")["traffic"]
    assert len(counted) == 2
    assert len(second["forms"]) == len(first["forms"]) - 1


@pytest.mark.nightly
def test_a_saved_page_has_it(softmax_kernel):
    session = Session(softmax_kernel.schedule, softmax_kernel)
    assert json.loads(payload.static(session).text)["panes"]["traffic"] == json.loads(json.dumps(traffic.data(session)))
    assert "traffic" not in json.loads(payload.live(session).text).get("panes", {})


def test_a_schedule_without_a_kernel_ends_with_its_last_step():
    session = Session(nl.Schedule(softmax.figure1(2, 4)))
    session.kernel = None
    assert [f["name"] for f in traffic.data(session)["forms"]] == ["definition"]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("gpu", GPUS)
def test_each_gpu_has_its_memories(softmax_kernel, gpu):
    found = traffic.data(Session(softmax_kernel.schedule, softmax_kernel))
    (chosen,) = [g for g in found["gpus"] if g["name"] == gpu]
    names = [level["name"] for level in chosen["levels"]]
    assert names == ["registers", "shared memory", "L2 cache", "global memory"]
    assert chosen["levels"][-1]["gbps"] == chosen["gbps"]
