"""attn_implementation="neptune_lab": logits and generated tokens of tiny random models are those of eager attention."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attention_reference import DEVICE, tensors
from tiny_generators import MODELS, pair

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import compiled, flex_attention
from neptune_lab.pytorch.transformers_attention import attention_forward

IDS = torch.randint(2, 64, (2, 11), generator=torch.Generator().manual_seed(0)).to(DEVICE)
pytestmark = pytest.mark.filterwarnings("ignore:attention copies")


@pytest.fixture(autouse=True, scope="module")
def registered():
    nl.register_attention()
    nl.register_attention()


@pytest.fixture
def calls(monkeypatch):
    """The shapes of q and k at each call of `attention`."""
    made = []
    before = flex_attention._attend

    def counted(q, k, *more):
        made.append((tuple(q.shape), tuple(k.shape)))
        return before(q, k, *more)

    monkeypatch.setattr(flex_attention, "_attend", counted)
    monkeypatch.setattr(flex_attention, "launched", lambda *_: None)  # these do not come to `_attend`
    return made


@pytest.fixture
def sources(monkeypatch):
    """The source of every kernel that calls get, without those of earlier tests."""
    found = set()
    before = compiled._loaded

    def noted(entry):
        found.add(entry.spec.text)
        return before(entry)

    flex_attention.forget()
    monkeypatch.setattr(compiled, "_loaded", noted)
    return found


def inputs(name: str, **more: Any) -> dict[str, Any]:
    return {"input_ids": IDS, **more, **({"decoder_input_ids": IDS[:, :5]} if name == "T5" else {})}


@torch.no_grad()
def check(name: str, calls: list[Any], kept: Any = slice(None), **more: Any) -> None:
    """Logits agree to float32's accuracy, and every layer ran in our kernels."""
    eager, ours = pair(name)
    given = inputs(name, **more)
    want, got = eager(**given).logits, ours(**given).logits
    assert len(calls) == (6 if name == "T5" else 2)
    assert want[kept].std() > 0.05
    assert (got - want)[kept].abs().max() < 2e-5 * want.abs().max().clamp(min=1)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_eagers(name, calls):
    check(name, calls)


def some(*by_day: str) -> list[Any]:
    """Every model's name, others than these at night."""
    return [pytest.param(n, marks=() if n in by_day else pytest.mark.nightly) for n in MODELS]


@pytest.mark.nightly
@pytest.mark.parametrize("name", some("Mistral", "T5"))
def test_logits_beside_padding(name, calls):
    """On the left, where rows see no key; their logits mean nothing."""
    mask = torch.ones_like(IDS)
    mask[1, :4] = 0
    kept = mask[:, :5].bool() | True if name == "T5" else mask.bool()
    check(name, calls, kept, attention_mask=mask)


@pytest.mark.parametrize("name", some("Mistral"))
def test_packed_sequences(name, calls):
    if name == "T5":
        pytest.skip("has no position_ids")
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6], [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]], device=DEVICE)
    check(name, calls, position_ids=positions, use_cache=False)


def generated(model: Any, tokens: int, **more: Any) -> Any:
    return model.generate(IDS[:1], max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, **more)


@pytest.mark.nightly
@pytest.mark.parametrize("name", some("Llama"))
@pytest.mark.parametrize("tokens", [3, pytest.param(64, marks=pytest.mark.nightly)])
def test_greedy_generation_with_a_growing_cache(name, tokens, calls, sources):
    eager, ours = pair(name)
    want = generated(eager, tokens)
    assert torch.equal(generated(ours, tokens), want)
    assert 1 < len(sources) <= 4  # of prompts and of single queries, with and without a window
    assert len(set(want[0].tolist())) > 2
    assert any(q[2] == 1 and k[2] > 1 for q, k in calls)


@pytest.mark.nightly
@pytest.mark.parametrize("name", some("Qwen 3"))
def test_greedy_generation_beside_padding(name, sources):
    eager, ours = pair(name)
    mask = torch.ones_like(IDS)
    mask[1, :4] = 0
    want, got = (
        model.generate(IDS, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, do_sample=False)
        for model in (eager, ours)
    )
    assert torch.equal(got, want)
    assert len(sources) <= 4


