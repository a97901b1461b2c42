"""Every type of model that the installed transformers has and that can be made tiny: our masks and arguments of
attention are eager's.

The kernel is replaced by the definition in PyTorch, whose numbers other tests compare with kernels': what a type of
model adds is its masks, biases, sinks and chosen keys, and which of them a layer takes from where.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from counted_layers import counted_layers
from every_model import IDS, LEFT, inputs_of, models_of, pair, result
from every_model_types import ENCODERS, IMAGES, MENDED, OTHERS, SOUNDS, TOKENS
from transformers import SuperPointConfig

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import transformers_masks
from neptune_lab.pytorch.transformers_classes import _MAKERS
from neptune_lab.pytorch.transformers_masks import mask_kinds

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The layers that called our attention, whose kernel is the definition."""
    yield from counted_layers(monkeypatch, by_definition=True)


def check(kind: str, category: str, layers: list[Any]) -> None:
    """The first model of a type that takes our inputs and has layers of the interface."""
    reasons = []
    for model in models_of(kind, category):
        layers.clear()
        try:
            eager, ours = pair(model)
            given = next(i for i in inputs_of(eager) if _runs(eager, i, reasons))
        except Exception as error:  # noqa: BLE001 - too large, or without inputs of this kind
            reasons.append(f"{model.__name__}: {error}")
            continue
        with torch.no_grad():
            agree(eager, ours, given)
        gradients_agree(eager, ours, given)
        if layers:
            return
    pytest.fail(f"no model of {kind} ran: {reasons}")


@torch.no_grad()
def _runs(model: Any, given: dict[str, Any], reasons: list[str]) -> bool:
    try:
        result(model(**given))
    except Exception as error:  # noqa: BLE001 - whatever a model raises on inputs that it does not take
        reasons.append(f"{type(model).__name__}: {error}")
        return False
    return True


def agree(eager: Any, ours: Any, given: dict[str, Any]) -> None:
    """Outputs agree without a mask, and beside padding to the left where rows see keys."""
    want, got = result(eager(**given)), result(ours(**given))
    assert (got - want).norm() < 2e-5 * want.norm()
    if set(given) != {"input_ids"}:
        return
    want, got = (result(model(**given, attention_mask=LEFT)) for model in (eager, ours))
    if want.shape[:2] == LEFT.shape:
        want, got = want[LEFT.bool()], got[LEFT.bool()]
        assert (got - want).norm() < 2e-5 * want.norm()


def gradients_agree(eager: Any, ours: Any, given: dict[str, Any]) -> None:
    """Gradients of all weights, of a loss that weighs every element differently."""
    found = []
    for model in (eager, ours):
        out = result(model(**given))
        if not out.requires_grad:
            return
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append(torch.cat([grads[n].flatten() for n in sorted(grads)]))
    want, got = found
    assert (got - want).norm() < 1e-4 * want.norm()


def generates_alike(eager: Any, ours: Any, **more: Any) -> None:
    """Three tokens, chosen greedily, behind padding to the left."""
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    try:
        want = eager.generate(input_ids=IDS, **options, **more)
    except Exception as error:  # noqa: BLE001 - whatever a model raises that does not generate from tokens alone
        pytest.skip(f"{type(eager).__name__} does not generate: {error}")
    assert torch.equal(ours.generate(input_ids=IDS, **options, **more), want)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", TOKENS)
@torch.no_grad()
def test_generation(kind: str):
    model = next((m for m in models_of(kind, "input_ids") if m.can_generate()), None)
    if model is None or kind in ENCODERS:
        pytest.skip(f"{kind} does not generate")
    try:
        eager, ours = pair(model)
    except Exception as error:  # noqa: BLE001 - too large
        pytest.skip(f"{model.__name__}: {error}")
    generates_alike(eager, ours, attention_mask=LEFT)
    generates_alike(eager, ours, cache_implementation="static", disable_compile=True)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", TOKENS)
def test_a_model_of_tokens(kind: str, layers: list[Any]):
    check(kind, "input_ids", layers)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", IMAGES)
