"""Random functions of PyTorch, compiled and compared with themselves in float64."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree
from torch_to_stages.random_functions import random_function

import neptune_lab as nl


def check(seed: int) -> None:
    """The kernel of a random function gives what the function gives in float64."""
    drawn = random_function(seed)
    function, inputs = drawn.function(), drawn.inputs()
    kernel = nl.compile(nl.from_torch(function, *inputs))
    wanted = pytree.tree_leaves(function(*(t.double() for t in inputs)))
    eager = pytree.tree_leaves(function(*inputs))
    for got, want, plain in zip(pytree.tree_leaves(kernel(*inputs)), wanted, eager, strict=True):
        assert got.shape == want.shape, drawn.source
        # A rounding may be enlarged by the function itself, which PyTorch's own float32 result shows.
        allowed = 1e-4 * float(want.abs().max()) + 8 * float((plain.double() - want).abs().max()) + 1e-6
        assert float((got.double() - want).abs().max()) <= allowed, drawn.source
        assert torch.equal(got.isnan(), want.isnan()), drawn.source


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", range(6))
def test_a_random_function(seed: int):
    check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 175))
def test_more_random_functions(seed: int):
    check(seed)
