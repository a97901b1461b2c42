"""The exercises on rolling update: what is right, and what each likely wrong answer is told."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from neptune_widgets.course import rolling_update as exercises


@pytest.mark.parametrize("answer", [[math.exp(-3), 1, math.exp(-2)], (0.0498, 1, 0.135), np.exp([-3.0, 0, -2])])
def test_right_factors(answer: Any):
    assert exercises.factors(answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([math.exp(3), 1, math.exp(2)], "one over the factors"),
        ([-3, 0, -2], "the exponents"),
        ([math.exp(-3), math.exp(4), math.exp(-6)], "each number with the one before"),
        ([math.exp(-3), 0, math.exp(-2)], "at j = 2 the factor is not 0"),
        ([0.5, 0.5, 0.5], "at j = 1 the factor is not 0.5"),
        ([0.05, 1], "expected 3 numbers"),
        ("1", "expected 3 numbers"),
        ([[1], [2, 3]], "expected 3 numbers"),
    ],
)
def test_wrong_factors_are_told_why(answer: Any, why: str):
    verdict = exercises.factors(answer)
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.parametrize("answer", [[30, 30 * math.exp(-3) + 10, 10.9485], (30, 11.5, 10.95)])
def test_right_accumulators(answer: Any):
    assert exercises.accumulator(answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([30, 40, 20], "without a repair"),
        ([30, 12, 11], "repair what it held, then add"),
        ([30, 11.4936, 11.4936], "still has to be divided"),
        ([30, 11.4936, 5.7468], "by the repaired sum"),
        ([1.49, 11.4936, 10.9485], "after key 0"),
        ([30, 11.5], "expected 3 numbers"),
    ],
)
def test_wrong_accumulators_are_told_why(answer: Any, why: str):
    verdict = exercises.accumulator(answer)
    assert verdict.state == "wrong"
    assert why in verdict.text


def steps(*calls: tuple[Any, ...]) -> Any:
    def build(sch: Any) -> None:
        for name, *arguments in calls:
            options = arguments.pop() if isinstance(arguments[-1], dict) else {}
            getattr(sch, name)(*arguments, **options)

    return build


SPLIT = ("split", "s_max.j", (None, 4))
FUSE = ("rolling_update", "s_sum", "s_max.j0")
RETIRE = ("retire_tags", "s_max")


@pytest.mark.parametrize(
    "build",
    [
        steps(SPLIT, FUSE, RETIRE),
        steps(("split", "s_max.j", (2, None)), FUSE, RETIRE),
        steps(SPLIT, ("rolling_update", "s_sum", "s_max.j0", "keep"), RETIRE),
        steps(("tile", "s_max", {"i": 1, "j": 4}), FUSE, RETIRE),
    ],
)
def test_right_schedules(build: Any):
    verdict = exercises.tiled(build)
    assert verdict, verdict
    assert "equals the definition" in verdict.text


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda sch: None, "was not changed"),
        (steps(SPLIT), "is not split"),
        (steps(SPLIT, ("split", "s_exp.j", (None, 4)), ("split", "s_sum.j", (None, 4))), "still has its own loop"),
        (steps(("rolling_update", "s_sum", "s_max.j"), RETIRE), "is not split"),
        (steps(SPLIT, FUSE), "keeps the value of every tile"),
        (steps(("split", "s_max.j", (None, 2)), FUSE, RETIRE), "found [4] of [2]"),
        (steps(SPLIT, ("rolling_update", "s_sum", "s_max.j"), RETIRE), "the compiler refused"),
        (steps(SPLIT, RETIRE), "has no tags to retire"),
        (7, "expected a function"),
    ],
)
def test_wrong_schedules_are_told_what_is_missing(build: Any, why: str):
    verdict = exercises.tiled(build)
    assert verdict.state == "wrong"
    assert why in verdict.text


def test_open():
    assert {ask(None).state for ask in (exercises.factors, exercises.accumulator, exercises.tiled)} == {"open"}
