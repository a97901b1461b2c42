"""What `nl.explore` shows, and views and records that are saved, opened and refused."""

from __future__ import annotations

import json

import pytest

import neptune_lab as nl
from neptune_lab.errors import ScheduleError, TraceError
from neptune_lab.operators import attention, softmax
from neptune_lab.trace import from_json, save, to_json


def test_explore_takes_all_that_can_be_shown(tmp_path):
    operator = softmax.figure1(4, 8)
    kernel = nl.compile(operator)
    assert nl.explore(operator).kernel.source == kernel.source
    assert nl.explore(kernel).kernel is kernel
    schedule = nl.Schedule(operator)
    explorer = nl.explore(schedule)
    assert explorer.schedule.steps == ()
    schedule.split("s_max.j", (None, 2))
    assert explorer.schedule.steps == ()
    save(kernel.trace, tmp_path / "trace.json")
    for what in (kernel.trace, tmp_path / "trace.json", str(tmp_path / "trace.json")):
        shown = json.loads(nl.explore(what).payload)
        assert (shown["live"], shown["editor"]) == (False, None)
        assert shown["trace"]["kernel"]["source"] == kernel.source
    with pytest.raises(ScheduleError, match="saved record"):
        nl.explore(kernel.trace).schedule
    with pytest.raises(ScheduleError, match="explore takes"):
        nl.explore(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.nightly
def test_the_payload_holds_the_record_and_stays_small():
    kernel = nl.compile(attention.causal(batch=1, heads=32, seq=2048, head_dim=128))
    text = nl.explore(kernel).payload
    assert len(text.encode()) < 400_000
    shown = json.loads(text)
    assert from_json(json.dumps(shown["trace"])) == from_json(to_json(kernel.trace))
    assert {"check", "tags", "tags_note", "editor", "device", "live", "kernel_error"} <= shown.keys()
    kinds = {p["kind"] for q in shown["editor"]["primitives"] for p in q["parameters"]}
    assert kinds == {"block", "loop", "loops", "buffer", "factors", "tiles", "choice", "int", "text", "sentence"}


def test_the_view_is_saved_and_opened_as_data(softmax_page, tmp_path):
    explorer = softmax_page.explorer
    explorer.view = {"step": 3, "phase": "naive", "panes": {"code": "triton"}, "sizes": {"rail": 0.2}}
    path = explorer.save_view(tmp_path / "view.json")
    explorer.view = {}
    explorer.open_view(path)
    assert explorer.view == {"step": 3, "phase": "naive", "panes": {"code": "triton"}, "sizes": {"rail": 0.2}}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch made')",
        '{"format": "something else"}',
        '{"format": "neptune_lab view", "version": 99, "view": {}}',
        '{"format": "neptune_lab view", "version": 1, "view": [1]}',
        '{"format": "neptune_lab view", "version": 1, "view": {"panes": ' + "[" * 50 + "]" * 50 + "}}",
        '{"format": "neptune_lab view", "version": 1, "view": {"step": NaN}}',
        "[" * 100_000,
        "x" * 300_000,
    ],
)
def test_a_hostile_view_is_refused(softmax_page, tmp_path, text):
    path = tmp_path / "view.json"
    path.write_text(text)
    with pytest.raises(TraceError):
        softmax_page.explorer.open_view(path)
    assert softmax_page.explorer.view == {}


def test_parts_of_a_view_that_are_not_known_are_left_out(softmax_page, tmp_path):
    path = tmp_path / "view.json"
    path.write_text('{"format": "neptune_lab view", "version": 1, "view": {"step": 1, "onload": "alert(1)"}}')
    softmax_page.explorer.open_view(path)
    assert softmax_page.explorer.view == {"step": 1}


@pytest.mark.parametrize("text", ["__import__('os')", '{"schema": 1, "__reduce__": ["os.system", "ls"]}', "[]"])
def test_a_hostile_record_is_refused(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(TraceError):
        nl.explore(path)
