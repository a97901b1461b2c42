"""Passes that make arithmetic cheap: what they write, what they leave, and that the numbers stay."""

from __future__ import annotations

import math

import numpy as np
import pytest
from htile_programs import F16, F32, NEW, at, lit, op, softmax
from pass_programs import I, J, M, S, X, Y, Z, program, rows_of_softmax, same_numbers, store, value_of

from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import (
    Arith,
    Cast,
    Int,
    Iota,
    Name,
    Reduce,
    Slice,
    Stmt,
)
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.htile_passes.constants import split_factor, times
from neptune_lab.htile_passes.convert_positions_as_vectors import convert_positions_as_vectors
from neptune_lab.htile_passes.divide_by_multiplying import divide_by_multiplying
from neptune_lab.htile_passes.exponentials_to_base_two import exponentials_to_base_two
from neptune_lab.htile_passes.fold_constant_factors import fold_constant_factors
from neptune_lab.htile_passes.keep_exact import keep_exact
from neptune_lab.htile_passes.scale_after_maximum import scale_after_maximum

# -- constants --------------------------------------------------------------------------------------------------


def test_factors_are_split_and_multiplied_out():
    assert split_factor(op("mul", X, lit(0.5))) == (X, 0.5)
    assert split_factor(op("mul", lit(0.5), X)) == (X, 0.5)
    assert split_factor(X) == (X, 1.0)
    assert times(op("mul", X, lit(0.5)), 4.0) == op("mul", X, lit(2.0))
    assert times(op("mul", X, lit(0.5)), 2.0) == X
    assert times(lit(-math.inf), 2.0) == lit(-math.inf)


def test_divisions_and_factors_become_one_product():
    before = program(store("s1", Y, op("tanh", op("div", op("mul", X, lit(0.25)), lit(50.0)))))
    after = fold_constant_factors(before)
    assert value_of(after, "s1") == op("tanh", op("mul", X, lit(0.005)))
    same_numbers(before, after)


def test_a_factor_that_float32_cannot_hold_stays_in_two():
    before = program(store("s1", Y, op("mul", op("mul", X, lit(1e-30)), lit(1e-30))))
    assert fold_constant_factors(before) is before


@pytest.mark.parametrize(
    ("name", "other", "inner", "outer", "merged"),
    [
        ("mul", "mul", 0.125, 3.0, True),
        ("mul", "div", 0.125, 50.0, True),
        ("mul", "mul", 2.0, 1e30, True),  # the product is infinite where either is
        ("mul", "mul", 1e25, 1e-25, False),
        ("mul", "div", 1e25, 1e25, False),
        ("div", "div", 1e-30, 1e30, False),
        ("div", "mul", 1e30, 1e30, False),  # x / 1e30 vanishes
        ("mul", "mul", 1e-20, 1e-30, False),  # the product is no number of float32
        ("mul", "mul", 1e-45, 1e30, False),  # nor is the first factor
    ],
)
def test_factors_are_merged_only_where_no_product_between_them_overflows_or_vanishes(name, other, inner, outer, merged):
    before = program(store("s1", Y, op(other, op(name, X, lit(inner)), lit(outer))))
    after = fold_constant_factors(before)
    products = [e for e in subexpressions(value_of(after, "s1")) if getattr(e, "op", "") in ("mul", "div")]
    assert len(products) == (1 if merged else 2)
    x = np.array([1e-44, 1e-30, 1e-9, 1.0, 1e9, 1e20, 3e38, np.inf], np.float32)
    x = np.tile(np.concatenate([x, -x]), (32, 1))
    with np.errstate(all="ignore"):
        found, expected = (interpret(p, {"x": x})["y"] for p in (after, before))
    assert np.allclose(found, expected, rtol=1e-6, atol=2e-38)


def test_factors_are_merged_where_the_operand_is_known_to_be_small():
    small = op("tanh", X)
    before = program(store("s1", Y, op("mul", op("mul", small, lit(1e30)), lit(1e-30))))
    assert value_of(fold_constant_factors(before), "s1") == op("mul", small, lit(1.0))


