"""Singular points of producers: where they are, what stands in, and that the rolled loop is right with it."""

from __future__ import annotations

import pytest
import sympy as sp
from rolling import plain, rolled

from neptune_lab.repair import solve

NONNEGATIVE = {"r": ["nonnegative"]}
OO = sp.oo


def found(term, reducer):
    return {guard.point: (guard.stand_in, guard.final_repair) for guard in term.reachable_guards("r", reducer)}


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
    assert term.initial_stand_in("r", producer_reducer) == start


def test_finite_leaves_the_ends_out():
    assert solve("sum", "exp(c - r)", "r", assumptions={"r": ["finite"]}).guards == ()


def test_a_guard_may_stand_at_a_constant():
    term = solve("sum", "c/(r - k)", "r", constants="k")
    assert [g.point.name for g in term.guards if g.point.is_Symbol] == ["k"]


def test_starts_that_only_spoil_each_other_get_stand_ins():
    """-oo and oo are each clean before r' alone, and NaN together."""
    term = solve("max", "c - r + s", ["r", "s"])
    assert term.initial_stand_in("r", "max") == 0 or term.initial_stand_in("s", "min") == 0


def test_an_unknown_producer_is_told():
    with pytest.raises(ValueError, match="no producer 'q'"):
        solve("sum", "c/r", "r").initial_stand_in("q", "max")


def test_l2_norm_with_leading_zeros():
    """0/0 in the first tags: max|x| is 0 there."""
    term = solve("sum", "(c/r)**2", "r", assumptions=NONNEGATIVE)
    values = [0.0, 0.0, -2.0, 1.0, 4.0]
    tags = [{"r": max(abs(v) for v in values[: i + 1])} for i in range(len(values))]
    inputs = [{"c": value} for value in values]
    assert rolled(term, tags, inputs, {"r": "max"})[0] == pytest.approx(plain(term, tags[-1], inputs))
    zeros = [{"c": 0.0}] * 3
    assert rolled(term, [{"r": 0.0}] * 3, zeros, {"r": "max"})[0] == 0.0


def test_softmax_with_masked_tags():
    """exp(-oo - -oo) is NaN; the stand-in makes a masked tag add nothing."""
    term = solve("sum", "exp(c - r)", "r")
    low = float("-inf")
    tags = [{"r": low}, {"r": 1.0}, {"r": 3.0}]
    inputs = [{"c": low}, {"c": 1.0}, {"c": 3.0}]
    assert rolled(term, tags, inputs, {"r": "max"})[0] == pytest.approx(plain(term, tags[-1], inputs))
    assert rolled(term, [{"r": low}] * 2, [{"c": low}] * 2, {"r": "max"})[0] == 0.0


def test_final_repair_gives_the_true_value_at_the_point():
    """c*r with a running sum that is 0 in the middle, and one that ends at 0."""
    term = solve("sum", "c*r", "r")
    inputs = [{"c": 1.0}, {"c": -3.0}, {"c": 0.5}]
    for path in ([2.0, 0.0, 5.0], [0.0, 0.0, 0.0], [1.0, 4.0, 0.0]):
        tags = [{"r": value} for value in path]
        assert rolled(term, tags, inputs, {"r": "sum"})[0] == pytest.approx(plain(term, tags[-1], inputs))
