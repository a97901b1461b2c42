"""An output that is a map of what a nest reads anyway is stored by the nest's kernel: the sum of a row and a residual,
beside its norm. A map that a rolling loop and a second pass both read is computed by both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl


def _norm_of_sum(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + r
    return h, F.rms_norm(h, (x.shape[-1],), w, 1e-6)


def _log_sum_exp_of_sum(x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + r
    return torch.logsumexp(h, -1), 2.0 * h


def _log_sum_exp_and_double(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.logsumexp(x, -1), 2.0 * x


def _of_another_tensor(x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.logsumexp(x, -1), x + r


def _of_the_transpose(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.logsumexp(x, -1), x.T + 1.0


CASES = {
    "a norm": (_norm_of_sum, ((5, 200), (5, 200), (200,)), 1),
    "a norm of samples": (_norm_of_sum, ((2, 3, 130), (2, 3, 130), (130,)), 1),
    "a log-sum-exp": (_log_sum_exp_of_sum, ((3, 150), (3, 150)), 1),
    "an input": (_log_sum_exp_and_double, ((3, 300),), 1),
    "another tensor is read too": (_of_another_tensor, ((3, 150), (3, 150)), 2),
    "other dimensions": (_of_the_transpose, ((64, 64),), 2),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("columns", [64, 512], ids=["loop", "tile"])
@pytest.mark.parametrize("case", CASES)
def test_how_many_kernels_there_are_and_what_they_compute(case: str, columns: int):
    function, shapes, kernels = CASES[case]
    torch.manual_seed(0)
    inputs = [torch.randn(shape) for shape in shapes]
    op = nl.from_torch(function, *inputs)
    kernel = nl.compile(op, config=nl.TileConfig(block_q=2, block_kv=columns), validate="none")
    assert len(kernel.htile.kernels) == kernels
    for got, want in zip(kernel(*inputs), function(*(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def _twice(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x + torch.softmax(x, -1)
    return x


def _thrice(x: torch.Tensor) -> torch.Tensor:
    return _twice(x) + torch.softmax(_twice(x), -1)


@pytest.mark.nightly
@pytest.mark.parametrize(("function", "kernels"), [(_twice, 2), (_thrice, 3)])
def test_a_map_that_is_read_behind_its_loop_is_computed_again(
    function: Callable[[torch.Tensor], torch.Tensor], kernels: int
):
    torch.manual_seed(0)
    x = torch.randn(5, 150)
    kernel = nl.compile(nl.from_torch(function, x), config=nl.TileConfig(block_q=2, block_kv=64), validate="none")
    assert len(kernel.htile.kernels) == kernels
    torch.testing.assert_close(kernel(x).double(), function(x.double()), rtol=1e-5, atol=1e-5)
