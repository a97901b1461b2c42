"""Models of transformers train under torch.compile(backend="neptune_lab") with the losses of eager PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch_regions.tiny_models import MODELS

import neptune_lab as nl
from neptune_lab.torch_regions.backend import backend, recorded_partitions
from neptune_lab.torch_regions.partition import OWN_KERNEL

IDS = torch.arange(24).remainder(7).view(2, 12)


def losses(run: Any, model: torch.nn.Module, steps: int, **inputs: torch.Tensor) -> list[float]:
    """The losses of some steps of Adam on one batch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = run(**inputs).loss
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


CASES = [
    ("llama", "neptune_lab", 3, "eager"),
    *(pytest.param("llama", kind, 50, "eager", marks=pytest.mark.nightly) for kind in ("neptune_lab", "sdpa", "eager")),
    pytest.param("llama", "sdpa", 3, "inductor", marks=pytest.mark.nightly),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "attention", "steps", "rest"), CASES)
def test_the_losses_are_those_of_eager(name: str, attention: str, steps: int, rest: str):
    nl.register_attention()
    torch._dynamo.reset()
    torch.manual_seed(0)
    theirs: Any = MODELS[name].make().eval()
    theirs.set_attn_implementation("eager")
    ours: Any = copy.deepcopy(theirs)
    ours.set_attn_implementation(attention)
    inputs = {"input_ids": IDS, "labels": IDS}
    want = losses(theirs, theirs, steps, **inputs)
    with recorded_partitions() as found:
        got = losses(torch.compile(ours, backend=backend, options={"rest": rest}), ours, steps, **inputs)
    assert max(abs(a - b) for a, b in zip(got, want, strict=True)) < 1e-3
    assert want[-1] < want[0] * (0.9 if steps < 10 else 0.5)
    assert sum(region.title == "norm" for part in found for region in part.regions) >= 2 * MODELS[name].norms - 2
    kernels = [a for part in found for a in part.apart if a.reason == OWN_KERNEL]
    assert bool(kernels) == (attention != "eager")


def after_steps(run: Any, model: Any, steps: int) -> torch.Tensor:
    """The parameters after some steps of Adam, in float64."""
    losses(run, model, steps, input_ids=IDS, labels=IDS)
    return torch.cat([t.detach().double().flatten() for t in model.parameters()])


@pytest.mark.nightly
def test_t5_is_as_near_to_float64_as_eager_after_steps():
    """Adam divides small gradients by their size, so losses of two float32 runs differ more with each step: what counts
    is their distance from a float64 run."""
    nl.register_attention()
    torch._dynamo.reset()
    torch.manual_seed(0)
    theirs: Any = MODELS["t5"].make().eval()
    theirs.config.decoder_start_token_id = theirs.config.pad_token_id = 0
    theirs.set_attn_implementation("eager")
    ours, wide = copy.deepcopy(theirs), copy.deepcopy(theirs).double()
    ours.set_attn_implementation("neptune_lab")
    exact = after_steps(wide, wide, 8)
    found = after_steps(torch.compile(ours, backend=backend, options={"rest": "eager"}), ours, 8)
    eager = after_steps(theirs, theirs, 8)
    assert float((eager - exact).norm() / exact.norm()) < 1e-6
    assert float((found - exact).norm()) < 2 * float((eager - exact).norm())
