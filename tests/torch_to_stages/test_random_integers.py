"""Random functions of integers beyond 32 bits: every number is PyTorch's, or the function is refused."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree
from torch_to_stages.random_integers import random_integers

import neptune_lab as nl
from neptune_lab.errors import DefinitionError


def check(seed: int) -> None:
    drawn = random_integers(seed)
    function, inputs = drawn.function(), drawn.inputs()
    try:
        wanted = function(*inputs)
    except RuntimeError:  # a constant that PyTorch does not take for the dtype
        return
    try:
        kernel = nl.compile(nl.from_torch(function, *inputs))
    except DefinitionError as error:
        if "is not supported" not in str(error):
            raise
        return
    for ours, theirs in zip(pytree.tree_leaves(kernel(*inputs)), pytree.tree_leaves(wanted), strict=True):
        assert ours.dtype == theirs.dtype, drawn.source
        assert torch.equal(ours, theirs), drawn.source


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(6))
def test_a_random_function_of_integers(seed: int):
    check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 175))
def test_more_random_functions_of_integers(seed: int):
    check(seed)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sums_of_integers_are_not_repaired(dtype: torch.dtype):
    x = torch.randint(-(2**20), 2**20, (3, 24), generator=torch.Generator().manual_seed(0)).to(dtype)

    def function(x: torch.Tensor) -> torch.Tensor:
        less = x - x.amax(-1, keepdim=True)
        return (less - less.amin(-1, keepdim=True)).sum(-1)

    kernel = nl.compile(nl.from_torch(function, x))
    assert torch.equal(kernel(x), function(x))
