"""Operations that are defined here by others, beside PyTorch's own, in their dtype."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.torch_to_stages.definitions import DEFINITIONS
from neptune_lab.torch_to_stages.pooling import POOLING

inf, nan = float("inf"), float("nan")
ENDS = torch.tensor([0.0, -0.0, 1.0, -2.0, 3e-30, -1e30, inf, -inf, nan], dtype=torch.float64)


@pytest.mark.parametrize("name", ["atan2", "hypot", "fmax", "fmin", "copysign"])
def test_functions_of_two_numbers(name: str):
    x, y = (t.reshape(-1) for t in torch.meshgrid(ENDS, ENDS, indexing="ij"))
    own = DEFINITIONS[f"{name}.{'Tensor' if name == 'copysign' else 'default'}"]
    positions = torch.arange(len(x)) - 40
    for a, b in ((x, y), (x.float(), y), (x.float(), y.float()), (positions, y), (x.half(), positions)):
        if name == "hypot" and not (a.is_floating_point() and b.is_floating_point()):
            continue
        if a.dtype == torch.float32:
            a = a.clamp(-1e15, 1e15)
        theirs = getattr(torch, name)(a, b)
        near = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 3e-3}[theirs.dtype]
        torch.testing.assert_close(own(a, b), theirs, rtol=near, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [4, 5, 7])
def test_windows_are_those_of_pytorch(size: int):
    x = torch.randn(2, 3, size, size + 1, dtype=torch.float64).round(decimals=1)
    x[0, 0, 1, 1], x[0, 1, 2, 0], x[1] = nan, -inf, x[1].round()
    mean, largest = POOLING["avg_pool2d.default"], POOLING["max_pool2d_with_indices.default"]
    for kernel, stride, ceil, full in itertools.product((2, 3), (1, 2, 3), (False, True), (False, True)):
        around = kernel // 2 if full else 0
        for include in (True, False):
            ours = mean(x, [kernel], [stride], [around], ceil, include)
            torch.testing.assert_close(ours, F.avg_pool2d(x, kernel, stride, around, ceil, include), equal_nan=True)
        ours = largest(x, [kernel, 2], [stride], [around, 1], [1, 2 - full], ceil)
        theirs = F.max_pool2d(x, (kernel, 2), stride, (around, 1), (1, 2 - full), ceil, return_indices=True)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_adaptive_windows_are_those_of_pytorch(size: int):
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    x[0, 0, 0] = -inf
    ours = POOLING["_adaptive_avg_pool2d.default"](x, [size, None])
    torch.testing.assert_close(ours, F.adaptive_avg_pool2d(x, (size, None)))
    for a, b in zip(
        POOLING["adaptive_max_pool2d.default"](x, [size, 2]),
        F.adaptive_max_pool2d(x, (size, 2), return_indices=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_an_adaptive_pooling_to_no_elements_is_refused_for_that():
    with pytest.raises(DefinitionError, match="without elements"):
        nl.from_torch(lambda x: F.adaptive_avg_pool2d(x, (0, 2)), torch.ones(1, 2, 4, 4))


def test_rows_with_nan_are_searched_as_torch_does():
    """NaN is at the end of a sorted row; torch halves the row, so it finds the end of a row that is mostly NaN."""
    own = DEFINITIONS["searchsorted.Tensor"]
    values = torch.tensor([[-inf, -2.0, 0.0, 0.5], [1.0, inf, nan, 3.0]])
    for count, numbers in itertools.product(range(8), range(8)):
        row = torch.cat([torch.arange(numbers).div(2, rounding_mode="floor").float(), torch.full((count,), nan)])
        for right in (False, True):
            assert torch.equal(own(row, values, right=right), torch.searchsorted(row, values, right=right))


def test_a_row_with_nan_is_searched_in_a_kernel():
    row, values = torch.tensor([-1.0, 0.0, 1.0, nan, nan]), torch.tensor([-inf, -2.0, 0.5, 1.0, inf, nan])
    kernel = nl.compile(nl.from_torch(torch.searchsorted, row, values))
    assert torch.equal(kernel(row, values), torch.searchsorted(row, values))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_places_of_nan_in_images(mode: str):
    x, grid = torch.randn(1, 2, 4, 5), torch.rand(1, 3, 2, 2) * 3 - 1.5
    grid[0, 0, 0, 0], grid[0, 1, 1, 1], grid[0, 2, 1] = nan, nan, nan
    own = DEFINITIONS["grid_sampler_2d.default"]
    for padding, corners in itertools.product(("zeros", "border"), (False, True)):
        numbers = ("bilinear", "nearest").index(mode), ("zeros", "border").index(padding)
        theirs = F.grid_sample(x, grid, mode, padding, corners)
        torch.testing.assert_close(own(x, grid, *numbers, corners), theirs, equal_nan=True)


def test_an_argument_that_no_result_needs_stays_an_argument():
    """As in a module that takes a mask and ignores it."""

    def ignores(mask: torch.Tensor, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)

    mask, x, positions = torch.ones(3, dtype=torch.bool), torch.randn(3, 4), torch.arange(5)
    op = nl.from_torch(ignores, mask, x, positions)
    assert [t.name for t in op.inputs] == ["mask", "x", "positions"]
    torch.testing.assert_close(nl.compile(op)(mask, x, positions), x.softmax(-1))


def test_a_function_that_ignores_all_of_its_arguments():
    x = torch.randn(3, 4)
    made = nl.compile(nl.from_torch(lambda x: torch.arange(3.0).softmax(0), x))(x)
    torch.testing.assert_close(made, torch.arange(3.0).softmax(0))


def test_numbers_among_the_results_are_left_out():
    x = torch.arange(12.0).view(3, 4)
    operator = nl.from_torch(lambda x: {"size": x.shape[-1], "sum": x.sum(-1), "flag": True, "mean": x.mean(-1)}, x)
    kernel = nl.compile(operator)
    for ours, theirs in zip(kernel(x), (x.sum(-1), x.mean(-1)), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert kernel.relative_error() < 1e-6
