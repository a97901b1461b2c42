"""The exercises of 02_algebra: right answers, unusual ones too, and what each likely wrong one is told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from neptune_widgets.course import Exercise, algebra

from neptune_lab.repair import solve_vector

EXERCISES = (algebra.by_hand, algebra.known, algebra.only_maximum, algebra.moved_sum)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_unanswered_is_open_with_hints(exercise: Exercise):
    for nothing in (None, ...):
        assert exercise(nothing).state == "open"
    assert 2 <= len(exercise.hints) <= 3


@pytest.mark.parametrize(
    "h",
    [
        lambda t, r, now: t * 2 ** (3 * (r - now)),
        lambda t, r, now: t * 8.0**r / 8.0**now,
        lambda t, before, after: t * math.exp(math.log(8) * (before - after)),
        lambda t, r, now: t / np.power(8, now - r),
    ],
)
def test_a_right_repair_in_any_form(h):
    assert algebra.by_hand(h)


@pytest.mark.parametrize(
    ("h", "why"),
    [
        (lambda t, r, now: t * 8 ** (now - r), "wrong way"),
        (lambda t, r, now: t * 2 ** (r - now), "would be right for `2**(c - r)`"),
        (lambda t, r, now: t * math.exp(3 * (r - now)), "base e"),
        (lambda t, r, now: t * math.exp(r - now), "base e"),
        (lambda t, r, now: t, "it commutes with the sum (Equation 4), but a term does not become"),
        (lambda t, r, now: t + 3 * (r - now), "does not commute with the sum, and"),
        (lambda t, r, now: math.log(t), "fails at some numbers"),
        (lambda t: t, "could not be called with three numbers"),
        (3, "a function of three arguments"),
    ],
)
def test_a_wrong_repair_is_told_why(h, why: str):
    verdict = algebra.by_hand(h)
    assert verdict.state == "wrong"
    assert why in verdict.text


def test_each_term_but_not_the_sum():
    """Eq. 3 alone: moves a number only where it is one of the terms that it was asked about, as a lookup would."""
    rng = np.random.default_rng(402)
    c, v, r = (rng.uniform(-2, 2, shape) for shape in ((5, 40), (5, 40), 40))
    known = {float(t) for t in (v * 2.0 ** (c - 3 * r)).ravel()}
    verdict = algebra.by_hand(lambda t, r, now: t * 8 ** (r - now) if t in known else t)
    assert "each single term (Equation 3), but not their sum" in verdict.text


@pytest.mark.parametrize("words", ["nonpositive", ["negative"], ("negative", "integer"), ["nonpositive", "finite"]])
def test_what_must_be_known(words):
    verdict = algebra.known(words)
    assert verdict
    assert "t*(r' - 2)/(r - 2)" in verdict.text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["positive"], "(3 - 2)/(1 - 2) is -1"),
        ("nonnegative", "r = 0 and r' = 3"),
        (["integer"], "are integers"),
        (["nonzero"], "prove Eq. 4"),
        ([], "nothing was told"),
        (["small"], "not a word that the solver knows"),
        (["positive", "negative"], "contradict"),
    ],
)
def test_what_does_not_help(words, why: str):
    verdict = algebra.known(words)
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.parametrize("g", ["exp(c) - r", "c + 2*r", "sinh(c - r)", "c*d - exp(r)"])
def test_terms_for_a_maximum_only(g: str):
    assert algebra.only_maximum(g)


@pytest.mark.parametrize(
    ("g", "why"),
    [
        ("c - r", "is in the table"),
        ("-r + c", "is in the table"),
        ("exp(c - r)", "under a sum it has a repair: h = t*exp(r - r')"),
        ("c", "does not depend on `r`"),
        ("c*r", "under a sum it has a repair"),
        ("max(c, r)", "under a maximum it is refused too: g0 = Max(C, r)"),
        ("exp(c", "not an expression"),
        (5, "as text"),
    ],
)
def test_other_terms(g, why: str):
    verdict = algebra.only_maximum(g)
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.parametrize(
    "value", [6, 6.0, "6", np.float32(6), solve_vector("sum", "(c - r)**2", "r").evaluate([10, 4, 3], 2, 4)[0]]
)
def test_the_sum_at_another_reference(value):
    c = np.array([5.0, 3.0, 2.0])
    assert ((c - 2) ** 2).sum() == 10
    assert (c - 2).sum() == 4
    assert ((c - 4) ** 2).sum() == 6
    assert algebra.moved_sum(value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (10, "that is the old sum"),
        (38, "sign"),
        (22, "`t_1` is missing"),
        (-6, "`t_2`, which counts"),
        (14, "has a 2 in it"),
        (-2, "second row"),
        (7, "7 is not that sum"),
        ("six", "one number"),
    ],
)
def test_slips_with_the_matrix(value, why: str):
    verdict = algebra.moved_sum(value)
    assert verdict.state == "wrong"
    assert why in verdict.text
