"""Exponentials of base two: infinities, masks and ends of ranges stay, and each row keeps its rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
from htile_programs import F16, F32, NEW, at, lit, op
from pass_programs import I, M, S, X, Y, Z, program, rows_of_softmax, same_numbers, store, value_of

from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import (
    Cast,
    Program,
    Reduce,
    Stmt,
)
from neptune_lab.htile_passes.constants import split_factor
from neptune_lab.htile_passes.exponentials_to_base_two import exponentials_to_base_two
from neptune_lab.htile_passes.scale_after_maximum import scale_after_maximum


def test_exponentials_are_base_two_and_the_constant_joins_a_factor():
    before = rows_of_softmax(op("mul", op("tanh", X), lit(0.125)))
    after = exponentials_to_base_two(scale_after_maximum(before))
    found = value_of(after, "s3")
    log2e = math.log2(math.e)
    scaled, maximum = op("mul", S, lit(0.125 * log2e)), op("mul", at("m", I, NEW), lit(log2e))
    assert found == op("exp2", op("sub", scaled, maximum))
    same_numbers(before, after)


def test_infinities_stay_infinite_in_base_two():
    hidden = op("where", op("gt", X, lit(0.0), dtype="bool"), X, lit(-math.inf))
    before = program(store("s1", Y, op("exp", hidden)))
    after = exponentials_to_base_two(before)
    assert value_of(after, "s1").args[0].args[2] == lit(-math.inf)
    same_numbers(before, after)


@pytest.mark.parametrize("masked", [-3.4028234663852886e38, 3.4028234663852886e38, -3e38, -1e30, 1e38])
def test_base_two_overflows_no_finite_difference(masked: float):
    """A row that is finfo.min throughout, as a mask writes it: exp(x - x) is 1 for every element."""
    before = rows_of_softmax(X)
    x = np.random.default_rng(0).standard_normal((32, 16)).astype(np.float32)
    x[::4] = masked
    x[1::4, :9] = masked
    x[2::4, 3] = -np.inf
    with np.errstate(all="ignore"):
        want, found = (interpret(p, {"x": x}) for p in (before, exponentials_to_base_two(before)))
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("scaled", [True, False])
def test_a_sum_is_no_maximum(scaled: bool):
    """x - the sum may be exact and positive, so it is multiplied as a whole; also where a maximum scales the sum."""
    total = Reduce("sum", X, 1)
    moved = op("add", op("mul", op("exp", op("sub", M, M)), M), total) if scaled else total
    difference = op("sub", X, at("m", I, NEW))
    first = [store("s0", M, Reduce("max", X, 1))] if scaled else []
    before = program(*first, store("s1", M, moved), store("s2", Y, op("exp", difference)))
    value = value_of(exponentials_to_base_two(before), "s2")
    assert split_factor(value.args[0]) == (difference, pytest.approx(math.log2(math.e)))


@pytest.mark.parametrize("scale", [1.0, 0.25, -2.0])
def test_products_of_base_two_are_exact_in_large_rows(scale: float):
    """exp(m - m) is 1 there, also where a GPU fuses one of the two products with the difference."""
    after = exponentials_to_base_two(rows_of_softmax(X if scale == 1 else op("mul", X, lit(scale))))
    element, row = value_of(after, "s3").args[0].args
    assert element.args[1] == row.args[1]
    written = program(store("s0", M, Reduce("max", X, 1)), store("s1", Y, row))
    x = np.repeat((np.float32(1.7) ** np.arange(40, 72)).astype(np.float32), 16).reshape(32, 16)
    x[0], x[1], x[2] = np.finfo(np.float32).min, np.finfo(np.float32).max, -(np.float32(2) ** 28)
    products = interpret(written, {"x": x})["y"]
    large = np.abs(x) > 2.0**27
    assert large.sum() > 16 * 16
    np.testing.assert_array_equal(np.abs(np.frexp(products / x.astype(np.float64))[0][large]), 0.5)  # powers of two


def tempered(*ends: Stmt) -> Program:
    """Rows x * 14.3, their maxima, and `ends`, after the pass."""
    maxima = store("s1", S, op("mul", X, lit(14.3))), store("s2", M, Reduce("max", S, 1))
    return exponentials_to_base_two(scale_after_maximum(program(*maxima, *ends)))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 1e9, 1e25])
def test_exponentials_that_nothing_divides_are_one_at_the_maximum(size: float):
    """Their sum may be kept; x * (14.3 log2 e) would be rounded in another way than (m * 14.3) log2 e."""
    after = tempered(store("s3", Y, op("exp", op("sub", S, at("m", I, NEW)))))
    x = (size * np.random.default_rng(0).standard_normal((32, 16))).astype(np.float32)
    scaled = (x * np.float32(14.3)).astype(np.float64)
    found = interpret(after, {"x": x})["y"]
    assert (found.max(axis=1) == 1).all()
    if size < 1e9:
        np.testing.assert_allclose(found, np.exp(scaled - scaled.max(1, keepdims=True)), rtol=1e-4, atol=1e-30)


def test_elements_that_are_sums_are_rounded_as_their_maximum():
    biased = op("add", X, op("mul", X, lit(0.5)))
    weights = op("exp", op("sub", biased, at("m", I, NEW)))
    before = program(store("s1", M, Reduce("max", biased, 1)), store("s2", Y, weights))
    x = (1e4 * np.random.default_rng(0).standard_normal((32, 16))).astype(np.float32)
    assert (interpret(exponentials_to_base_two(before), {"x": x})["y"].max(axis=1) == 1).all()


@pytest.mark.parametrize("selected", [False, True])
def test_a_logarithm_that_is_kept_is_zero_at_the_maximum(selected: bool):
    """Its exponential is 1 there, as if it was kept itself; the logarithm is an output without the row's maximum."""
    kept = op("mul", op("log", op("exp", op("sub", S, at("m", I, NEW)))), lit(math.log2(math.e)))
    kept = op("where", op("eq", S, lit(-math.inf), dtype="bool"), lit(0.0), kept) if selected else kept
    x = (1e4 * np.random.default_rng(0).standard_normal((32, 16))).astype(np.float32)
    with np.errstate(divide="ignore"):
        found = interpret(tempered(store("s3", Y, kept)), {"x": x})["y"]
    assert (found.max(axis=1) == 0).all()