@pytest.mark.parametrize("name", some("Mistral"))
def test_greedy_generation_with_a_static_cache(name, calls):
    eager, ours = pair(name)
    options: dict[str, Any] = {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(generated(ours, 4, **options), generated(eager, 4, **options))
    if name in ("Llama", "Qwen 3"):  # others have windows, or crossed attention, of further lengths
        assert len({(q, k) for q, k in calls if q[2] == 1}) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_models(dtype, calls):
    eager, ours = (model.to(dtype) for model in pair("GPT-OSS"))
    with torch.no_grad():
        want, got = (model(IDS).logits.float() for model in (eager, ours))
    assert (got - want).abs().max() < {torch.float16: 0.01, torch.bfloat16: 0.08}[dtype] * want.abs().max()


def layer(**attributes: Any) -> Any:
    return SimpleNamespace(**attributes)


@pytest.mark.nightly
def test_a_mask_of_floats_a_cap_a_bias_and_sinks_together():
    q, k, v = tensors((2, 4, 5, 8), (2, 2, 9, 8))
    mask = torch.zeros(2, 1, 5, 9, device=DEVICE).masked_fill(torch.rand(2, 1, 5, 9, device=DEVICE) < 0.3, -torch.inf)
    bias, sinks = torch.randn(1, 4, 5, 9, device=DEVICE), torch.randn(4, device=DEVICE)
    out, weights = attention_forward(
        layer(), q, k, v, mask.expand(2, 4, 5, 9), 0.5, softcap=1.5, position_bias=bias, s_aux=sinks
    )
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT * 0.5
    scores = 1.5 * torch.tanh(scores / 1.5) + bias + mask
    scores = torch.cat([scores, sinks.double()[:, None, None].expand(2, 4, 5, 1)], -1).softmax(-1)[..., :-1]
    assert weights is None
    assert (out - (scores @ v.double().repeat_interleave(2, 1)).transpose(1, 2)).abs().max() < 1e-5


@pytest.mark.one_in(3)
@pytest.mark.parametrize("given", ["none", "bool", "floats"])
def test_chosen_keys_and_a_sink_for_each_query(given):
    """As layers with an indexer pass them, those below 0 being none; a sink is a logit without a value."""
    q, k, v = tensors((2, 4, 5, 8), (2, 2, 9, 8))
    indices = torch.tensor([[0, 3, 1], [1, 0, -1], [2, 8, 1], [3, 3, 0], [4, 6, 7]], device=DEVICE).expand(2, 5, 3)
    sinks = torch.randn(2, 4, 5, 1, device=DEVICE)
    seen = torch.rand(2, 1, 5, 9, device=DEVICE) < 0.7
    seen[..., :2] = True
    if given == "none":
        seen = torch.ones(5, 9, device=DEVICE).tril().bool().expand(2, 1, 5, 9)
    masks = {"none": None, "bool": seen, "floats": torch.zeros(seen.shape, device=DEVICE).masked_fill(~seen, -1e30)}
    out, _ = attention_forward(layer(is_causal=True), q, k, v, masks[given], indices=indices, sinks=sinks)
    chosen = torch.stack([(indices == j).any(-1) for j in range(9)], -1)[:, None] & seen
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT * 8**-0.5
    scores = torch.cat([scores.masked_fill(~chosen, -torch.inf), sinks.double()], -1).softmax(-1)[..., :-1]
    assert (out - (scores @ v.double().repeat_interleave(2, 1)).transpose(1, 2)).abs().max() < 1e-5


def test_chosen_blocks_of_keys():
    """The layer's indexer makes a mask of them, of floats or bools."""
    q, k, v = tensors((1, 2, 3, 8), (1, 2, 8, 8))
    seen = torch.tensor([[1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 1, 0]], device=DEVICE)
    positions = []

    def build_block_mask(blocks, mask, keys, dtype, device, position_ids):
        positions.append(position_ids.tolist())
        return torch.zeros(1, 2, 3, 8, device=device, dtype=dtype).masked_fill(seen == 0, torch.finfo(dtype).min)

    blocks = torch.zeros(1, 2, 3, 2, dtype=torch.int64, device=DEVICE)
    module = layer(is_causal=True, indexer=SimpleNamespace(build_block_mask=build_block_mask))
    out, _ = attention_forward(module, q, k, v, None, block_indices=blocks)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen.bool()).transpose(1, 2)
    assert (out - want).abs().max() < 1e-5
    assert positions == [[[5, 6, 7]]]
    with pytest.raises(LaunchError, match=r"block_indices \(1, 2, 3, 2\) .* no indexer(.|\n)*eager"):
        attention_forward(layer(), q, k, v, None, block_indices=blocks)


