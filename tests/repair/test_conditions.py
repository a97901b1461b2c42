"""Truth values under `any` and `all`, choices whose branches read r, and roots of what may be negative on the way."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp

from neptune_lab.repair import RepairError, solve, text
from neptune_lab.repair.condition import nonneg

C, D, R = sp.symbols("c d r", real=True)
POSITIVE = {"r": ["positive"]}


def truth(condition) -> sp.Expr:
    return sp.Piecewise((1, condition), (0, True))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("reducer", ["any", "all"])
@pytest.mark.parametrize(
    ("condition", "assumptions", "g_c"),
    [
        (C > D, {}, "select(c > d, 1, 0)"),
        (C / R > 0, POSITIVE, "select(c > 0, 1, 0)"),
        (C * R < D * R, POSITIVE, "select(c - d < 0, 1, 0)"),
        (C / R >= 0, {"r": ["negative"]}, "select(c <= 0, 1, 0)"),
        (sp.And(C * sp.exp(R) > 0, D > 1), {}, "select((c > 0) & (d > 1), 1, 0)"),
    ],
)
def test_a_condition_that_does_not_move_with_r_needs_no_repair(reducer, condition, assumptions, g_c):
    term = solve(reducer, truth(condition), [R], assumptions=assumptions)
    assert (text(term.h), text(term.change_of_variables[1])) == ("t", g_c)
    assert term.to_text().startswith(f"Read: reducer and term\n  f(x, y) = x {'or' if reducer == 'any' else 'and'} y")


def test_truth_values_roll():
    term = solve("any", truth(C > 0), [R])
    t = 0.0
    for tag, c in enumerate([-1.0, 2.0, -3.0]):
        t = np.maximum(term.evaluate(t, {"r": tag}, {"r": tag + 1.0}), float(c > 0))
    assert t == 1.0


@pytest.mark.parametrize("reducer", ["any", "all"])
@pytest.mark.parametrize("condition", [C > R, C * R > 0, C / R > 1, sp.Eq(C, R), sp.Or(D > 0, C < R)])
def test_a_condition_that_moves_with_r_is_refused(reducer, condition):
    with pytest.raises(RepairError, match="changes with r, and its earlier results cannot be repaired") as refused:
        solve(reducer, truth(condition), [R])
    assert refused.value.step == "separate"


def test_a_number_that_moves_with_r_is_refused_under_any():
    with pytest.raises(RepairError, match="is not t itself, and nothing else carries a truth value through any"):
        solve("any", "c*r", "r", assumptions=POSITIVE)


def test_an_argmax_is_refused_with_the_reason():
    """The index of the maximum: min over j of select(c = r, j, N).  Its condition forgets which c came close."""
    j = sp.Symbol("j", real=True)
    with pytest.raises(RepairError, match="the condition c = r changes with r") as refused:
        solve("min", sp.Piecewise((j, sp.Eq(C, R)), (100, True)), [R])
    assert "argmax" in (refused.value.help or "")


@pytest.mark.parametrize(
    ("reducer", "g", "h", "g_c"),
    [
        ("sum", sp.Piecewise((sp.exp(C - R), D > 0), (0, True)), "t*exp(r - r')", "select(d > 0, exp(c), 0)"),
        ("sum", sp.Piecewise((C / R, D > 0), (D / R, True)), "t*r/r'", "select(d > 0, c, d)"),
        ("max", sp.Piecewise((C - R, D > 0), (-sp.oo, True)), "t + r - r'", "select(d > 0, c, -∞)"),
        ("min", sp.Piecewise((C - R, D > 0), (sp.oo, True)), "t + r - r'", "select(d > 0, c, ∞)"),
    ],
)
def test_r_comes_out_of_a_choice(reducer, g, h, g_c):
    term = solve(reducer, g, [R])
    assert text(term.h) == h
    assert g_c in text(term.change_of_variables[1])


def test_branches_that_read_r_differently_are_refused():
    with pytest.raises(RepairError, match=r"the branches of select.* do not read r in the same way"):
        solve("sum", sp.Piecewise((sp.exp(C - R), D > 0), (1, True)), [R])


def test_a_logarithm_that_cancels_is_not_forgotten():
    """exp(c - log(r)) is exp(c)/r to SymPy, and NaN in a program while r is negative."""
    g = sp.exp(C - sp.log(nonneg(R)))
    with pytest.raises(RepairError, match="r may be negative on the way"):
        solve("sum", g, [R])
    assert text(solve("sum", g, [R], assumptions={R: ["nonnegative"]}).h) == "t*r/r'"


def test_a_quotient_by_a_sum_that_may_be_zero_is_never_negative():
    """The root of a weight: exp(c - m)/s is 0 or more, or infinite while s is 0."""
    s = sp.Symbol("s", real=True)
    g = sp.sqrt(nonneg(sp.exp(C - R) / s))
    assert "sqrt(s)" in text(solve("sum", g, [R, s], assumptions={"s": ["nonnegative"]}).h)
    with pytest.raises(RepairError, match="may be negative on the way"):
        solve("sum", g, [R, s])
