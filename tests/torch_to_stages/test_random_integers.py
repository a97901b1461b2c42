"""Random functions of integers beyond 32 bits: every number is PyTorch's, or the function is refused."""

from __future__ import annotations

import by_name
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torch_to_stages.random_integers import random_integers
from tvm import te

import neptune_lab as nl
from neptune_lab import operators
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


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", range(6))
def test_a_random_function_of_integers(seed: int):
    check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 175))
def test_more_random_functions_of_integers(seed: int):
    check(seed)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sums_of_integers_are_not_repaired(dtype: torch.dtype):
    x = torch.randint(-(2**20), 2**20, (3, 24), generator=torch.Generator().manual_seed(0)).to(dtype)

    def function(x: torch.Tensor) -> torch.Tensor:
        less = x - x.amax(-1, keepdim=True)
        return (less - less.amin(-1, keepdim=True)).sum(-1)

    kernel = nl.compile(nl.from_torch(function, x))
    assert torch.equal(kernel(x), function(x))


def test_a_sum_of_bytes_that_wraps_is_not_repaired_within_a_float():
    x = te.placeholder((4, 40), "int8", name="x")
    j, k = te.reduce_axis((0, 40), name="j"), te.reduce_axis((0, 40), name="k")
    total = te.compute((4,), lambda i: te.sum(x[i, j], axis=j), name="total")
    less = te.compute(
        (4,), lambda i: te.sum(te.exp((x[i, k] - total[i]).astype("float32") * 0.01), axis=k), name="less"
    )
    kernel = by_name.compile(operators.custom("bytes", [x], [less]), "rolling_update", block_q=4, block_kv=8)
    values = np.random.default_rng(0).integers(-128, 128, (4, 40)).astype(np.int8)
    differences = values - values.sum(1, keepdims=True, dtype=np.int8)
    assert differences.dtype == np.int8
    expected = np.exp(differences.astype(np.float64) * 0.01).sum(1)
    assert np.allclose(kernel(torch.from_numpy(values)).numpy(), expected, rtol=1e-5)
