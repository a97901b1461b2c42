"""The arithmetic of the numerical checks against NumPy's, at the edges of float64 too; and what solving loads."""

from __future__ import annotations

import json
import math
import operator
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import sympy as sp

from neptune_lab.repair import column
from neptune_lab.repair.column import Column, each, rank
from neptune_lab.repair.numeric import compute, compute_all, over_arrays
from neptune_lab.repair.points import SEED, Generator, sample, samples

EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, 1e-320, 710.0, -746.0, 1e308, -1e308, math.inf, -math.inf)
NUMBERS = (*EDGES, math.nan, 0.3, -1.7, 25.0)


def same(found: float, expected: float) -> bool:
    """Equal up to the last digits; a NaN is equal to a NaN."""
    if found != found or expected != expected:
        return found != found and expected != expected
    return math.isclose(found, expected, rel_tol=1e-13, abs_tol=5e-324)


@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        (operator.add, np.add),
        (operator.sub, np.subtract),
        (operator.mul, np.multiply),
        (operator.truediv, np.divide),
        (column.maximum, np.maximum),
        (column.minimum, np.minimum),
        (lambda x, y: each(math.pow, x, y), np.power),
    ],
)
def test_two_operands(ours, numpys):
    pairs = list(product(NUMBERS, NUMBERS))
    x, y = (Column(values) for values in zip(*pairs, strict=True))
    with np.errstate(all="ignore"):
        expected = numpys(np.array(x.values), np.array(y.values))
    wrong = [(pair, a, b) for pair, a, b in zip(pairs, ours(x, y), expected, strict=True) if not same(a, float(b))]
    assert wrong == []


