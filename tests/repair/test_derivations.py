"""The paper's repair terms (sections 4.1, 4.4 and appendix C) and their kin, compared symbolically."""

from __future__ import annotations

from typing import Any

import pytest
import sympy as sp

from neptune_lab.repair import RepairError, RepairTerm, solve, text

NONNEGATIVE = {"r": ["nonnegative"]}
EPS = {"r": ["nonnegative"], "eps": ["positive"]}


def h_is(term: RepairTerm, expected: str) -> bool:
    """h equals the text, in which a producer's current value is spelled r_now."""
    plain = {term.t: sp.Symbol("t")}
    plain |= {symbol: sp.Symbol(name) for name, symbol in term.previous.items()}
    plain |= {symbol: sp.Symbol(f"{name}_now") for name, symbol in term.current.items()}
    plain |= {symbol: sp.Symbol(symbol.name) for symbol in term.separation.constants}
    found: Any = term.h.xreplace(plain)
    return sp.simplify(found - sp.sympify(expected)) == 0


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("reducer", "g", "producers", "assumptions", "expected"),
    [
        ("sum", "exp(c - r)", "r", {}, "t*exp(r - r_now)"),
        ("sum", "(c/r)**2", "r", NONNEGATIVE, "t*r**2/r_now**2"),
        ("max", "c/sqrt(r + eps)", "r", EPS, "t*sqrt(r + eps)/sqrt(r_now + eps)"),
        ("sum", "exp(r - relu(c)**2)", "r", {}, "t*exp(r_now - r)"),
        ("sum", "alpha*exp(c1 - r1 - beta*c2)", "r1", {}, "t*exp(r1 - r1_now)"),
        ("sum", "alpha*c3*exp(c1 - r1 - beta*c2)", "r1", {}, "t*exp(r1 - r1_now)"),
        (
            "sum",
            "alpha*exp(c1 - r1 - beta*c2*c3)/r2",
            ("r1", "r2"),
            {"r2": ["positive"]},
            "t*(r2/r2_now)*exp(r1 - r1_now)",
        ),
        ("sum", "exp(c1 - r)*c2", "r", {}, "t*exp(r - r_now)"),
        ("sum", "c/r", "r", {}, "t*r/r_now"),
        ("sum", "c*r", "r", {}, "t*r_now/r"),
        ("sum", "c**2*r", "r", {}, "t*r_now/r"),
        ("sum", "c/(r + 1)", "r", {}, "t*(r + 1)/(r_now + 1)"),
        ("sum", "exp2(0.5*c - r)", "r", {}, "t*2**(r - r_now)"),
        ("sum", "exp(50*tanh(c/50) - r)", "r", {}, "t*exp(r - r_now)"),
        ("sum", "c1*r + c2*r + r", "r", {}, "t*r_now/r"),
        ("max", "c - r", "r", {}, "t + r - r_now"),
        ("min", "c - r", "r", {}, "t + r - r_now"),
        ("max", "c*r", "r", NONNEGATIVE, "t*r_now/r"),
        ("min", "c*r", "r", {"r": ["negative"]}, "t*r_now/r"),
        ("max", "abs(c)/r", "r", NONNEGATIVE, "t*r/r_now"),
        ("max", "relu(c/r)", "r", NONNEGATIVE, "t*r/r_now"),
        ("prod", "c**r", "r", {"r": ["positive"], "c": ["positive"]}, "t**(r_now/r)"),
        ("sum", "exp(c1 - r1 - log(r2))", ("r1", "r2"), {"r2": ["positive"]}, "t*(r2/r2_now)*exp(r1 - r1_now)"),
        ("sum", "c*r1*r2", ("r1", "r2"), {}, "t*r1_now*r2_now/(r1*r2)"),
        ("sum", "c*sigmoid(r)", "r", {}, "t*(1 + exp(-r))/(1 + exp(-r_now))"),
        ("sum", "c*(2 + tanh(r))", "r", {}, "t*(2 + tanh(r_now))/(2 + tanh(r))"),
        ("sum", "c*rsqrt(r + 0.5)", "r", NONNEGATIVE, "t*sqrt(r + 1/2)/sqrt(r_now + 1/2)"),
        ("sum", "c*log(r + 1)", "r", NONNEGATIVE, "t*log(r_now + 1)/log(r + 1)"),
        ("sum", "abs(c/r)**3", "r", {"r": ["positive"]}, "t*r**3/r_now**3"),
        ("sum", "c*pow(r, 1.5)", "r", NONNEGATIVE, "t*r_now**(3/2)/r**(3/2)"),
        ("sum", "(c*r + c)**2", "r", NONNEGATIVE, "t*(r_now + 1)**2/(r + 1)**2"),
        ("max", "c*sigmoid(r) + r", "r", {}, "r_now + (t - r)*(1 + exp(-r))/(1 + exp(-r_now))"),
        ("max", "r - c", "r", {}, "t + r_now - r"),
        ("max", "min(c/r, 1/r)", "r", {"r": ["positive"]}, "t*r/r_now"),
        ("prod", "exp(c*r)", "r", {"r": ["positive"]}, "t**(r_now/r)"),
        ("sum", "c", "r", {}, "t"),
        ("sum", "r", "r", {}, "t*r_now/r"),
        ("max", "r", "r", {}, "t + r_now - r"),
        ("sum", "1", "r", {}, "t"),
    ],
)
def test_repair_term(reducer, g, producers, assumptions, expected):
    term = solve(reducer, g, producers, assumptions=assumptions)
    assert h_is(term, expected), text(term.h)
    assert [proof.equation for proof in term.proofs] == ["Eq. 3", "Eq. 4"]
    assert all(step.ok for step in term.steps)