class Passes(torch.nn.Module):
    """A layer that passes a tensor of its own to its attention."""

    def forward(self, q, k, v, bias, **more):
        return attention_forward(self, q, k, v, None, distances=bias, **more)


def test_a_tensor_that_a_layer_passes_and_nobody_knows_is_refused():
    q, k, v = tensors((1, 2, 5, 8))
    with pytest.raises(LaunchError, match=r"passes the tensor distances \(1, 2, 5, 5\)(.|\n)*eager"):
        Passes()(q, k, v, torch.zeros(1, 2, 5, 5, device=DEVICE))
    out, _ = Passes()(q, k, v, None, pixel_values=q)  # what the model was called with, and passed on
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    assert (out - want).abs().max() < 1e-5


@pytest.mark.nightly
def test_without_a_mask_the_layer_says_whether_it_is_causal():
    q, k, v = tensors((1, 2, 5, 8), (1, 2, 9, 8))
    for module, given, causal in (
        (layer(is_causal=True), None, True), (layer(is_causal=False), None, False), (layer(), None, False),
        (layer(is_causal=True), False, False), (layer(is_causal=False), True, True),
    ):  # fmt: skip
        out, _ = attention_forward(module, q, k, v, None, is_causal=given)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
        assert (out - want).abs().max() < 1e-5
    out, _ = attention_forward(layer(is_causal=True), q[:, :, :1], k, v, None)  # a decoded query sees all keys
    assert (
        out - torch.nn.functional.scaled_dot_product_attention(q[:, :, :1], k, v).transpose(1, 2)
    ).abs().max() < 1e-5


def test_none_is_no_mask_where_a_model_gets_all_of_its_masks():
    """Layers of BridgeTower say that they are causal, and read images without a mask."""
    from transformers import BridgeTowerConfig, LlamaConfig
    from transformers.models.bridgetower import modeling_bridgetower  # noqa: F401 - whose code is looked at
    from transformers.models.llama import modeling_llama  # noqa: F401

    q, k, v = tensors((1, 2, 5, 8))
    for config, causal in ((LlamaConfig(), True), (BridgeTowerConfig(), False)):
        out, _ = attention_forward(layer(is_causal=True, config=config), q, k, v, None)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
        assert (out - want).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dropout": 0.1}, r"has no dropout, and the layer asks for 0.1\n.*model.eval"),
        ({"output_attentions": True}, r"no weights to return\n.*eager"),
        ({"cache": object()}, r"does not take an object\n.*model.generate"),
        (
            {"attention_mask": torch.ones(1, 1, 5, 8, device=DEVICE)},
            r"attention_mask has shape \(1, 1, 5, 8\); expected",
        ),
        (
            {"position_bias": torch.ones(1, 3, 5, 9, device=DEVICE)},
            r"position_bias has shape .* \(1, 2, 5, 9\), \(batch",
        ),
    ],
)
def test_refusals(options, match):
    q, k, v = tensors((1, 2, 5, 8), (1, 2, 9, 8))
    with pytest.raises(LaunchError, match=match):
        attention_forward(layer(), q, k, v, options.pop("attention_mask", None), **options)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("compiled_by", [None, "eager"])
def test_weights_that_a_model_collects_without_telling_its_layers(compiled_by):
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=64)
    model = GPT2Model._from_config(config, attn_implementation="neptune_lab").to(DEVICE).eval()
    call = model if compiled_by is None else torch.compile(model, backend=compiled_by)
    with pytest.raises(LaunchError, match="no weights to return"):
        call(IDS, output_attentions=True)


def test_without_transformers(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"] or ["transformers"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LaunchError, match=r"needs transformers 4.56 or later(.|\n)*pip install 'transformers>=4.56'"):
        nl.register_attention()
