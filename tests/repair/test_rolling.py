"""Rolling reductions, as the compiler would emit them, next to the plain ones: with guards, and for random terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune_lab.repair import RepairError, RepairTerm, solve

NONNEGATIVE = {"r": ["nonnegative"]}
UFUNC = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
IDENTITY = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}

Values = Mapping[str, float]


def term_value(term: RepairTerm, r: Values, c: Values) -> float:
    """g(r, c), by SymPy's own lambdify."""
    names = (*term.producers, *term.inputs)
    internal = {symbol.name: symbol for symbol in term.symbols.values()}
    call = sp.lambdify([internal[name] for name in names], term.g, "numpy")
    with np.errstate(all="ignore"):
        return float(call(*(np.float64({**r, **c}[name]) for name in names)))


def plain(term: RepairTerm, r: Values, inputs: Sequence[Values]) -> float:
    """Every term with the producers' final values."""
    with np.errstate(all="ignore"):
        return float(UFUNC[term.reducer].reduce([term_value(term, r, c) for c in inputs]))


def rolled(
    term: RepairTerm, tags: Sequence[Values], inputs: Sequence[Values], reducers: Mapping[str, str]
) -> tuple[float, float]:
    """Roll over the tags with guards, from each producer's identity; also the largest number on the way."""
    replacement = {(guard.producer, float(guard.point)): float(guard.replacement) for guard in term.guards}
    previous = {}
    for name in term.producers:
        start = term.initial_value(name, reducers[name])
        previous[name] = IDENTITY[reducers[name]] if start is None else float(start)
    t, size = IDENTITY[term.reducer], 0.0
    for r, c in zip(tags, inputs, strict=True):
        current = {name: replacement.get((name, value), value) for name, value in r.items()}
        with np.errstate(all="ignore"):
            moved = term.evaluate(t, previous, current)
            t = float(UFUNC[term.reducer](moved, term_value(term, current, c)))
        size = max(size, abs(moved) if np.isfinite(moved) else 0.0, abs(t))
        previous = current
    ends = {
        guard.producer: float(guard.point)
        for guard in term.guards
        if guard.final_repair and tags[-1][guard.producer] == float(guard.point)
    }
    if ends:
        t = term.evaluate(t, previous, {**previous, **ends})
    return t, size


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


LEAVES = st.sampled_from(["c", "d", "r", "s", "c", "r", "2", "0.5"])
SIGNS = st.sampled_from([(), ("nonnegative",), ("positive",), ("negative",)])


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.builds(lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from("+-**/"), inner)
    calls = st.sampled_from(["exp", "exp", "log", "sqrt", "abs", "relu", "tanh", "exp2"])
    unary = st.builds(lambda name, a: f"{name}({a})", calls, inner)
    power = st.builds(lambda a, n: f"({a})**({n})", inner, st.sampled_from(["2", "3", "-1", "-2"]))
    return st.one_of(binary, binary, unary, power)


TERMS = st.recursive(LEAVES, _grow, max_leaves=5)


def _value(rng: np.random.Generator, signs: tuple[str, ...]) -> float:
    size = rng.uniform(0.3, 2.0)
    if signs:
        return -size if signs == ("negative",) else size
    return size * rng.choice([-1.0, 1.0])


@settings(max_examples=25)
@given(TERMS, st.sampled_from(sorted(UFUNC)), SIGNS, SIGNS, st.sampled_from(sorted(UFUNC)), st.integers(0, 10**6))
def test_refused_or_right(g, reducer, r_signs, s_signs, producer_reducer, seed):
    signs = {"r": r_signs, "s": s_signs}
    try:
        term = solve(reducer, g, ["r", "s"], assumptions={"r": r_signs, "s": s_signs}, constants=())
    except RepairError as error:
        told = bool(error.step and error.expression)
    else:
        told = _rolls_right(term, signs, producer_reducer, np.random.default_rng(seed))
    assert told


def _rolls_right(term: RepairTerm, signs, producer_reducer: str, rng: np.random.Generator) -> bool:
    reducers = dict.fromkeys("rs", producer_reducer)
    tags = [{name: _value(rng, signs[name]) for name in "rs"} for _ in range(4)]
    # Send each producer through a singular point that finite inputs reach, in the middle of the loop or at its end.
    for name in "rs":
        for guard in term.reachable_guards(name, producer_reducer):
            last = guard.final_repair and guard.point.is_finite
            tags[rng.integers(0, 4 if last else 3)][name] = float(guard.point)
    inputs = [{name: _value(rng, ()) for name in term.inputs} for _ in range(4)]
    wanted = plain(term, tags[-1], inputs)
    found, size = rolled(term, tags, inputs, reducers)
    # Where the plain reduction is itself not finite (a root of a negative input), there is nothing to equal.
    return not np.isfinite(wanted) or abs(found - wanted) <= 1e-6 * max(size, abs(wanted), 1e-9)
