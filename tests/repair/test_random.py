"""Random terms: refused with a reason, or the rolled loop equals the plain reduction."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rolling import UFUNC, plain, rolled

from neptune_lab.repair import RepairError, solve

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


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(TERMS, st.sampled_from(sorted(UFUNC)), SIGNS, SIGNS, st.sampled_from(sorted(UFUNC)), st.integers(0, 10**6))
def test_refused_or_right(g, reducer, r_signs, s_signs, producer_reducer, seed):
    signs = {"r": r_signs, "s": s_signs}
    try:
        term = solve(reducer, g, ["r", "s"], assumptions={"r": r_signs, "s": s_signs}, constants=())
    except RepairError as error:
        assert error.step
        assert error.expression
        return
    rng = np.random.default_rng(seed)
    reducers = dict.fromkeys("rs", producer_reducer)
    tags = [{name: _value(rng, signs[name]) for name in "rs"} for _ in range(4)]
    # Send each producer through a singular point that finite inputs reach, in the middle of the loop or at its end.
    for name in "rs":
        for guard in term.reachable_guards(name, producer_reducer):
            last = guard.final_repair and guard.point.is_finite
            tags[rng.integers(0, 4 if last else 3)][name] = float(guard.point)
    inputs = [{name: _value(rng, ()) for name in term.inputs} for _ in range(4)]
    wanted = plain(term, tags[-1], inputs)
    if np.isfinite(wanted):
        found, size = rolled(term, tags, inputs, reducers)
        assert abs(found - wanted) <= 1e-6 * max(size, abs(wanted), 1e-9)
