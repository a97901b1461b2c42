"""Tuning in the page: its progress, a cancel that keeps what was measured, and a candidate as the schedule."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

import neptune_lab as nl
from neptune_lab.operators import attention

VIEW = {"step": -1, "phase": "triton", "panes": {"graph": "timing", "narrow": "graph"}}
# Seconds that no run of these three candidates takes, however busy the machine.
ENDLESS = "50000"


@pytest.fixture(scope="module")
def kernel() -> nl.Kernel:
    return nl.compile(attention.causal(heads=2, kv_heads=1, seq=32, head_dim=16), validate="none")


@pytest.mark.usefixtures("own_cache", "three_candidates", "held_after_the_first")
def test_progress_cancel_and_take_over(live, kernel):
    drawn = live(kernel, VIEW)
    tune = drawn.root.get_by_role("region", name="tuning")
    drawn.waits = False
    tune.get_by_label("seconds to tune").fill(ENDLESS)
    tune.get_by_role("button", name="Tune", exact=True).click()
    expect(tune.get_by_role("status")).to_contain_text("starting the processes")
    expect(tune.get_by_role("button", name="Tune", exact=True)).to_be_disabled()
    drawn.deliver(lambda m: m.get("tried") == 1)
    expect(tune.get_by_role("status")).to_contain_text("searching · 1 tried, 0 without a time · best 20 µs")
    expect(tune.locator("tbody tr")).to_have_count(1)
    expect(tune.get_by_role("img", name="1 candidates, 0 without a time")).to_be_visible()
    expect(
        tune.get_by_role("img", name=re.compile("combinations: [0-9]+; .*tried so far: 1; with a time: 1"))
    ).to_be_visible()
    expect(tune.get_by_role("button", name="take over")).to_be_disabled()
    tune.get_by_role("button", name="Cancel").click()
    expect(tune.get_by_role("status")).to_contain_text("waits for what is on the GPU")
    drawn.deliver(lambda m: m.get("state") == "cancelled")
    expect(tune.get_by_role("status")).to_contain_text("cancelled; what was measured is kept")
    assert drawn.asked[-1]["of"] == "tune"
    drawn.waits = True
    before = drawn.explorer.kernel.source
    tune.get_by_role("button", name="take over").click()
    expect(tune.get_by_text("This candidate is the schedule now")).to_be_visible()
    assert drawn.explorer.kernel.source != before
    assert "{'i': 16, 'j': 16}" in str([step.plain_arguments() for step in drawn.explorer.schedule.steps])


@pytest.mark.nightly
@pytest.mark.usefixtures("own_cache", "three_candidates", "fake_workers")
def test_a_whole_run(live, kernel):
    drawn = live(kernel, VIEW, width=900)
    tune = drawn.root.get_by_role("region", name="tuning")
    tune.get_by_label("seconds to tune").fill(ENDLESS)
    tune.get_by_role("button", name="Tune", exact=True).click()
    rows = tune.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("fastest")
    expect(rows.first).to_contain_text("num_warps=32")
    expect(tune.get_by_text("illegal memory access")).to_be_visible()
    expect(tune.get_by_role("button", name="Cancel")).to_be_hidden()


@pytest.mark.nightly
@pytest.mark.usefixtures("own_cache")
def test_without_a_gpu_the_page_says_so(live, kernel, monkeypatch):
    monkeypatch.setattr("neptune_lab.tuning.workers.gpu_count", lambda: 0)
    drawn = live(kernel, VIEW)
    tune = drawn.root.get_by_role("region", name="tuning")
    expect(tune).to_contain_text("Tuning measures candidates on a GPU")  # before anything was pressed
    expect(drawn.root.locator(".timing > p.note")).to_contain_text("There is no GPU here, so nothing can be timed.")
    tune.get_by_role("button", name="Tune", exact=True).click()
    expect(tune.get_by_role("alert")).to_contain_text("no GPU here: nothing can be timed")
    expect(tune.get_by_role("alert")).to_contain_text("measure on another machine")
    expect(tune.locator("tbody tr")).to_have_count(0)
    # A time that is none is refused before Python hears of it.
    tune.get_by_label("seconds to tune").fill("0")
    asked = len(drawn.asked)
    tune.get_by_role("button", name="Tune", exact=True).click()
    expect(tune.get_by_role("alert")).to_contain_text("0 is no number of seconds from 1 to 86400")
    assert len(drawn.asked) == asked
