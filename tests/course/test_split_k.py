"""The exercises on splits, the model's figures, and the measuring path."""

from __future__ import annotations

import math

import pytest
from neptune_widgets.course import split_k

import neptune_lab as nl


def by_hand(sch):
    sch.split("x_max.j", (3, None))
    sch.split_k_update("s_sum", "x_max.j0")


def by_template(sch):
    return nl.templates.split_k_update(sch, block_kv=4, config=nl.SplitKConfig(splits=3))


def maximum_first(sch):
    sch.split("x_max.j", (3, 2, 2))
    sch.privatize_reduction("x_max.j0")
    sch.split_k_update("s_sum", "x_max_local.j0")


@pytest.mark.parametrize("schedule", [by_hand, by_template, maximum_first])
def test_schedules_in_three_parts_are_right(schedule):
    assert split_k.split_norm(schedule)


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (lambda sch: sch.rolling_update("s_sum", "x_max.j"), "this is a rolling loop"),
        (lambda sch: sch.split_k_update("s_sum", "x_max.j"), "split the loop first"),
        (lambda sch: None, "changed nothing"),
        (lambda sch: (sch.split("x_max.j", (2, 6)), sch.split_k_update("s_sum", "x_max.j0")), "2 local parts"),
        (lambda sch: (sch.split("x_max.j", (3, 4)), sch.privatize_reduction("x_max.j0")), "the sum has none"),
        ("split", "expected a function"),
    ],
)
def test_other_schedules_are_told_why(schedule, why: str):
    verdict = split_k.split_norm(schedule)
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.parametrize("answer", [[math.exp(-2), math.exp(-5), 1], (0.135, 0.00674, 1.0)])
def test_right_factors(answer):
    assert split_k.factors(answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([1, 1, 1], "naive fusion"),
        ([0, 1, math.exp(-2)], "rolling loop"),
        ([1, 1, math.exp(-2)], "rolling loop"),
        ([math.exp(2), math.exp(5), 1], "opposite sign"),
        ([math.exp(-2), 0.5, 1], "the factor of part 1"),
        ([1, 2], "three numbers"),
        ("e", "three numbers"),
    ],
)
def test_other_factors_are_told_why(answer, why: str):
    verdict = split_k.factors(answer)
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.nightly
def test_bytes_between_the_kernels():
    right = (64 + 1 + 1) * 4 * 8 * 16
    assert split_k.partial_bytes(right)
    assert split_k.partial_bytes(float(right))
    for answer, why in {
        64 * 4 * 8 * 16: "the accumulator alone",
        right // 2: "not float16",
        2 * right: "stored once",
        right // 8: "one head",
        right // 16: "one split",
        right // 4: "number of values",
        65 * 4 * 8 * 16: "one of the three",
        7: "less than",
        10**9: "more than",
    }.items():
        verdict = split_k.partial_bytes(answer)
        assert verdict.state == "wrong"
        assert why in verdict.text


def test_the_first_number_of_queries_that_rolls():
    assert split_k.first_rolling(385)
    for answer, why in {
        384: "still splits",
        448: "one query less",
        1: "with 1 query the compiler still splits",
        0: "number of queries",
    }.items():
        verdict = split_k.first_rolling(answer)
        assert verdict.state == "wrong"
        assert why in verdict.text


@pytest.mark.parametrize(
    "question", [split_k.factors, split_k.partial_bytes, split_k.split_norm, split_k.first_rolling]
)
def test_unanswered(question):
    assert question(None).state == "open"
    assert question.hints


def test_the_model_charges_for_the_combining_kernel():
    one, eight = (split_k.estimate(1, 8192, "split_k_update", splits=n) for n in (1, 8))
    assert (len(one.us), len(eight.us)) == (1, 2)
    assert (one.programs, eight.programs) == (32, 256)
    # Partial results: 32 heads, 8 splits, a maximum, a sum and 128 numbers in float32, written and read.
    partial = 32 * 8 * (2 + 128) * 4
    assert 2 * partial <= eight.moved - one.moved <= 2.5 * partial


def rows(**change):
    decode = [{"kv_len": keys, "splits": n, "us": 100.0 / n} for keys in split_k.KEYS for n in (1, 2)]
    names = ("rolling_update", "split_k_update")
    templates = [
        {"q_len": q, "template": name, "us": us} for q in (1, 64) for name, us in zip(names, (2.0, 1.0), strict=True)
    ]
    return {"decode": decode, "templates": templates} | change


def test_figures_show_what_was_measured_beside_the_model():
    from neptune_widgets.course import Run

    found = [split_k.Estimate("split_k_update", n, 32 * n, 1, (10.0 / n,)) for n in (1, 2)]
    run = Run("split_k", rows(), "NVIDIA H200", "today", {}, "make")
    figure, words = split_k.splits_figure({8192: found}, None)
    assert len(figure.data) == 1
    assert "measured" not in words
    figure, words = split_k.splits_figure({8192: found}, run)
    assert [list(trace.y) for trace in figure.data] == [[10.0, 5.0], [100.0, 50.0]]
    assert "measured, 8192 keys: 1: 100.0, 2: 50.0" in words
    figure, words = split_k.queries_figure({1: found, 64: found}, run)
    assert [list(trace.y) for trace in figure.data] == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.nightly
def test_measuring_checks_and_times_every_kernel(monkeypatch):
    """On a CPU, with small sizes and the host's clock: the path is the one that a GPU takes."""
    from neptune_lab.bench import clock

    monkeypatch.setattr(clock, "GpuTimer", lambda **_: clock.HostTimer(turns=1))
    for name, value in (("HEADS", 1), ("HEAD_DIM", 16), ("KEYS", (128,)), ("SPLITS", (1, 2)), ("QUERIES", (1,))):
        monkeypatch.setattr(split_k, name, value)
    data = split_k.measure()
    assert [(row["kv_len"], row["splits"]) for row in data["decode"]] == [(128, 1), (128, 2)]
    assert [row["template"] for row in data["templates"]] == ["rolling_update", "split_k_update"]
    for row in data["decode"] + data["templates"]:
        assert 0 < row["low"] <= row["us"] <= row["high"]
        assert row["error"] < split_k.RIGHT
    monkeypatch.setattr(split_k, "RIGHT", 0.0)
    with pytest.raises(nl.errors.MeasureError, match="is off by"):
        split_k.measure()
