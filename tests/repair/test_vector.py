"""Vector repairs: which families are found, that their matrices are right, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from xml.dom import minidom

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune_lab.repair import RepairError, VectorRepair, solve, solve_vector, text
from neptune_lab.repair.family import exponential

NONNEGATIVE = {"r": ["nonnegative"]}


def named(expr: Any, term: VectorRepair) -> Any:
    """With plain symbols: r, r_now, and inputs by their names."""
    plain = {symbol: sp.Symbol(symbol.name) for symbol in expr.free_symbols}
    return expr.xreplace({**plain, term.r: sp.Symbol("r"), term.r_now: sp.Symbol("r_now")})


FAMILIES = {
    "c - r": ["c - r", "1"],
    "(c - r)**2": ["(c - r)**2", "c - r", "1"],
    "w*(c - r)**3": ["w*(c - r)**3", "w*(c - r)**2", "w*(c - r)", "w"],
    "(c - r/5)**2": ["(c - r/5)**2", "c - r/5", "1"],
    "exp(c - r) + 0.5": ["exp(c - r) + 1/2", "1"],
    "exp(c - r) + d": ["d + exp(c - r)", "d"],
    "(c - r)*exp(c - r)": ["(c - r)*exp(c - r)", "exp(c - r)"],
    "exp(c - r) + exp(r - c)": ["exp(c - r) + exp(-c + r)", "exp(-c + r)"],
    "c*r + d": ["c*r + d", "c"],
    "relu(c)*r": ["Max(0, c)*r", "Max(0, c)"],
    "sin(c - r)": ["sin(c - r)", "-cos(c - r)"],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("g", FAMILIES)
def test_the_family_is_the_expected_one(g: str):
    term = solve_vector("sum", g, "r")
    expected = [sp.sympify(component) for component in FAMILIES[g]]
    assert [
        sp.simplify(named(component, term) - e) for component, e in zip(term.components, expected, strict=True)
    ] == [0] * len(expected)


@pytest.mark.parametrize("power", [1, 2])
def test_companions_read_inputs_and_no_opaque_symbols(power: int):
    c, r = sp.symbols("c r", real=True)
    term = solve_vector("sum", sp.Piecewise((0, c < 0), (c**2, True)) * (c - r) ** power, r)
    read = {symbol for k in range(term.size) for symbol in term.companion(k).free_symbols}
    assert term.by_difference
    assert {symbol.name for symbol in read - {term.r, term.u}} == {"c"}


MATRICES = {
    "c - r": [["1", "r - r_now"], ["0", "1"]],
    "(c - r)**2": [["1", "2*(r - r_now)", "(r - r_now)**2"], ["0", "1", "r - r_now"], ["0", "0", "1"]],
    "(c - r)*exp(c - r)": [
        ["exp(r - r_now)", "(r - r_now)*exp(r - r_now)"],
        ["0", "exp(r - r_now)"],
    ],
    "exp(c - r) + 0.5": [["exp(r - r_now)", "(1 - exp(r - r_now))/2"], ["0", "1"]],
}


@pytest.mark.parametrize("g", MATRICES)
def test_the_matrix_is_the_one_derived_by_hand(g: str):
    term = solve_vector("sum", g, "r")
    difference = named(term.matrix, term) - sp.Matrix(sp.sympify(MATRICES[g]))
    assert sp.simplify(difference) == sp.zeros(term.size, term.size)
    assert term.triangular


TERMS: dict[str, tuple[dict[str, list[str]], Callable[..., np.ndarray]]] = {
    "c - r": ({}, lambda c, r: c - r),
    "(c - r)**2": ({}, lambda c, r: (c - r) ** 2),
    "(c - r)**5": ({}, lambda c, r: (c - r) ** 5),
    "(c - r/7)**2": ({}, lambda c, r: (c - r / 7) ** 2),
    "exp(c - r) + 0.001": ({}, lambda c, r: np.exp(c - r) + 0.001),
    "(c - r)*exp(c - r)": ({}, lambda c, r: (c - r) * np.exp(c - r)),
    "sin(c - r)": ({}, lambda c, r: np.sin(c - r)),
    "exp2(c - r)*r": ({}, lambda c, r: 2 ** (c - r) * r),
    "(c - sqrt(r + 0.25))**2": (NONNEGATIVE, lambda c, r: (c - np.sqrt(r + 0.25)) ** 2),
    "(c/r - 1)**2": (NONNEGATIVE, lambda c, r: (c / r - 1) ** 2),
    "c**2/r**2 - c/r": (NONNEGATIVE, lambda c, r: c**2 / r**2 - c / r),
    "c*log(r)": (NONNEGATIVE, lambda c, r: c * np.log(r)),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("g", TERMS)
def test_rolling_with_plain_numbers(g: str):
    """T := A(r_prev, r) T + G(r, c) over 40 tags, in NumPy alone, ends as the sum of g at the last r."""
    assumptions, function = TERMS[g]
    term = solve_vector("sum", g, "r", assumptions=assumptions)
    (c,) = (symbol for name, symbol in ((s.name, s) for s in term.symbols.values()) if name == "c")
    members = sp.lambdify([c, term.r], list(term.components), "numpy")
    rng = np.random.default_rng(3)
    inputs, tags = rng.uniform(0.5, 2.0, 40), rng.uniform(0.5, 2.0, 40)
    carried = np.zeros(term.size)
    for n, (value, r) in enumerate(zip(inputs, tags, strict=True)):
        moved = carried if n == 0 else term.evaluate(carried, tags[n - 1], r)
        carried = moved + np.array([float(x) for x in members(value, r)])
    assert carried[0] == pytest.approx(function(inputs, tags[-1]).sum(), rel=1e-10, abs=1e-10)


def test_the_way_does_not_matter():
    term = solve_vector("sum", "(c - r)**2*exp(c - r)", "r")
    one, two, three = 0.25, -1.5, 2.0
    np.testing.assert_allclose(term.transport(two, three) @ term.transport(one, two), term.transport(one, three))
    np.testing.assert_allclose(term.transport(one, two) @ term.transport(two, one), np.eye(3), atol=1e-15)


@pytest.mark.nightly
def test_constants_may_stand_in_the_matrix():
    term = solve_vector("sum", "(c - r/n)**2*exp(k*r)", "r", constants=["n", "k"], assumptions={"n": "positive"})
    assert sorted(term.constants) == ["k", "n"]
    at = {"n": 5.0, "k": 0.5}
    c, r, now = 1.3, 0.4, -0.7
    g = lambda r: (c - r / 5) ** 2 * np.exp(0.5 * r)  # noqa: E731
    values = {"c": c, "r": r, **at}
    members = [float(named(e, term).subs(values)) for e in term.components]
    assert term.evaluate(members, r, now, at)[0] == pytest.approx(g(now))
    with pytest.raises(ValueError, match="constants has values for"):
        term.transport(r, now)


@pytest.mark.parametrize("rows", [
    [[0, 3, 1], [0, 0, -2], [0, 0, 0]], [["e", 2], [0, "e"]], [[-1, 1, 0], [0, -1, "e"], [0, 0, -1]], [[0, 1], [0, 1]],
    [[1, 0], [1, 1]],
])  # fmt: skip
def test_the_exponential_is_sympys(rows: list[list[Any]]):
    step = sp.Symbol("s", real=True)
    matrix = sp.ImmutableMatrix([[sp.sympify(x) for x in row] for row in rows])
    assert exponential(matrix, step).applyfunc(sp.expand) == sp.Matrix(step * matrix).exp().applyfunc(sp.expand)


@pytest.mark.nightly
def test_a_reference_that_turns_is_not_triangular():
    term = solve_vector("sum", "sin(c - r)", "r")
    assert not term.triangular
    assert term.reads_first
    np.testing.assert_allclose(term.transport(0.0, np.pi / 2), [[0, 1], [-1, 0]], atol=1e-15)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("g", "reference"),
    [
        ("(c - r)**2", "r"),
        ("(c - r/5)**2", "r/5"),
        ("(c - sqrt(r))**2", "sqrt(r)"),
        ("(c/r - 1)**2", "1/r"),
        ("c**2/r**2 - c/r", "log(r)"),
    ],
)
def test_what_g_is_a_function_of(g: str, reference: str):
    assert text(solve_vector("sum", g, "r", assumptions=NONNEGATIVE).reference) == reference


def test_singular_points_have_stand_ins():
    term = solve_vector("sum", "(c/r - 1)**2", "r", assumptions=NONNEGATIVE)
    assert [(g.point, g.replacement, g.final_repair) for g in term.reachable_guards("r", "sum")] == [(0, 1, False)]
    assert term.initial_value("r", "sum") == 1
    shift = solve_vector("sum", "(c - r)**2", "r")
    assert shift.initial_value("r", "max") == 0
    assert shift.initial_value("r", "sum") is None
    with pytest.raises(ValueError, match="no producer 's'"):
        shift.initial_value("s", "max")


REFUSED = {
    "tanh(c - r)": "is a combination of those before",
    "1/(c - r)": "is a combination of those before",
    "(c - r)**6": "is a combination of those before",
    "exp(k*(c - r))": "is a combination of those before",
    "max(c, r)": "Max\\(c, r\\) has a kink or a step in r",
    "abs(c - r)": "has a kink or a step in r",
}


@pytest.mark.parametrize("g", REFUSED)
def test_terms_in_no_finite_family(g: str):
    with pytest.raises(RepairError, match=f"is in no family of at most 6 sums: .*{REFUSED[g]}") as caught:
        solve_vector("sum", g, "r")
    assert caught.value.step == "close"
    assert caught.value.help


@pytest.mark.nightly
def test_the_references_that_were_tried_are_told():
    with pytest.raises(RepairError, match=r"nor is it as a function of sqrt\(r\) or log\(r\)"):
        solve_vector("sum", "tanh(c - sqrt(r))", "r", assumptions=NONNEGATIVE)


@pytest.mark.parametrize(
    ("reducer", "g", "producers", "match"),
    [
        ("max", "c - r", "r", "carries sums, and the reducer is max"),
        ("prod", "c - r", "r", "carries sums, and the reducer is prod"),
        ("sum", "(c - r)*(d - s)", ("r", "s"), "depends on 2 producers, r, s"),
        ("sum", "log(r)*c", "r", "not known to be real"),
    ],
)
def test_what_is_outside_the_class(reducer: str, g: str, producers: str, match: str):
    with pytest.raises(RepairError, match=match) as caught:
        solve_vector(reducer, g, producers)
    assert caught.value.help


def test_a_second_producer_that_g_does_not_read_is_left_out():
    assert solve_vector("sum", "(c - r)**2", ["s", "r"]).producers == ("r",)


def test_the_papers_solver_refuses_what_this_one_finds():
    for g in ("c - r", "(c - r)**2", "exp(c - r) + 0.5", "(c - r)*exp(c - r)"):
        with pytest.raises(RepairError):
            solve("sum", g, "r")
        assert solve_vector("sum", g, "r").size > 1


VARIANCE = """\
Read: reducer and term
  f(x, y) = x + y
  g(r) = (c - r)**2
