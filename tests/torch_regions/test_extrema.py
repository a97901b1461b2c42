"""The gradient of an extremum reaches its element, though the backward graph computes the elements again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from neptune_lab.torch_regions.backend import recorded_partitions

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amax of log-probabilities": lambda x: ((x[:, :1] + x.log_softmax(-1)) / 2.93).amax(-1),
    "max of all": lambda x: ((x - x.logsumexp(-1, keepdim=True)) / 2.93).max(),
    "amin of a norm": lambda x: (torch.nn.functional.layer_norm(x, (7,)) / 2.93).amin(-1),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_extrema(name: str):
    x = torch.randn(100, 7, generator=torch.Generator().manual_seed(0))
    mine, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    torch._dynamo.reset()
    torch.compile(FUNCTIONS[name], backend="neptune_lab")(mine).sum().backward()
    FUNCTIONS[name](wide).sum().backward()
    torch.testing.assert_close(mine.grad, wide.grad.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_an_extremum_of_what_no_kernel_rounds_stays_in_its_region():
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x / x.abs().amax(-1, keepdim=True)).softmax(-1)

    torch._dynamo.reset()
    with recorded_partitions() as graphs:
        torch.compile(scaled, backend="neptune_lab")(torch.randn(100, 7, requires_grad=True))
    assert any("amax" in node for region in graphs[0].regions for node in region.nodes)
