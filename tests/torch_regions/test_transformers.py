"""Models of transformers compiled with the backend: eager's logits, and every norm and attention in a region."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_regions.tiny_models import MODELS

from neptune_lab.torch_regions.backend import backend, recorded_partitions


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_eagers_and_every_chain_is_compiled(name: str):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = MODELS[name].make().eval()
    with torch.inference_mode(), recorded_partitions() as graphs:
        got = getattr(torch.compile(model, backend=backend)(**MODELS[name].inputs), MODELS[name].result)
        want = getattr(model(**MODELS[name].inputs), MODELS[name].result)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()
    counts = {kind: [graph.holding(kind) for graph in graphs] for kind in ("norm", "attention", "softmax", "loss")}
    assert {kind: sum(left for _, left in found) for kind, found in counts.items()} == dict.fromkeys(counts, 0)
    compiled = {kind: sum(taken for taken, _ in found) for kind, found in counts.items()}
    assert compiled["norm"] == MODELS[name].norms
    assert compiled["attention"] == MODELS[name].attentions


def _moved(value: Any, dtype: torch.dtype) -> Any:
    value = value.cuda()
    return value.to(dtype) if value.is_floating_point() else value


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gemma2", "gpt2", "vit"])
def test_on_a_gpu_logits_are_as_close_to_float64_as_eagers(name: str, dtype: torch.dtype):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = MODELS[name].make().eval().to(dtype)
    exact = MODELS[name].make().eval().double()
    exact.load_state_dict(model.state_dict())

    def logits(made: torch.nn.Module, of: torch.dtype) -> torch.Tensor:
        inputs = {n: _moved(value, of) for n, value in MODELS[name].inputs.items()}
        return getattr(made(**inputs), MODELS[name].result).double()

    with torch.inference_mode(), recorded_partitions() as graphs:
        want = logits(exact.cuda(), torch.float64)
        eager = logits(model.cuda(), dtype)
        got = logits(torch.compile(model, backend=backend), dtype)
    assert any(graph.regions for graph in graphs)
    assert (got - want).norm() <= 2 * (eager - want).norm()