def test_exponentials_that_are_divided_or_rounded_to_16_bits_cost_one_product():
    """What a row has in common cancels in a softmax, and in 16 bits weights are rounded by more."""
    weights = op("exp", op("sub", S, at("m", I, NEW)))
    divided = tempered(store("s3", Y, op("div", weights, X)))
    rounded = tempered(store("s3", Y, weights), store("s4", Z, Cast(weights, F16)))
    for value in (value_of(divided, "s3").args[0], value_of(rounded, "s3")):
        assert value.args[0].op == "sub"


@pytest.mark.parametrize("scale", [1e20, 0.0884, 1e5])
def test_rounded_products_of_base_two_stay_far_from_the_end_of_float16(scale: float):
    """The maximum's weight is 1 up to a few roundings, which are common to its row."""
    before = rows_of_softmax(op("mul", X, lit(scale)))
    after = exponentials_to_base_two(scale_after_maximum(before))
    for size in (1.0, 1e3, 1e9, 1e18):
        x = (size * np.random.default_rng(0).standard_normal((32, 16))).astype(np.float32)
        weights = interpret(after, {"x": x})["y"]
        assert np.isfinite(weights.astype(np.float16)).all()
        assert (weights.max(axis=1) > 2.0**-11).all()


@pytest.mark.parametrize("hidden", [-3.4028234663852886e38, 3.4028234663852886e38])
def test_base_two_sees_what_a_mask_writes_into_bounded_values(hidden: float):
    """tanh bounds the elements, but not the literal of the mask: rows of finfo.min alone, and beside -inf."""
    kept = op("gt", X, lit(0.0), dtype="bool")
    x = np.full((32, 16), -1.0, np.float32)
    x[::2] = np.random.default_rng(0).standard_normal((16, 16))
    row = store("s0", M, Reduce("max", op("where", kept, op("tanh", X), lit(hidden)), 1))
    for masked in (hidden, -math.inf):
        element = op("where", kept, op("tanh", X), lit(masked))
        before = program(row, store("s1", Y, op("exp", op("sub", element, at("m", I, NEW)))))
        with np.errstate(all="ignore"):
            want, found = (interpret(p, {"x": x})["y"] for p in (before, exponentials_to_base_two(before)))
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("scale", [1.0, 0.0884])
@pytest.mark.parametrize("kind", ["small", "in memory", "a large product"])
def test_base_two_moves_a_row_by_its_difference(kind: str, scale: float):
    """exp(m - m) is 1, also where a GPU fuses a product and the difference, perhaps that of m itself: the difference
    comes first, and its factor is 0 in equal rows that may be large products."""
    element = {"small": op("tanh", X), "in memory": Cast(X, F32), "a large product": op("mul", X, X)}[kind]
    first, row = store("s0", M, Reduce("max", element, 1)), at("m", I, NEW)
    moved = op("exp", op("sub", op("mul", row, lit(scale)), op("mul", row, lit(scale))))
    value = value_of(exponentials_to_base_two(program(first, store("s1", Y, moved))), "s1")
    if kind == "a large product":
        difference, by = value.args[0].args
        equal, nothing, factor = by.args
        assert equal == op("eq", row, row, dtype="bool")
        assert (nothing.value, factor.value) == (0.0, pytest.approx(scale * math.log2(math.e)))
    else:
        difference, factor = split_factor(value.args[0])
        assert factor == pytest.approx(scale * math.log2(math.e))
    assert difference == op("sub", row, row)


@pytest.mark.parametrize("literal", [True, False])
def test_base_two_keeps_finfo_min_apart_from_an_infinity(literal: bool):
    """finfo.min - -inf is inf; were finfo.min multiplied by log2(e), it would be -inf too, and the difference NaN."""
    kept = op("gt", X, lit(0.0), dtype="bool")
    narrow = Cast(Cast(X, F16), F32)
    row = store("s0", M, Reduce("max", op("where", kept, narrow, lit(-math.inf)), 1))
    element = op("where", kept, op("tanh", X), lit(-3.4028234663852886e38)) if literal else X
    before = program(row, store("s1", Y, op("exp", op("sub", element, at("m", I, NEW)))))
    x = np.full((32, 16), -3.4e38, np.float32)
    x[::2, 3] = 2.0
    with np.errstate(all="ignore"):
        want, found = (interpret(p, {"x": x})["y"] for p in (before, exponentials_to_base_two(before)))
    assert np.isposinf(want[1]).all()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-30)
