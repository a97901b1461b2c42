"""Singular points of producers: where they are, and what stands in for them."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp

from neptune_lab.repair import solve, text
from neptune_lab.repair.reducers import REDUCERS

NONNEGATIVE = {"r": ["nonnegative"]}
OO = sp.oo


def found(term, reducer):
    return {guard.point: (guard.replacement, guard.final_repair) for guard in term.reachable_guards("r", reducer)}


@pytest.mark.parametrize(
    ("f", "g", "assumptions", "producer_reducer", "guards", "start"),
    [
        ("sum", "exp(c - r)", {}, "max", {-OO: (0, False)}, None),
        ("sum", "(c/r)**2", NONNEGATIVE, "max", {0: (1, False)}, 1),
        ("max", "c/sqrt(r + 1e-5)", NONNEGATIVE, "sum", {}, None),
        ("sum", "c*r", {}, "sum", {0: (1, True)}, 1),
        ("max", "c - r", {}, "max", {-OO: (0, False)}, None),
        ("max", "c - r", {}, "min", {OO: (0, False)}, 0),
        ("sum", "c/(r + 1)", {}, "sum", {-1: (0, False)}, None),
        ("sum", "c/log(r)", {"r": ["positive"]}, "prod", {1: (2, False)}, None),
    ],
)
def test_guards_and_starts(f, g, assumptions, producer_reducer, guards, start):
    term = solve(f, g, "r", assumptions=assumptions)
    assert found(term, producer_reducer) == guards
    assert term.initial_value("r", producer_reducer) == start


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("f", "g", "producer_reducer", "values"),
    [
        ("sum", "(c/r)**2", "max", [0.0, 0.0, 2.0]),
        ("sum", "exp(c - r)", "max", [-np.inf, -np.inf, 2.0]),
        ("max", "c - r", "max", [-np.inf, 1.0, 2.0]),
        ("min", "c - r", "min", [np.inf, 1.0, 0.5]),
        ("max", "c/r", "max", [0.0, 1.0, 2.0]),
        ("prod", "exp(c/r)", "max", [0.0, 1.0, 2.0]),
        ("any", "c", "max", [-np.inf, 1.0, 2.0]),
        ("all", "c", "min", [np.inf, 1.0, 0.5]),
    ],
)
def test_the_identity_of_every_reducer_stays_through_singular_tags(f, g, producer_reducer, values):
    """Leading zeros and masked tags: before the first term f's identity is carried, and no NaN is made of it."""
    nonnegative = {"r": ["nonnegative"]} if min(values) >= 0 and f != "min" else {}
    term = solve(f, g, "r", assumptions=nonnegative)
    start, identity = REDUCERS[producer_reducer].identity, float(REDUCERS[f].identity)
    first = term.initial_value("r", producer_reducer)
    previous = float(start if first is None else first)
    replacement = {
        float(guard.point): float(guard.replacement) for guard in term.reachable_guards("r", producer_reducer)
    }
    for value in values:
        current = replacement.get(value, value)
        assert term.evaluate(identity, {"r": previous}, {"r": current}) == identity
        previous = current
    shown = term.as_record()["guards"]
    assert {float(sp.sympify(str(guard["point"]).replace("∞", "oo"))) for guard in shown} >= set(replacement)


def test_finite_leaves_the_ends_out():
    assert solve("sum", "exp(c - r)", "r", assumptions={"r": ["finite"]}).guards == ()


def test_a_guard_may_stand_at_a_constant():
    term = solve("sum", "c/(r - k)", "r", constants="k")
    assert "k" in [text(guard.point) for guard in term.guards]


def test_starts_that_only_spoil_each_other_get_stand_ins():
    """0/(-oo) and 0/oo are each clean, and 0/(-oo + oo) is NaN."""
    term = solve("sum", "c*(r + s)", ["r", "s"], assumptions={"r": ["negative"], "s": ["negative"]})
    assert solve("sum", "c*r", ["r"], assumptions={"r": ["negative"]}).initial_value("r", "max") is None
    assert term.initial_value("r", "max") == -1
    assert term.initial_value("s", "min") == -1


def test_an_unknown_producer_is_told():
    with pytest.raises(ValueError, match="no producer 'q'"):
        solve("sum", "c/r", "r").initial_value("q", "max")