def test_a_model_of_images(kind: str, layers: list[Any]):
    check(kind, "pixel_values", layers)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SOUNDS)
def test_a_model_of_sounds(kind: str, layers: list[Any]):
    category = "input_values" if models_of(kind, "input_values") else "input_features"
    check(kind, category, layers)


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "category"), OTHERS.items())
def test_a_model_of_other_inputs(kind: str, category: str, layers: list[Any]):
    check(kind, category, layers)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", MENDED)
@torch.no_grad()
def test_a_model_that_was_wrong(kind: str):
    eager, ours = pair(models_of(kind, "input_ids")[0])
    agree(eager, ours, inputs_of(eager)[0])


def test_which_masks_a_models_code_is_made_for():
    """Bool ones, None for a causal one, and None for one that hides nothing."""
    found = {}
    for name in (
        "llama",
        "bert",
        "gpt_oss",
        "align",
        "deepseek_v4",
        "gemma4",
        "phi4_multimodal",
        "bloom",
        "gptj",
        "falcon",
    ):
        for model in models_of(name, "input_ids")[:1]:
            kinds = mask_kinds(model.config_class)
            found[name] = (kinds.bools, kinds.skipped, kinds.whole, bool(kinds.own))
    assert found == {
        "llama": (True, True, False, False), "bert": (True, True, True, False), "gpt_oss": (True, True, False, False),
        "align": (False, False, True, False), "deepseek_v4": (False, False, False, False),
        "gemma4": (True, False, True, False), "phi4_multimodal": (True, True, False, False),
        "bloom": (False, False, False, True), "gptj": (False, False, False, False),
        "falcon": (False, False, False, False),
    }  # fmt: skip
    assert mask_kinds(type("Unknown", (), {})) == mask_kinds(object)  # of no module with models: floats


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("self.is_causal = True", True),
        ("self.is_causal = config.is_decoder", True),
        ("self.is_causal = is_causal", False),
        ("self.is_causal=is_causal", False),
        ("self.is_causal = False", False),
    ],
)
def test_a_layer_that_says_by_itself_whether_it_is_causal(text: str, says: bool):
    assert (transformers_masks._SAYS_CAUSAL.search(text) is not None) == says
    told = f"class A:\n    def __init__(self, is_causal: bool = False): {text}\n"
    assert transformers_masks._TELLS_CAUSAL.search(told + "attend(self, is_causal=self.is_causal)") is None
    assert transformers_masks._TELLS_CAUSAL.search(told + "A(is_causal=config.is_decoder)") is not None


@pytest.mark.parametrize(("model", "name"), [key for key in _MAKERS if key[1].endswith("VISION_ATTENTION_CLASSES")])
@pytest.mark.parametrize("relative", [False, True])
@torch.no_grad()
def test_a_layer_of_sam(model: str, name: str, relative: bool, layers: list[Any]):
    classes = getattr(import_module(f"transformers.models.{model}.modeling_{model}"), name)
    sizes = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_attention_heads": 2}
    config = SimpleNamespace(**sizes, attention_dropout=0.1, qkv_bias=True, use_rel_pos=relative)
    torch.manual_seed(0)
    eager, ours = (classes[kind](config, 3).eval() for kind in ("eager", "neptune_lab"))
    for p in eager.parameters():
        p.data = torch.randn(p.shape)
    ours.load_state_dict(eager.state_dict())
    images = torch.randn(2, 3, 3, 16)
    (got, _), (want, _) = ours(images), eager(images)
    assert (got - want).norm() < 2e-5 * want.norm()
    assert layers == [ours]
    with pytest.raises(LaunchError, match="has no dropout"):
        ours.train()(images)
    with pytest.raises(LaunchError, match="no weights to return"):
        ours.eval()(images, output_attentions=True)