Close: g and its derivatives span a finite family (d is the derivative in r)
  g_0 = (c - r)**2
  g_1 = c - r
  g_2 = 1
  d(g_0) = -2*g_1
  d(g_1) = -g_2
  d(g_2) = 0
Move: T' = A(r, r') T, with T the sums of the family
  h_0(t_0, t_1, t_2, r, r') = t_0 + t_1*(2*r - 2*r') + t_2*(r' - r)**2
  h_1(t_0, t_1, t_2, r, r') = t_1 + t_2*(r - r')
  h_2(t_0, t_1, t_2, r, r') = t_2
  each sum reads itself and those after it
"""


def test_the_derivation_reads_well():
    term = solve_vector("sum", "(c - r)**2", "r")
    assert term.to_text().startswith(VARIANCE)
    assert "t_{0}" in term.to_latex()
    for step in term.steps:
        assert minidom.parseString(step.mathml).getElementsByTagName("mtr").length == len(step.lines)


def test_the_record_is_plain_data():
    term = solve_vector("sum", "(c - r)**2", "r")
    record = term.as_record()
    assert json.loads(json.dumps(record)) == record
    assert record["components"] == ["(c - r)**2", "c - r", "1"]
    assert record["matrix"] == [["1", "2*r - 2*r'", "(r' - r)**2"], ["0", "1", "r - r'"], ["0", "0", "1"]]
    assert record["generator"] == [["0", "-2", "0"], ["0", "0", "-1"], ["0", "0", "0"]]
    assert [proof["equation"] for proof in record["proofs"]] == ["Eq. 3", "Eq. 4", "composition"]
    again = pickle.loads(pickle.dumps(term))
    assert again.as_record()["components"] == record["components"]
    assert again.evaluate([2.0, 0.0, 2.0], 1.0, 2.0).tolist() == [4.0, -2.0, 2.0]


def test_asked_again_it_is_the_same_object():
    assert solve_vector("sum", "(c - r)**2", "r") is solve_vector("sum", "(c - r)**2", "r")


LEAVES = st.sampled_from(["c", "d", "r", "c - r", "c - r", "2", "0.5"])


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.builds(lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from("++-**/"), inner)
    calls = st.builds(lambda name, a: f"{name}({a})", st.sampled_from(["exp", "exp", "sin", "tanh", "exp2"]), inner)
    powers = st.builds(lambda a, n: f"({a})**{n}", inner, st.sampled_from(["2", "2", "3"]))
    return st.one_of(binary, calls, powers)


@settings(max_examples=8)
@given(st.recursive(LEAVES, _grow, max_leaves=4), st.integers(0, 10**6))
def test_refused_or_right(g: str, seed: int):
    try:
        term = solve_vector("sum", g, "r")
    except RepairError:
        return
    symbols = [term.r, *(s for s in term.symbols.values() if s != term.r)]
    members = [sp.lambdify(symbols, component, "numpy") for component in term.components]
    rng = np.random.default_rng(seed)
    points = rng.uniform(0.3, 1.5, (6, len(symbols)))

    def at(r: float, point: np.ndarray) -> np.ndarray:
        return np.array([float(f(r, *point[1:])) for f in members])

    carried = at(points[0, 0], points[0])
    size = np.abs(carried).max()
    for before, now in pairwise(points):
        carried = term.evaluate(carried, before[0], now[0]) + at(now[0], now)
        size = max(size, np.abs(carried).max())
    plain = sum(at(points[-1, 0], point)[0] for point in points)
    assert carried[0] == pytest.approx(plain, rel=1e-8, abs=1e-9 * size)
