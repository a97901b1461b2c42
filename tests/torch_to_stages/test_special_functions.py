"""Gamma, Bessel and error functions beside PyTorch's in float64: over their range, special numbers, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from gradients import gradients

import neptune_lab as nl
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.operators import training
from neptune_lab.operators.formulas import FORMULAS
from neptune_lab.operators.special_formulas import SPECIAL

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "erfinv": torch.erfinv,
    "i0": torch.special.i0,
    "special_i0e": torch.special.i0e,
    "special_i1": torch.special.i1,
    "special_i1e": torch.special.i1e,
    "erfc": torch.erfc,
    "special_erfcx": torch.special.erfcx,
}
SPECIAL_NUMBERS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -2.0, 3.0, 8.0, 0.5, -0.5]


def numbers(name: str) -> torch.Tensor:
    """Float32 numbers of the function's range, as float64."""
    small = torch.logspace(-20, 0, 200)
    if name == "erfinv":
        x = torch.cat([torch.linspace(-1, 1, 801), small, 1 - torch.logspace(-7, -1, 99)])
    else:
        x = torch.cat([torch.linspace(-9.7, 30, 1201), small, -small, torch.logspace(1, 30, 99)])
    return x.double()[None]


def test_each_has_a_test():
    assert FUNCTIONS.keys() == SPECIAL.keys() <= FORMULAS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_pytorch_in_float64(name: str):
    function = lambda x: FUNCTIONS[name](x)  # noqa: E731
    x = torch.cat([numbers(name), torch.tensor([SPECIAL_NUMBERS]).double()], -1)
    found = torch.from_numpy(run_wide(nl.from_torch(function, x).program, {"x": x.numpy()})["out"])
    # (near zeros, the error is absolute)
    torch.testing.assert_close(found, function(x), rtol=1e-12, atol=1e-13, equal_nan=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_pytorch_in_float64(name: str):
    function = lambda x: FUNCTIONS[name](x)  # noqa: E731
    x = numbers(name)
    x = x[:, (x[0].abs() < 30) & (x[0] != x[0].floor())].requires_grad_()
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    found = gradients(
        training(nl.from_torch(function, x.detach())), {"x": x.detach().numpy()}, {"d_out": x.new_ones(x.shape).numpy()}
    )
    finite = expected.isfinite()
    torch.testing.assert_close(torch.from_numpy(found["x"])[finite], expected[finite], rtol=1e-9, atol=1e-10)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_of_float32(name: str):
    function = lambda x: FUNCTIONS[name](x)  # noqa: E731
    x = numbers(name).float()
    found, expected = nl.compile(nl.from_torch(function, x))(x).double(), function(x.double())
    expected = expected.float().double()
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6, equal_nan=True)
