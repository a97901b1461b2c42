"""What validation compares: where rounding or the order of a sum decides, nothing; a wrong element, always."""

from __future__ import annotations

import numpy as np
import pytest
from planted import softmax_sum
from tvm import te

import neptune_lab as nl
from neptune_lab.htile.interpret import interpret
from neptune_lab.operators import Operator, custom
from neptune_lab.pipeline import validate as package
from neptune_lab.pipeline.validate import (
    compare,
)
from neptune_lab.pipeline.validate.reference import evaluate


def deviation_of(rows: int, cols: int, value: str) -> Operator:
    x = te.placeholder((rows, cols), "float32", name="x")
    a, b = te.reduce_axis((0, cols), name="a"), te.reduce_axis((0, cols), name="b")
    m = te.compute((rows,), lambda i: te.sum(x[i, a] / cols, axis=a), name="m")
    v = te.compute((rows,), lambda i: te.sum((x[i, b] - m[i]) * (x[i, b] - m[i]), axis=b), name="v")
    o = te.compute((rows,), lambda i: {"mean": m[i] / te.sqrt(v[i]), "inverse": 1.0 / (v[i] + 1.0)}[value], name="o")
    return custom("deviation", [x], [o])


@pytest.mark.parametrize("cols", [3, 9, 13])
def test_what_rounding_decides_is_not_compared(cols: int):
    """The variance of equal numbers is 0 or a rounding; that of zeros is 0, and 0/0 is NaN however it is rounded."""
    definition = deviation_of(3, cols, "mean").program
    x = np.ones((3, cols), np.float32)
    x[0], x[1], x[2] = 80.1, 0.0, np.arange(cols)
    wanted = compare.expectations(definition, [{"x": x}])[0]
    right = np.array(wanted["o"].wide)
    assert np.isnan(right[1])
    assert np.isfinite(right[2])
    assert wanted["o"].rounding()["o"].decides.tolist() == [True, False, False]
    for either in (np.nan, np.inf, 3e7):
        right[0] = either
        found = compare.difference(wanted, {"o": right}, removes=False)
        assert found is None or (np.isfinite(wanted["o"].wide[0]) and np.isfinite(either)), found
    for row, wrong in ((1, 0.5), (2, np.nan), (2, 0.5)):
        found = compare.difference(wanted, {"o": np.where(np.arange(3) == row, wrong, right)}, removes=False)
        assert found is not None
        assert found.index == (row,) or (np.isfinite(wanted["o"].wide[0]) and found.index == (0,))


def test_a_sum_that_its_order_makes_overflow_is_not_compared():
    """2e38 - 2e38 + 2e38 - 2e38 is 0, or NaN where the two large ones are added first; so is 5e38 - 2e38 - 2e38."""
    x = te.placeholder((2, 4), "float32", name="x")
    j = te.reduce_axis((0, 4), name="j")
    total = te.compute((2,), lambda i: te.sum(x[i, j], axis=j), name="total")
    definition = custom("f", [x], [te.compute((2,), lambda i: total[i] + 1.0, name="o")]).program
    wanted = compare.expectations(definition, [{"x": np.array([[2e38, -2e38] * 2, [1, 2, 3, 4]], np.float32)}])[0]
    assert wanted["o"].rounding()["o"].decides.tolist() == [True, False]
    assert compare.difference(wanted, {"o": np.array([np.nan, 11.0])}, removes=False) is None
    assert compare.difference(wanted, {"o": np.array([1.0, np.nan])}, removes=False) is not None
    one = te.compute((2,), lambda i: te.sum(x[i, j] * 2.0, axis=j), name="o")
    inputs = {"x": np.array([[2.5e38, -1e38, -1e38, 0], [2.5e38, 1e38, 1e38, 0]], np.float32)}
    assert compare.expectations(custom("g", [x], [one]).program, [inputs])[0]["o"].rounding()["o"].decides.tolist() == [
        True,
        False,
    ]


