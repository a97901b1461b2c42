"""Timing: on a GPU it measures, without one it says so, and it can be stopped."""

from __future__ import annotations

import threading

import pytest
from neptune_widgets.timing import Job, row_json, run_jobs

import neptune_lab as nl
from neptune_lab.operators import attention, softmax
from neptune_lab.pipeline.facts import Work
from neptune_lab.pipeline.timing import LocalGpu, NoGpu, TimingLimits, TimingRow
from neptune_lab.runtime import Ceiling, Measured, has_gpu, measure
from neptune_lab.runtime.timing import _quantile
from neptune_lab.target import DEFAULT, Target

without_gpu = pytest.mark.skipif(has_gpu(), reason="a GPU is here")


@pytest.fixture(scope="module")
def kernel():
    return nl.compile(softmax.figure1(4, 8), block_q=2, block_kv=4)


class Scripted:
    """A runner that gives figures it was told, and stops at a word."""

    name = "a test"

    def __init__(self, stop_after=None):
        self.times, self.stop_after, self.started = 0, stop_after, threading.Event()

    def time(self, name, kernel, limits):
        self.times += 1
        self.started.set()
        if limits.progress:
            limits.progress(0.5)
        if self.times == self.stop_after:
            raise KeyboardInterrupt
        measured = Measured(100.0 * self.times, 90.0, 120.0, 100, "a test", True)
        return TimingRow(name, Work(1e9, 1e6), measured, (), Ceiling("a test", 100.0, 1000.0, "made up"))


@without_gpu
def test_without_a_gpu_nothing_is_measured(kernel):
    with pytest.raises(nl.errors.MeasureError, match="no GPU here"):
        measure(lambda: None)
    found = nl.time(kernel, against={"whole rows": nl.compile(softmax.figure1(4, 8))})
    assert "no GPU here: nothing was timed" in found.note
    assert "H200" in found.note
    for row in found.rows:
        assert row.measured is None
        assert "right in Triton's interpreter" in row.note
    for text in (str(found), found._repr_html_()):
        assert "estimate" in text
        assert "whole rows" in text
    assert "<details>" in found._repr_html_()
    assert "<script" not in found._repr_html_()


@pytest.mark.nightly
@without_gpu
def test_a_large_kernel_is_interpreted_at_smaller_sizes():
    (row,) = nl.time(nl.compile(attention.causal(batch=1, heads=32, seq=2048, head_dim=128))).rows
    assert "right in Triton's interpreter" in row.note
    assert "q_len=256" in row.note
    assert row.estimate_us == pytest.approx(35, abs=2)
    assert "not run" in NoGpu().time("x", nl.compile(attention.causal(seq=1024)), TimingLimits()).note


@without_gpu
def test_the_pane_hears_that_there_is_no_gpu(softmax_page):
    page = softmax_page
    other = [{**page.steps[0], "arguments": {"block": "s_max", "tiles": {"i": 4, "j": 4}}}, *page.steps[1:]]
    seq = page.post("time", against=[{"name": "taller", "steps": other}, {"name": "broken", "steps": [page.steps[2]]}])
    page.explorer._messages.wait(300)
    answers = [m for m in page.sent if m["seq"] == seq]
    assert answers[0]["state"] == "running"
    assert answers[-1]["state"] == "none"
    assert "no GPU here" in answers[-1]["note"]
    this, taller, broken = answers[-1]["rows"]
    assert (this["estimate"], taller["name"]) == (True, "taller")
    assert broken["us"] is None
    assert broken["note"]


@pytest.mark.nightly
def test_an_earlier_version_is_timed_as_it_was_compiled(page_of, monkeypatch):
    """Its options of code generation too: two kernels of the same steps are not one."""
    timed = []

    class Kept(Scripted):
        def time(self, name, kernel, limits):
            timed.append((name, kernel))
            return super().time(name, kernel, limits)

    monkeypatch.setattr("neptune_lab.pipeline.timing.local", lambda smaller: Kept())
    opened = nl.compile(softmax.figure1(4, 8), disable_passes=("exponentials_to_base_two",), validate="none")
    page = page_of(opened)
    assert page.ask("default_code")["kind"] == "edited"
    assert page.triton != opened.source
    seq = page.post("time", against=[{"name": "as opened", "version": "opened"}, {"name": "x", "version": "y"}])
    page.explorer._messages.wait(300)
    last = [m for m in page.sent if m["seq"] == seq][-1]
    assert [(name, kernel.source) for name, kernel in timed] == [
        ("this schedule", page.triton),
        ("as opened", opened.source),
    ]
    assert [(row["name"], row["us"]) for row in last["rows"]] == [
        ("this schedule", 100.0),
        ("as opened", 200.0),
        ("x", None),
    ]
    assert "has no kernel" in last["rows"][2]["note"]


def test_rows_have_rates_and_a_place_on_the_roofline(kernel):
    found = nl.time(kernel, against=[kernel], runner=Scripted())
    first, second = (row_json(r) for r in found.rows)
    assert (first["us"], first["spread"], first["estimate"]) == (100.0, 15.0, False)
    assert first["tflops"] == pytest.approx(10.0)
    assert first["gbps"] == pytest.approx(10.0)
    assert first["roofline"] == pytest.approx(0.1)
    assert second["name"] == "other"
    assert "10% of the roofline" in first["note"]
    assert "10.0 TFLOP/s  10 GB/s  10% of the roofline" in str(found)
    assert "median" in found._repr_html_()
    assert "the same code" in found._repr_html_()


def test_an_interrupt_keeps_what_was_measured(kernel):
    found = nl.time(kernel, against=[kernel, kernel], runner=Scripted(stop_after=2))
    assert found.cancelled
    assert len(found.rows) == 1
    assert "interrupted" in found.note


def test_a_cancel_ends_a_series(kernel):
    stop, said = threading.Event(), []
    states = []
    for state in run_jobs(
        [Job("a", kernel), Job("b", kernel)], cancel=stop.is_set, progress=said.append, runner=Scripted()
    ):
        states.append(state)
        if state["rows"]:
            stop.set()
    assert [s["state"] for s in states] == ["running", "running", "cancelled"]
    assert [r["name"] for r in states[-1]["rows"]] == ["a"]
    assert said[0]["progress"] == pytest.approx(0.25)


def test_ceilings_and_quantiles():
    assert Target.known("NVIDIA H200").ceiling.gbps == 4800
    assert Target.known("a toaster") is None
    assert DEFAULT.ceiling.device == "H200"
    assert Ceiling("x", 1.0, 1.0, "").seconds(2e12, 1e9) == 2.0
    assert _quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert _quantile([1.0, 2.0], 0.1) == pytest.approx(1.1)


@pytest.mark.gpu
def test_a_gpu_measures(kernel):
    row = LocalGpu().time("it", kernel, TimingLimits())
    assert row.measured.low <= row.measured.us <= row.measured.high
    assert row.resources[0].registers > 0
    with pytest.raises(nl.errors.MeasureError, match="cancelled"):
        measure(lambda: None, cancel=lambda: True)