def test_a_difference_that_may_be_exact_keeps_the_constant_of_base_two():
    before = program(store("s1", Y, op("exp", op("sub", op("add", X, lit(1e5)), lit(1e5)))))
    x = np.linspace(-3, 3, 512, dtype=np.float32).reshape(32, 16)
    found, expected = (interpret(p, {"x": x})["y"] for p in (exponentials_to_base_two(before), before))
    assert np.allclose(found, expected, rtol=1e-6)


# -- scale after maximum ----------------------------------------------------------------------------------------


def test_a_scale_moves_behind_the_maximum():
    before = rows_of_softmax(op("mul", X, lit(0.125)))
    after = scale_after_maximum(before)
    assert value_of(after, "s1") == X
    assert value_of(after, "s2") == op("mul", Reduce("max", S, 1), lit(0.125))
    assert value_of(after, "s3") == op("exp", op("sub", op("mul", S, lit(0.125)), at("m", I, NEW)))
    same_numbers(before, after)


def test_through_a_mask_and_a_bias_with_one_value():
    positions = op("le", Iota((NEW, J)), Iota((I, NEW)), dtype="bool")
    biased = op("add", op("mul", X, lit(0.5)), op("mul", lit(3.0), Cast(Iota((NEW, J)), F32)))
    before = rows_of_softmax(op("where", positions, biased, lit(-math.inf)))
    after = scale_after_maximum(before)
    # 0.5 x + 3 j = 0.5 (x + 6 j)
    inner = op("add", X, op("mul", lit(6.0), Cast(Iota((NEW, J)), F32)))
    assert value_of(after, "s1") == op("where", positions, inner, lit(-math.inf))
    same_numbers(before, after)


@pytest.mark.parametrize(
    "score",
    [op("mul", X, lit(-0.5)), op("add", X, lit(1.0)), op("where", op("gt", X, lit(0.0), dtype="bool"), X, lit(0.0))],
    ids=["negative", "no factor", "finite stand-in"],
)
def test_what_does_not_commute_stays(score):
    before = rows_of_softmax(score)
    assert scale_after_maximum(before) is before


def test_without_a_maximum_there_is_nothing_to_gain():
    before = program(store("s1", S, op("mul", X, lit(0.5))), store("s3", Y, op("exp", S)))
    assert scale_after_maximum(before) is before


# -- reciprocals, positions -------------------------------------------------------------------------------------


def softmax_sum() -> tuple[Stmt, ...]:
    """m = the sum of exp(x - the maximum of the row), as softmax's denominator."""
    highest = store("s0", M, Reduce("max", X, 1))
    return highest, store("s2", M, Reduce("sum", op("exp", op("sub", X, at("m", I, NEW))), 1))


def test_one_division_a_row_where_the_result_is_narrow():
    out = Cast(op("div", X, at("m", I, NEW)), F16)
    narrow = program(*softmax_sum(), store("s1", Z, out))
    after = divide_by_multiplying(narrow)
    assert value_of(after, "s1") == Cast(op("mul", X, op("div", lit(1.0), at("m", I, NEW))), F16)
    wide = program(*softmax_sum(), store("s1", Y, op("div", X, at("m", I, NEW))))
    assert divide_by_multiplying(wide) is wide
    elements = program(store("s1", Z, Cast(op("div", X, X), F16)))
    assert divide_by_multiplying(elements) is elements, "as many divisors as elements"
    tiny = program(store("s2", M, Reduce("sum", X, 1)), store("s1", Z, out))
    assert divide_by_multiplying(tiny) is tiny, "the reciprocal of 1e-39 is infinite in float32"
    whole = program(*softmax_sum(), store("s1", Y, op("round", op("div", X, at("m", I, NEW)))))
    assert divide_by_multiplying(whole) is whole, "half a unit in the last place is a step of round"


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: op("ceil", x),
        lambda x: op("floor", x),
        lambda x: op("round", x),
        lambda x: Cast(Cast(x, "int32"), F32),
        lambda x: op("where", op("eq", x, lit(2.0), dtype="bool"), lit(1.0), lit(0.0)),
    ],
)
@pytest.mark.parametrize("through", ["nothing", "a tile"])
def test_what_is_cut_keeps_its_rounding(cut, through):
    """x / 7 is not x * (1 / 7) at 14 = 2 * 7, and ceil shows it."""
    quotient = op("div", X, lit(7.0))
    body = [store("s1", Y, cut(quotient))]
    if through == "a tile":
        body = [store("s0", S, quotient), store("s1", Y, op("add", cut(S), S))]
    before = program(*body)
    after = fold_constant_factors(keep_exact(before))
    assert any(
        e == op("div_rn", X, lit(7.0)) for k in after.kernels for s in stores(k.body) for e in subexpressions(s.value)
    )
    x = {"x": np.arange(512.0).reshape(32, 16)}
    np.testing.assert_array_equal(interpret(after, x)["y"], interpret(before, x)["y"])