def test_products_that_overflow_to_both_sides_are_not_compared():
    """A library's product of a matrix with itself has +inf or -inf there, where its terms add up to NaN."""
    x, y = te.placeholder((2, 3), "float32", name="x"), te.placeholder((3, 2), "float32", name="y")
    k = te.reduce_axis((0, 3), name="k")
    product = te.compute((2, 2), lambda i, j: te.sum(x[i, k] * y[k, j], axis=k), name="product")
    definition = custom("f", [x, y], [te.compute((2, 2), lambda i, j: te.tanh(product[i, j]), name="o")]).program
    inputs = {
        "x": np.array([[3e38, 3e38, 3], [1, 2, 3]], np.float32),
        "y": np.array([[4e2, 4e2], [-2e2, 2e2], [1, 2]], np.float32),
    }
    decides = compare.expectations(definition, [inputs])[0]["o"].rounding()["o"].decides
    assert decides.tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize(("left", "right", "unclear"), [(1e18, 1e17, True), (1e17, 1e18, True), (1e18, 1e10, False)])
def test_a_sum_of_products_is_unclear_near_the_largest_float_alone(left: float, right: float, unclear: bool):
    """64 terms, whose sum is 6.4e36 or 6.4e29: by the sizes of both factors, finite ones beside infinite ones too."""
    x, y = te.placeholder((2, 64), "float32", name="x"), te.placeholder((2, 64), "float32", name="y")
    j = te.reduce_axis((0, 64), name="j")
    o = te.compute((2,), lambda i: te.sum(x[i, j] * y[i, j], axis=j), name="o")
    inputs = {"x": np.full((2, 64), left, np.float32), "y": np.full((2, 64), right, np.float32)}
    inputs["x"][0, 0] = np.inf
    found = [
        evaluate(custom("products", [x, y], [o]).program, inputs, wide=True, rounding=np.random.default_rng(n))["o"]
        for n in range(20)
    ]
    assert all(row[0] == np.inf for row in found)
    assert any(np.isnan(row[1]) for row in found) == unclear


def test_an_overflow_in_a_vector_repair_may_be_nan_and_no_other_one():
    definition = deviation_of(2, 4, "inverse").program
    x = np.array([[1, 2, 3, 4], [-1e30, 1e30, 2e30, 3e30]], np.float32)
    spoilt = {"o": np.array([1 / 6, np.nan])}
    assert compare.difference(compare.expectations(definition, [{"x": x}], {"v"})[0], spoilt, removes=False) is None
    assert compare.difference(compare.expectations(definition, [{"x": x}])[0], spoilt, removes=False) is not None
    spoilt = {"o": np.array([np.nan, 0.0])}
    assert compare.difference(compare.expectations(definition, [{"x": x}], {"v"})[0], spoilt, removes=False) is not None


def test_finite_where_the_definition_is_and_nan_where_it_is():
    definition = softmax_sum(2, 4).program
    inputs = {n: np.ones((2, 4), np.float32) for n in "xy"}
    inputs["x"][1] = -np.inf
    wanted = compare.expectations(definition, [inputs])[0]
    right = {"o": np.float32([4.0, np.nan])}
    assert compare.difference(wanted, right, removes=False) is None
    for wrong in ([np.nan, np.nan], [4.1, np.nan], [4.0, 0.0]):
        assert compare.difference(wanted, {"o": np.float32(wrong)}, removes=False) is not None
    assert compare.difference(wanted, {"o": np.float32([4.0, 0.0])}, removes=True) is None
    found = interpret(nl.compile(softmax_sum(2, 4)).htile, inputs)
    assert compare.difference(wanted, found, removes=False) is None
    assert package.MODES == ("quick", "full", "none")


def test_a_result_beyond_2_100_may_overflow_on_the_way():
    """p * (dp - delta) * k, summed over keys, where a row's kept sum is far too small for its scores."""
    nothing = compare.Rounding(np.zeros(2, bool), np.zeros(2))
    stated = np.array([1.0, 4e36])
    wanted = {"o": compare.Wanted(stated, stated, np.zeros(2), lambda: {"o": nothing})}
    for lost in (np.inf, np.nan):
        assert compare.difference(wanted, {"o": np.array([1.0, lost])}, removes=False) is None
        assert compare.difference(wanted, {"o": np.array([lost, 4e36])}, removes=False) is not None
    assert compare.difference(wanted, {"o": np.array([1.0, 5e36])}, removes=False) is not None