LAYERS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
FALCON = {**LAYERS, "vocab_size": 64}
NEO = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "attention_types": [[["global"], 1]], "vocab_size": 64}
PATCHES = {**LAYERS, "intermediate_size": 16, "image_size": 16, "patch_size": 8}
POINTS = {"encoder_hidden_sizes": [8] * 4, "decoder_hidden_size": 8, "descriptor_decoder_dim": 16, "max_keypoints": 9}
MATCHING = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "keypoint_encoder_sizes": [8],
    "gnn_layers_types": ["self", "cross"],
    "keypoint_detector_config": SuperPointConfig(**POINTS),
}
IMAGES_OF = {"pixel_values": torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
PAIRS_OF = {"pixel_values": torch.rand(1, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize(
    ("name", "config", "others", "given"),
    [
        ("GPTNeoForCausalLM", "GPTNeoConfig", NEO, {"attention_mask": LEFT}),
        ("FalconForCausalLM", "FalconConfig", FALCON, {"attention_mask": LEFT}),
        ("FalconForCausalLM", "FalconConfig", {**FALCON, "alibi": True}, {"attention_mask": LEFT}),
        (
            "FalconForCausalLM",
            "FalconConfig",
            {**FALCON, "multi_query": False, "new_decoder_architecture": True, "num_kv_heads": 1},
            {},
        ),
        ("GitForCausalLM", "GitConfig", {**FALCON, "intermediate_size": 16, "vision_config": PATCHES}, IMAGES_OF),
        ("Data2VecVisionModel", "Data2VecVisionConfig", {**PATCHES, "use_relative_position_bias": True}, IMAGES_OF),
        (
            "Data2VecVisionModel",
            "Data2VecVisionConfig",
            {**PATCHES, "use_shared_relative_position_bias": True},
            IMAGES_OF,
        ),
        (
            "SuperGlueForKeypointMatching",
            "SuperGlueConfig",
            MATCHING,
            PAIRS_OF,
        ),
    ],
)
@torch.no_grad()
def test_a_model_that_chooses_a_class_by_the_name(
    name: str, config: str, others: dict[str, Any], given: dict[str, Any], layers: list[Any]
):
    """Beside sdpa's layers if there are any: eager's of Falcon add ALiBi to the mask and to the scores."""
    make, settings = getattr(transformers, name), getattr(transformers, config)
    torch.manual_seed(0)
    plain = "eager" if name.startswith(("Git", "SuperGlue", "GPTNeo")) else "sdpa"
    usual, ours = (make._from_config(settings(**others), attn_implementation=n).eval() for n in (plain, "neptune_lab"))
    for p in usual.parameters():
        p.data = torch.randn(p.shape)
    ours.load_state_dict(usual.state_dict())
    tokens = {"input_ids": IDS} if "ForCausalLM" in name else {}
    got, want = (result(model(**tokens, **given)) for model in (ours, usual))
    seen = LEFT.bool() if "attention_mask" in given else torch.ones(got.shape[:2]).bool()
    assert (got[seen] - want[seen]).norm() < 2e-5 * want[seen].norm()
    assert layers
    with pytest.raises(LaunchError, match="no weights to return"):
        ours(**tokens, **given, output_attentions=True)


def test_a_model_with_attention_of_its_own_says_so(monkeypatch: pytest.MonkeyPatch):
    warned = []
    monkeypatch.setattr(transformers_masks, "warn_once", lambda about, message: warned.append(message))
    _, ours = pair(models_of("bloom", "input_ids")[0])
    ours(input_ids=IDS)
    assert warned
    assert "bloom has attention of its own, which attn_implementation='neptune_lab' does not" in warned[0]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["bloom", "deepseek_v32"])
@torch.no_grad()
def test_a_whole_graph(kind: str):
    """The choice of masks and the look at a layer's arguments are no breaks of a graph."""
    eager, ours = pair(models_of(kind, "input_ids")[0])
    torch._dynamo.reset()
    given = {"input_ids": IDS, "attention_mask": LEFT, "use_cache": False}
    got = torch.compile(ours, backend="eager", fullgraph=True)(**given).logits[LEFT.bool()]
    want = eager(**given).logits[LEFT.bool()]
    assert (got - want).norm() < 2e-5 * want.norm()