FUNCTIONS = {
    **{name: getattr(np, name) for name in ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sqrt")},
    **{a: getattr(np, b) for a, b in (("asin", "arcsin"), ("acos", "arccos"), ("atan", "arctan"))},
    **{a: getattr(np, b) for a, b in (("asinh", "arcsinh"), ("acosh", "arccosh"), ("atanh", "arctanh"))},
    "Abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceiling": np.ceil,
    "erf": np.vectorize(math.erf),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    x = sp.Symbol("x", real=True)
    found = compute(getattr(sp, name)(x), {x: Column(NUMBERS)})
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[name](np.array(NUMBERS))
    wrong = [(at, a, b) for at, a, b in zip(NUMBERS, found, expected, strict=True) if not same(a, float(b))]
    assert wrong == []


def test_powers_and_quotients_are_computed_as_written():
    """A quotient is one division; the root of -inf is not a number, its reciprocal neither."""
    x, y = sp.symbols("x y", real=True)
    tiny = Column([1e-320])
    assert compute(x / y, {x: tiny, y: tiny})[0] == 1.0, "x*(1/y) would be inf"
    assert compute(x / y**2, {x: 1.0, y: Column([0.0, -2.0])}).values == [math.inf, 0.25]
    assert compute(1 / y, {y: Column([-0.0])})[0] == -math.inf
    for expr in (sp.sqrt(x), 1 / sp.sqrt(x)):
        assert math.isnan(compute(expr, {x: Column([-math.inf])})[0])
    assert compute(sp.exp(-x) * sp.Rational(1, 3), {x: Column([0.0])})[0] == 1 / 3
    huge = sp.Integer(10) ** 400
    assert compute_all([x * huge, -x * huge], {x: Column([1.0])})[1][0] == -math.inf


def test_what_python_has_no_function_for_is_computed_by_sympy():
    x = sp.Symbol("x", real=True)
    assert compute(sp.gamma(x), {x: Column([5.0, 0.5])}).values == pytest.approx([24.0, math.sqrt(math.pi)])
    assert compute(sp.Piecewise((x, x > 0), (0, True)), {x: Column([2.0, -2.0])}).values == [2.0, 0.0]
    assert all(map(math.isnan, compute(sp.log(x) * sp.I, {x: Column([2.0, -2.0])})))
    assert compute(sp.exp(sp.I * x) + sp.exp(-sp.I * x), {x: Column([0.0])})[0] == 2.0, "the sum is real"
    assert math.isnan(compute(sp.zoo + x, {x: Column([1.0])})[0])


def test_shapes_of_arrays():
    x, y = sp.symbols("x y", real=True)
    found = over_arrays([x + y, x * 0 + 2], {x: np.ones((2, 1)), y: [1.0, 2.0, 3.0]})
    assert [array.shape for array in found] == [(2, 3), (2, 3)]
    assert found[0].tolist() == [[2.0, 3.0, 4.0]] * 2
    assert over_arrays([x], {x: 1.5})[0].shape == ()
    assert compute(sp.Integer(2), {}, 3).values == [2.0] * 3


@pytest.mark.parametrize("rows", [1, 2, 4, 6])
def test_rank(rows: int):
    """As NumPy counts it, for rows of which one may be a combination of the others."""
    random = np.random.default_rng(rows)
    table = random.uniform(-1, 1, (rows, 12))
    for extra in (
        table[:1] * 0,
        table.sum(axis=0, keepdims=True) / rows,
        table[:1] + 1e-13,
        table[:1] + 1e-4 * table[-1:] ** 2,
    ):
        whole = np.concatenate([table, extra])
        assert rank([Column(row.tolist()) for row in whole], 1e-9) == np.linalg.matrix_rank(whole, tol=1e-9)


def test_points_are_those_of_numpys_generator():
    draw, numpys = Generator(), np.random.default_rng(SEED)
    free, whole, negative = sp.Symbol("x"), sp.Symbol("n", integer=True, positive=True), sp.Symbol("m", negative=True)
    for _ in range(3):
        size = numpys.uniform(0.3, 2.0, 5)
        assert sample(free, 5, draw).values == (size * numpys.choice([-1.0, 1.0], 5)).tolist()
        assert sample(whole, 3, draw).values == numpys.integers(1, 4, 3).astype(float).tolist()
        assert sample(negative, 2, draw).values == (-numpys.uniform(0.3, 2.0, 2)).tolist()
        assert [draw.whole(5) for _ in range(7)] == numpys.integers(0, 5, 7).tolist()
    rows = numpys.uniform(0.3, 2.0, (2, 3))
    assert [row.values for row in samples(sp.Symbol("p", positive=True), 2, 3, draw)] == rows.tolist()
    for count in (1, 700, 2100, 3, 1024):  # across the parts of the stream that are kept
        assert draw.fractions(count) == numpys.random(count).tolist()
        assert draw.wholes(7, count) == numpys.integers(0, 7, count).tolist()


# The modules that the browser does not have, when the solver runs in a page.
WITHOUT = ("numpy", "torch", "tvm", "tvm_ffi", "triton", "ml_dtypes", "networkx", "graphviz", "anywidget", "traitlets")
ASK = f"""
import json, sys
for name in {WITHOUT}:
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
from neptune_widgets.answers import Question, answer_json, ask
from neptune_lab.repair import prove_supplied

questions = [Question(), Question("exp(c - r)*v/s", producers="r, s"), Question("c*r", "max", assumptions="r >= 0")]
questions += [Question("(c - r)**2"), Question("max(c, r)"), Question("c + abs(r)", "prod"), Question("c + ")]
print(json.dumps([answer_json(question, ask(question)) for question in questions]))
prove_supplied("sum", "exp(c - r)", ["r"], "t*exp(r_before - r_now)")
"""


@pytest.mark.nightly
def test_the_solver_needs_no_numpy_and_no_compiler():
    """Nor Jupyter: in the browser there are Python, SymPy and mpmath alone."""
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    states = ["solved", "solved", "solved", "family", "refused", "refused", "unread"]
    assert [answer["state"] for answer in answers] == states
    assert answers[0]["words"] == "h(t, r, r') = t*exp(r - r')"
    assert any("random points" in json.dumps(step) for step in answers[0]["attempts"][0]["steps"])
