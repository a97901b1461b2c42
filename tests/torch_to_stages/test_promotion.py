"""Operands of several dtypes meet in the dtype that PyTorch gives them, and results are exactly PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import neptune_lab as nl
from neptune_lab.errors import DefinitionError

LEAST = -(2**31)
WHOLE = torch.tensor([[LEAST, LEAST + 1, -7, -1], [0, 3, 7, 2**31 - 1]], dtype=torch.int32)
TENTHS = torch.tensor([0.1, 0.2, 0.3, 0.4])

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "constants in float16": (
        lambda x: (x == 0.1, x > 0.2, x < 0.3, x == torch.tensor(0.1), x == torch.full((4,), 0.1, dtype=x.dtype)),
        (TENTHS.half(),),
    ),
    "constants in bfloat16": (
        lambda x: (x == 0.1, torch.where(x > 0.2, x, 0.3333) == 0.3333, x.clamp(max=0.3333) == 0.3333),
        (TENTHS.bfloat16(),),
    ),
    "float16 and float32": (lambda x, y: (x == y, x < y), (TENTHS.half(), TENTHS)),
    "quotients at the least integer": (
        lambda x: (x // 3, x % 3, torch.fmod(x, 7), x // 2**20, x % 2**30, x // (2**31 - 1), x.abs(), -x),
        (WHOLE,),
    ),
    "conditions": (lambda x, y: (x + y, torch.maximum(x, y), torch.minimum(x, y), x * y), (WHOLE > 0, WHOLE % 2 == 0)),
    "integers as floats": (
        lambda x: (torch.softmax(x % 7, -1, dtype=torch.float32), torch.isinf(x), torch.isfinite(x + 1)),
        (WHOLE,),
    ),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_exactly_those_of_pytorch(name: str):
    function, inputs = FUNCTIONS[name]
    found = pytree.tree_leaves(nl.compile(nl.from_torch(function, *inputs))(*inputs))
    for ours, theirs in zip(found, pytree.tree_leaves(function(*inputs)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0 if theirs.dtype != torch.float32 else 1e-6, atol=0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x.view(torch.float32), "view is not supported"),
        (lambda x: torch.softmax(x, -1), "convert to floats"),
        (lambda x: x.var(-1), "convert to floats"),
        (lambda x: x // 0, "integers by 0"),
        (lambda x: x - (x > 0)[0, 0], "for conditions"),
    ],
)
def test_refusals(function: Callable[..., Any], why: str):
    with pytest.raises(DefinitionError, match=why):
        nl.from_torch(function, WHOLE)


def test_a_gradient_in_float64_is_rounded_to_the_dtype_of_its_input():
    x = torch.tensor([1.0, -2.5, 0.3], dtype=torch.bfloat16)
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    given = torch.tensor([1.0, 0.7, -3.3], dtype=torch.float64)
    nl.compile(nl.from_torch(lambda x: x.double() + 1, x)).with_gradients()(ours).backward(given)
    (theirs.double() + 1).backward(given)
    assert ours.grad is not None
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.nightly
def test_gradients_of_a_softmax_are_computed_in_the_dtype_of_what_reads_it():
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x, -1).to(y.dtype) * y).sum(-1) + torch.logsumexp(x * 2, -1).to(y.dtype)

    x, y = TENTHS.repeat(2, 1), TENTHS.flip(0).repeat(2, 1).double()
    ours, theirs = ([t.clone().requires_grad_() for t in (x, y)] for _ in range(2))
    nl.compile(nl.from_torch(function, x, y)).with_gradients()(*ours).sum().backward()
    function(*theirs).sum().backward()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad)
