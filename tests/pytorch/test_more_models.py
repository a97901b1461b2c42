"""More models of transformers with `attn_implementation="neptune_lab"`, beside eager attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from attention_reference import DEVICE
from counted_layers import counted_layers
from every_model import result
from tiny_models import OTHERS, TOKENS

IDS = torch.randint(3, 64, (2, 13), generator=torch.Generator().manual_seed(0)).to(DEVICE)
RIGHT = torch.tensor([[1] * 13, [1] * 9 + [0] * 4], device=DEVICE)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    yield from counted_layers(monkeypatch)


def pair(make: Callable[[], Any]) -> tuple[Any, Any]:
    """A model with eager attention, and one of the same weights with ours."""
    torch.manual_seed(0)
    eager = make().eval().to(DEVICE)
    eager.set_attn_implementation("eager")
    ours = type(eager)(type(eager.config).from_dict(eager.config.to_dict())).eval().to(DEVICE)
    ours.load_state_dict(eager.state_dict())
    ours.set_attn_implementation("neptune_lab")
    return eager, ours


def check(a: torch.Tensor, b: torch.Tensor) -> None:
    assert float((a - b).norm()) < 1e-5 * float(a.norm())


@pytest.mark.nightly
@pytest.mark.parametrize("name", TOKENS)
@torch.no_grad()
def test_a_model_of_tokens(name: str, calls: list[Any]):
    eager, ours = pair(TOKENS[name])
    for mask in (None, RIGHT, RIGHT.flip(1)):
        seen = torch.ones_like(IDS).bool() if mask is None else mask.bool()
        a, b = (result(model(input_ids=IDS, attention_mask=mask)) for model in (eager, ours))
        check(a[seen], b[seen])
    assert calls
    if hasattr(eager, "generate") and "Masked" not in type(eager).__name__:
        for options in ({}, {"num_beams": 2}):
            chosen = {"attention_mask": RIGHT.flip(1), "max_new_tokens": 5, "do_sample": False, **options}
            a, b = (model.generate(input_ids=IDS, **chosen) for model in (eager, ours))
            assert torch.equal(a, b)


@pytest.mark.nightly
@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_a_model_of_other_inputs(name: str, calls: list[Any]):
    make, draw = OTHERS[name]
    eager, ours = pair(make)
    inputs = {n: t.to(DEVICE) for n, t in draw().items()}
    check(*(result(model(**inputs)) for model in (eager, ours)))
    assert calls
