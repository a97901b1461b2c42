"""The functions of mods on special values, beside torch's on float64 and int64; their kernels are in tests/pytorch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from neptune_lab.operators.math import Scalar

INF = math.inf
FLOATS = [0.0, -0.0, 1.0, -1.0, INF, -INF, math.nan, 1e-30, 1e30, -3.0, 0.5, 2.0, -0.5, 1e-5, 100.0, -1e8, 7.5, -7.5]
INTEGERS = [0, 1, -1, 5, -7, 31, 32, 33, 63, 64, 100, -100, 2**31 - 1, -(2**31), 2**40]
ONE = [
    *("atan", "asin", "acos", "sinh", "cosh", "tan", "tanh", "asinh", "acosh", "atanh", "sinc", "deg2rad", "rad2deg"),
    *("logit", "signbit", "angle", "sgn", "isreal", "positive", "frac", "trunc", "log1p", "expm1", "logical_not"),
    *("arcsin", "arctan", "arccosh", "special.entr", "special.ndtr", "special.sinc", "special.expit"),
    *("lgamma", "digamma", "erfinv", "i0", "erfc", "special.i0e", "special.i1", "special.i1e", "special.erfcx"),
]
TWO = [
    *("atan2", "arctan2", "hypot", "copysign", "xlogy", "logaddexp2", "ldexp", "isclose", "fmod", "remainder"),
    *("logical_and", "logical_or", "logical_xor", "floor_divide"),
]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"]


def named(name: str):
    found = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


def pairs(values: list) -> tuple[np.ndarray, np.ndarray]:
    first, second = zip(*itertools.product(values, values), strict=True)
    return np.array(first), np.array(second)


def same(found: object, wanted: torch.Tensor, rtol: float = 1e-7):
    ours, theirs = np.asarray(found).astype(float), wanted.double().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-12)
    return ours, theirs


@pytest.mark.parametrize("name", ONE)
def test_a_function_of_one_number(name: str):
    x = np.array(FLOATS)
    same(named(name)(Scalar(x)).value, named(name)(torch.from_numpy(x)), rtol=1e-6)


@pytest.mark.parametrize("name", TWO)
def test_a_function_of_two_numbers(name: str):
    x, y = pairs(FLOATS)
    ours, theirs = same(named(name)(Scalar(x), Scalar(y)).value, named(name)(torch.from_numpy(x), torch.from_numpy(y)))
    if name in ("atan2", "arctan2", "copysign"):  # the signs of zeros
        assert (np.signbit(ours) == np.signbit(theirs))[~np.isnan(theirs)].all()


@pytest.mark.parametrize("name", ["asin", "asinh", "atanh", "atan", "sinh"])
def test_small_numbers_keep_their_digits(name: str):
    x = np.array([1e-2, 1e-4, -1e-7, 1e-12])
    found = getattr(torch, name)(Scalar(x)).value
    np.testing.assert_allclose(found, getattr(torch, name)(torch.from_numpy(x)).numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", BITS)
def test_bits_of_whole_numbers(name: str):
    function = getattr(torch, name)
    x, y = pairs(INTEGERS)
    assert (function(Scalar(x), Scalar(y)).value == function(torch.from_numpy(x), torch.from_numpy(y)).numpy()).all()
    numbers = np.array(INTEGERS)
    for constant in INTEGERS:
        found = np.asarray(function(Scalar(numbers), constant).value)
        assert (found == function(torch.from_numpy(numbers), constant).numpy()).all(), constant


def test_operators_with_the_number_on_either_side():
    n = np.array(INTEGERS[:6])
    x, t = Scalar(n), torch.from_numpy(n)
    for found, wanted in ((6 & x, 6 & t), (6 | x, 6 | t), (6 ^ x, 6 ^ t), (3 << x, 3 << t), (99 >> x, 99 >> t)):
        assert (np.asarray(found.value) == wanted.numpy()).all()


def test_a_condition_beside_a_number_is_0_or_1():
    n = np.arange(8)
    found, wanted = (Scalar(n) > 3) & Scalar(n), (torch.arange(8) > 3) & torch.arange(8)
    assert (np.asarray(found.value) == wanted.numpy()).all()


def test_in_place_operators_change_every_name():
    def changed(x):
        same_value, copy = x, x.clone()
        x += 1
        x *= 2
        return same_value, copy

    for found, wanted in zip(changed(Scalar(np.arange(4.0))), changed(torch.arange(4.0).double()), strict=True):
        assert (np.asarray(found.value) == wanted.numpy()).all()


def test_no_field_hides_a_method_of_tensors():
    """`x.half()` in a mod is torch's conversion: a field of the same name would be found first."""
    assert not set(Scalar.__slots__) & set(dir(torch.Tensor))
    assert Scalar(np.float64(0.1)).half().dtype == torch.float16