def test_quotients_of_the_same_values_are_rounded_alike():
    """A softmax's weights subtract a maximum that a comparison needs exactly from elements that are computed again."""
    quotient = op("div", X, lit(0.07))
    low = op("where", op("lt", at("m", I), lit(-1e30), dtype="bool"), lit(0.0), at("m", I))
    weights = op("exp", op("sub", quotient, at("m", I, NEW)))
    before = program(store("s2", M, Reduce("max", quotient, 1)), store("s3", M, low), store("s1", Y, weights))
    exact = op("div_rn", X, lit(0.07))
    assert value_of(keep_exact(before), "s1") == op("exp", op("sub", exact, at("m", I, NEW)))


def test_what_is_not_cut_is_folded_still():
    """The guard of a maximum compares with an infinity, which no rounding makes."""
    scaled = op("div", op("mul", X, lit(0.5)), lit(7.0))
    guard = op("where", op("eq", at("m", I), lit(-math.inf), dtype="bool"), lit(0.0), at("m", I))
    before = program(store("s2", M, Reduce("max", scaled, 1)), store("s3", M, guard), store("s1", Y, scaled))
    assert keep_exact(before) is before
    assert value_of(fold_constant_factors(before), "s1") == op("mul", X, lit(0.5 / 7.0))
    scale = program(
        store("s2", M, Reduce("max", op("div", X, op("sqrt", X)), 1)),
        store("s1", Y, op("round", op("div", X, at("m", I, NEW)))),
    )
    assert keep_exact(scale) is scale, "quantisation divides as fast as it can"
    zero = op("where", op("eq", at("m", I), lit(0.0), dtype="bool"), lit(1.0), at("m", I))
    tested = program(store("s2", M, Reduce("max", op("div", X, op("sqrt", X)), 1)), store("s3", M, zero))
    assert keep_exact(tested) is tested, "a quotient is 0 where its dividend is"
    difference = op("sub", op("div", X, lit(7.0)), op("div", X, lit(7.0)))
    told = program(store("s1", Y, op("where", op("eq", difference, lit(0.0), dtype="bool"), X, lit(1.0))))
    assert keep_exact(told) is not told, "a difference of quotients is not"
    root = program(store("s1", Y, op("floor", op("sqrt", X))))
    assert value_of(keep_exact(root), "s1") == op("floor", op("sqrt_rn", X))


def test_positions_are_converted_before_they_are_combined():
    difference = op("sub", Iota((NEW, J)), Iota((I, NEW)), dtype="int32")
    before = program(store("s1", Y, op("mul", Cast(difference, F32), X)))
    after = convert_positions_as_vectors(before)
    apart = op("sub", Cast(Iota((NEW, J)), F32), Cast(Iota((I, NEW)), F32))
    assert value_of(after, "s1") == op("mul", apart, X)
    same_numbers(before, after)


def test_positions_beyond_float32_are_converted_afterwards():
    far = Slice(Arith("*", Name("i0"), Int(2**24)), 16, "i")
    before = program(store("s1", Y, Cast(op("sub", Iota((NEW, J)), Iota((far, NEW)), dtype="int32"), F32)))
    assert convert_positions_as_vectors(before) is before


def test_no_exponential_is_left():
    after = exponentials_to_base_two(softmax().program)
    ops = {e.op for s in stores(after.kernels[0].body) for e in subexpressions(s.value) if hasattr(e, "op")}
    assert "exp2" in ops
    assert "exp" not in ops
