"""Tuning by message: what the page hears, a cancel that keeps what was measured, and a result that is taken over."""

from __future__ import annotations

import pytest
from waiting import LONG, wait_until

import neptune_lab as nl
from neptune_lab.operators import attention
from neptune_lab.runtime import has_gpu

# Seconds that no run of these three candidates takes, however busy the machine.
ENDLESS = 50_000
without_gpu = pytest.mark.skipif(has_gpu(), reason="a GPU is here")


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def page(page_of):
    return page_of(nl.compile(attention.causal(heads=2, kv_heads=1, seq=32, head_dim=16), validate="none"))


@pytest.mark.nightly
@without_gpu
def test_without_a_gpu_it_says_so(page):
    seq = page.post("tune", seconds=5)
    page.explorer._messages.wait(LONG)
    last = [m for m in page.sent if m["seq"] == seq][-1]
    assert (last["kind"], last["state"]) == ("tuning", "failed")
    assert "no GPU here" in last["message"]
    assert "another machine" in last["help"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seconds", [0, True, "5", 1e9])
def test_seconds_are_a_number_in_range(page, seconds):
    answer = page.ask("tune", seconds=seconds)
    assert (answer["kind"], answer["state"]) == ("tuning", "failed")
    assert f"{seconds!r} s: expected a number from 1 to 86,400" in answer["message"]


@pytest.mark.usefixtures("three_candidates", "fake_workers")
def test_a_run_tells_each_candidate_and_its_result_is_taken_over(page):
    seq = page.post("tune", seconds=ENDLESS)
    page.explorer._messages.wait(LONG)
    told = [m for m in page.sent if m["seq"] == seq]
    assert [m["state"] for m in told] == ["running"] * (len(told) - 1) + ["done"]
    assert [(m["tried"], m["failed"]) for m in told if m["phase"] == "searching"] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    last = told[-1]
    assert sorted(last["times"], key=str) == [10.0, 20.0, None]
    assert [row["us"] for row in last["rows"]] == [9.0, 19.0]  # the second times
    assert last["reasons"][0]["count"] == 1
    assert "illegal memory access" in last["reasons"][0]["why"]
    assert last["best"] == last["rows"][0]
    assert last["space"]["levels"][-1]["left"] > 0
    assert last["space"]["size"] > last["space"]["levels"][0]["left"]
    assert page.ask("take", candidate=last["best"]["candidate"])["kind"] == "edited"
    assert "num_warps=32" in page.triton
    assert page.payload["editor"]["undo"] == 1
    assert page.ask("undo")["kind"] == "edited"
    assert "num_warps=32" not in page.triton


@pytest.mark.nightly
@pytest.mark.usefixtures("three_candidates", "held_after_the_first")
def test_a_cancel_keeps_what_was_measured(page):
    seq = page.post("tune", seconds=ENDLESS)
    wait_until(lambda: any(m.get("tried") == 1 for m in page.sent))
    # Nothing else measures meanwhile.
    assert "tuning has the GPU" in page.ask("time", against=[])["note"]
    assert "under way" in page.ask("tune", seconds=5)["message"]
    page.explorer._handle_custom_msg({"kind": "cancel", "of": "tune", "seq": 99}, [])
    page.explorer._messages.wait(LONG)
    last = [m for m in page.sent if m["seq"] == seq][-1]
    assert (last["state"], last["ended"]) == ("cancelled", "cancelled")
    assert [row["us"] for row in last["rows"]] == [20.0]
    assert last["best"] == last["rows"][0]


def test_a_choice_that_is_none_is_refused(page):
    answer = page.ask("take", candidate={"template": "rolling_update", "options": {"block_qq": 1}})
    assert answer["kind"] == "failed"
    assert "block_qq" in answer["message"]
