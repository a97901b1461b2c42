"""Ways of generating and of calling a model with a window: tokens and logits are eager's, with the definition in place
of the kernel."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from counted_layers import counted_layers
from tiny_generators import pair
from transformers import DynamicCache, StaticCache

pytestmark = pytest.mark.filterwarnings("ignore")
IDS = torch.randint(2, 64, (2, 11), generator=torch.Generator().manual_seed(0))
LEFT = torch.ones_like(IDS).index_put((torch.tensor([1] * 4), torch.arange(4)), torch.tensor(0))
_GREEDY: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}


@pytest.fixture(autouse=True)
def layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    yield from counted_layers(monkeypatch, by_definition=True)


def _generated(**options: Any) -> Callable[[Any], torch.Tensor]:
    return lambda model: model.generate(IDS, **_GREEDY, **options)


def _assisted(model: Any) -> torch.Tensor:
    return model.generate(IDS[:1], assistant_model=copy.deepcopy(model), **_GREEDY)


def _continued(model: Any) -> torch.Tensor:
    first = model.generate(IDS, attention_mask=LEFT, return_dict_in_generate=True, **_GREEDY)
    ids, mask = (torch.cat(parts, 1) for parts in ((first.sequences, IDS[:, :4]), (LEFT, torch.ones_like(IDS[:, :9]))))
    return model.generate(ids, attention_mask=mask, past_key_values=first.past_key_values, **_GREEDY)


def _in_parts(make: Callable[[Any], Any], of_static: bool) -> Callable[[Any], torch.Tensor]:
    def logits(model: Any) -> torch.Tensor:
        cache, found = make(model.config), []
        for a, b in ((0, 4), (4, 5), (5, 11)):
            more = {"position_ids": torch.arange(a, b)[None]} if of_static else {}
            found.append(model(IDS[:, a:b], past_key_values=cache, **more).logits)
        return torch.cat(found, 1)

    return logits


def _packed(model: Any) -> torch.Tensor:
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])
    ends = torch.tensor([0, 4, 11], dtype=torch.int32)
    more = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 7, "max_length_k": 7}
    return model(IDS[:1], position_ids=places, use_cache=False, **more).logits


WAYS: dict[str, Callable[[Any], torch.Tensor]] = {
    "right padding": _generated(attention_mask=LEFT.flip(1)),
    "beams": _generated(attention_mask=LEFT, num_beams=3),
    "beams and a static cache": _generated(num_beams=2, cache_implementation="static", disable_compile=True),
    "no cache": _generated(attention_mask=LEFT, use_cache=False),
    "a prompt in parts": _generated(attention_mask=LEFT, prefill_chunk_size=4),
    "guidance": _generated(attention_mask=LEFT, guidance_scale=1.5),
    "looked up": lambda model: model.generate(IDS[:1].repeat(1, 2), prompt_lookup_num_tokens=4, **_GREEDY),
    "assisted": _assisted,
    "continued": _continued,
    "a growing cache in parts": _in_parts(lambda config: DynamicCache(config=config), of_static=False),
    "a static cache in parts": _in_parts(lambda config: StaticCache(config=config, max_cache_len=32), of_static=True),
    "packed": _packed,
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_a_way_of_generation(way: str, layers: list[Any]):
    want, got = (WAYS[way](model.cpu()) for model in pair("Mistral"))
    assert layers
    if want.is_floating_point():
        assert (got - want).norm() < 2e-5 * want.norm()
    else:
        assert torch.equal(got, want)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_training(checkpoints: bool, layers: list[Any]):
    """With and without gradient checkpoints, and with layers of low rank beside the projections; tokens whose logits
    come from rows of padding have no loss."""
    labels = IDS.masked_fill(LEFT == 0, -100).index_fill(1, torch.tensor([4]), -100)
    found = []
    for model in pair("Mistral"):
        torch.manual_seed(0)
        for layer in model.model.layers:
            layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        model.cpu().train()
        if checkpoints:
            model.gradient_checkpointing_enable()
        model(IDS, attention_mask=LEFT, labels=labels).loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    want, got = found
    assert len(layers) == (4 if checkpoints else 2)
    assert (got - want).norm() < 1e-4 * want.norm()


class LowRank(torch.nn.Module):
    """A projection that is not trained, with one of rank 2 that is."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))