@pytest.mark.parametrize(
    ("g", "g_c", "g0"),
    [
        ("exp(r - relu(c)**2)", "Max(0, c)**2", "exp(r - C)"),
        ("exp(c1 - r)*c2", "c2*exp(c1)", "C*exp(-r)"),
        ("(c/r)**2", "c**2", "C/r**2"),
        ("exp(c - r)", "c", "exp(C - r)"),
        ("max(c - r, d - r)", "Max(c, d)", "C - r"),
    ],
)
def test_change_of_variables(g, g_c, g0):
    term = solve("max" if g.startswith("max") else "sum", g, "r")
    assert text(term.change_of_variables[1]) == g_c
    assert text(term.g0) == g0


def test_factor_is_none_where_h_is_not_a_multiple_of_t():
    assert solve("max", "c - r", "r").factor is None
    assert solve("sum", "c/r", "r").as_record()["factor"] == "r/r'"


def test_a_constant_is_taken_from_the_caller_before_it_is_inferred():
    g = "c/sqrt(r + eps)"
    assert solve("max", g, "r", assumptions=EPS).constants == ("eps",)
    assert solve("max", g, "r", assumptions=EPS, constants=["eps"]).inputs == ("c",)
    with pytest.raises(RepairError, match="does not separate") as refused:
        solve("max", g, "r", assumptions=EPS, constants=())
    assert refused.value.step == "separate"


def test_c1_r_plus_c2_needs_a_constant():
    term = solve("max", "c1*r + c2", "r", constants=["c1"])
    assert h_is(term, "t + c1*(r_now - r)")


def test_a_function_of_inputs_may_be_anything():
    c, r = sp.symbols("c r")
    f = sp.Function("f")
    term = solve("sum", sp.exp(f(c) ** 2 - r), [r])
    assert h_is(term, "t*exp(r - r_now)")
    assert text(term.change_of_variables[1]) == "f(c)**2"
    assert term.inputs == ("c",)
    piece = sp.Piecewise((c, c > 0), (0, True))
    assert h_is(solve("sum", piece * r, [r]), "t*r_now/r")


def test_symbols_are_never_matched_by_name():
    """An input called t, C or r_prime, and two inputs of one name, stay apart from each other and from ours."""
    term = solve("sum", "exp(t - r)*C + 0*x", "r")
    assert term.t not in term.symbols.values()
    assert text(term.h) == "t_1*exp(r - r')"
    t, r, prime = sp.symbols("t r r'")
    assert h_is(solve("sum", t * prime / r, [r]), "t*r/r_now")
    one, two, r = sp.Dummy("c"), sp.Dummy("c"), sp.Dummy("c")
    term = solve("sum", one * sp.exp(two - r), [r])
    assert len({*term.inputs, *term.producers}) == 3
    assert term.factor is not None
    assert term.factor.free_symbols == {*term.previous.values(), *term.current.values()}


def test_cache_keys_on_reducer_and_assumptions():
    assert solve("max", "c - r", "r") is solve("max", "c - r", ["r"])
    with pytest.raises(RepairError):
        solve("sum", "c - r", "r")
    assert solve("max", "c*r", "r", assumptions=NONNEGATIVE).reducer == "max"
    with pytest.raises(RepairError):
        solve("max", "c*r", "r")
    with pytest.raises(RepairError):
        solve("min", "c*r", "r")
    positive = sp.Symbol("r", positive=True)
    assert solve("max", sp.Symbol("c") * positive, [positive]).guards != solve("sum", "c*r", "r").guards


def test_evaluate_is_elementwise_and_keeps_ieee():
    term = solve("sum", "exp(c1 - r1)/r2", ["r1", "r2"])
    value = term.evaluate([2.0, 4.0], {"r1": [0.0, float("-inf")], "r2": 1.0}, {"r1": 0.0, "r2": 2.0})
    assert value.tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match="previous has values for"):
        term.evaluate(1.0, {"r1": 0.0}, {"r1": 0.0, "r2": 1.0})
