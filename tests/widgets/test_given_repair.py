"""The explorer with a repair that is given: its editor takes one, and what is not proved is marked in each view."""

from __future__ import annotations

import numpy as np
from neptune_widgets.choices import choices
from neptune_widgets.schedule_text import parse, to_text
from neptune_widgets.static_view import html

import neptune_lab as nl
from neptune_lab.operators import softmax
from neptune_lab.pipeline.record import schedule_trace

EXCHANGED = "t * exp(xmax_now - xmax_before)"
STEP = {
    "primitive": "rolling_update",
    "arguments": {"block": "s_sum", "loop": "s_max.j", "repair": EXCHANGED, "proved": False},
}
INP = [[3.0, 1.0, 4.0, 2.0], [2.0, 1.0, 0.0, -1.0]]


def test_the_page_shows_where_a_wrong_repair_goes_wrong(page_of):
    page = page_of(nl.Schedule(softmax.figure1()))
    assert page.ask("edit", steps=[STEP])["kind"] == "edited"
    phases = page.payload["trace"]["steps"][1]["phases"]
    assert [p["wrong"] for p in phases] == [False, True, True, True]
    assert "not proved" in page.payload["kernel_error"]["message"]
    checked = page.ask("check")
    assert (checked["ok"], "does NOT equal" in checked["text"]) == (False, True)
    table = page.ask("tags", step=1, phase="repaired", rolling="j", inputs={"inp": INP})["table"]
    assert "xsum[0]: first wrong at j = 2" in table["note"]
    (row,) = [r for r in table["rows"] if (r["label"], r["kind"]) == ("xsum[0]", "value")]
    assert [(c["sign"], c["right"]) for c in row["cells"]] == [("!", True), ("!", True), ("✗", False), ("✗", False)]
    should = np.exp(np.array([3 - 4, 1 - 4, 0], np.float32)).sum()
    assert row["cells"][2]["should_be"] == f"{should:.4g}"


def test_a_wrong_repair_without_leave_is_refused_with_its_phases(page_of):
    page = page_of(nl.Schedule(softmax.figure1()))
    step = {**STEP, "arguments": {**STEP["arguments"], "proved": True}}
    answer = page.ask("edit", steps=[step])
    assert answer["kind"] == "refused"
    assert "h gives" in answer["error"]["message"]
    assert "exchanged" in answer["error"]["help"]


def test_both_editors_take_a_repair():
    schedule = nl.Schedule(softmax.figure1())
    found = {p.name: p for p in choices(schedule, "rolling_update", STEP["arguments"])}
    assert (found["repair"].kind, found["repair"].value) == ("text", EXCHANGED)
    assert (found["proved"].kind, found["proved"].choices) == ("choice", [False])
    derived = {p.name: p for p in choices(schedule, "rolling_update", {"block": "s_sum", "loop": "s_max.j"})}
    assert derived["proved"].choices == [True]
    (parsed,) = parse(f'sch.rolling_update("s_sum", "s_max.j", repair="{EXCHANGED}", proved=False)')
    schedule.apply(parsed.step)
    assert [p.step for p in parse(to_text(schedule.steps))] == list(schedule.steps)


def test_the_static_view_says_it(page_of):
    schedule = nl.Schedule(softmax.figure1())
    schedule.rolling_update("s_sum", "s_max.j", repair=EXCHANGED, proved=False)
    shown = html(schedule_trace(schedule))
    assert "repaired program, not proved (wrong on purpose)" in shown
    assert "✗ Prove Eq. 3: not proved" in shown
    assert "# s_sum: its repair is not proved" in shown
