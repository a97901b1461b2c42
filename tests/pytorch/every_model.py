"""Tiny random models of the types that the installed transformers has: nothing is downloaded.

A model's default configuration is made small by the names of its fields, and its weights are drawn.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from typing import Any

import torch
from every_model_fields import FIELDS, INPUTS
from transformers import PreTrainedConfig, PreTrainedModel

IDS = torch.randint(3, 31, (2, 13), generator=torch.Generator().manual_seed(0))
LEFT = torch.tensor([[1] * 13, [0] * 4 + [1] * 9])
# The first pattern that a field's name matches says how large it is at most.
_SIZES: tuple[tuple[str, Any], ...] = (
    (r"vocab_size|^n_vocab|codebook_size|^audio_vocab|num_embeddings$|type_vocab", 64),
    (r"^index_topk_blocks$|^index_local", 1),
    (r"^index_kpool", 2),
    (r"^index_topk|^index_block_size", 4),
    (r"head_dim$|^d_kv$|attention_channels$|dim_head$|^d_head$|head_size$|key_dim$|value_dim$", 8),
    (r"_rank$", 16),
    (r"(num_|n_)?(key_value|kv)_heads$|n_head_kv|multi_query_group_num|num_query_groups|head_kv$", 2),
    (r"heads?$", 4),
    (r"experts_per_tok|num_experts_per|moe_top_?k|^top_k_experts|^topk$|router_top_k", 2),
    (r"token(_id|_index)?s?$", "token"),
    (r"^n_group$|topk_group$|n_shared_experts|num_shared_experts|num_expert_group|first_k_dense|num_dense_layers", 1),
    (r"experts$", 4),
    (r"expert.*(size|dim)$|moe.*(size|dim)$|num_mel_bins|num_mel|n_mels|feature_size|num_bins", 16),
    (r"layers?$|^depth$|num_blocks$|block_count|n_block", "layers"),
    (r"intermediate_size|ffn|inner|mlp_dim|feedforward|d_ff|feed_forward|mlp_hidden", 48),
    (r"max_.*position|n_positions|n_ctx|max_seq|seq_len(gth)?$|context_length|max_length", 128),
    (r"window_size$|sliding_window$|attention_window|local_attention|chunk_size$", 6),
    (r"image_size$|img_size$|^input_size$|input_resolution", 32),
    (r"patch_size$|spatial_patch", 8),
    (
        r"hidden|d_model|embd|embed_dim|embedding_size|^dim$|width|model_dim|_dim$|projector_dim|channels$|_features$",
        32,
    ),
)
_LEFT_OUT = re.compile(r"^(id2label|label2id|_?out_features|_?out_indices|stage_names)$")
_KINDS_OF_LAYERS = re.compile(r"^layer_types$|^layers_block_type$|^mlp_layer_types$|^indexer_types$")
_UNCHANGED = re.compile(r"^conv_|mamba|^linear_|_conv_|^num_conv")
_KINDS = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel", "ForMaskedLM", "Model")


def _small(name: str, value: Any, layers: int) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if _KINDS_OF_LAYERS.search(name):
        return (list(dict.fromkeys(value)) + [value[-1]] * layers)[:layers]
    to = next((size for pattern, size in _SIZES if re.search(pattern, name)), None)
    numbers = isinstance(value, list) and all(isinstance(n, int) for n in value)
    if to == "token":
        return [_token(n) for n in value] if numbers else _token(value) if isinstance(value, int) else value
    if to == "layers":
        return min(value, layers) if isinstance(value, int) else value
    if to is None or not (numbers or isinstance(value, int)):
        return value
    return [min(n, to) for n in value] if numbers else min(value, to)


def _token(number: int) -> int:
    return number if number < 64 else 32 + number % 29


def _rope(value: Any, sections: bool) -> Any:
    """Parameters of rotary embeddings, for heads of 8."""
    if not isinstance(value, dict):
        return value
    new = {k: _rope(v, sections) for k, v in value.items()}
    sections = sections and not any(isinstance(v, dict) for v in value.values())  # (of one kind of layers)
    return {**new, "mrope_section": [2, 1, 1]} if sections or "mrope_section" in new else new


def _walk(fields: dict[str, Any], sections: bool) -> dict[str, Any]:
    kinds = fields.get("layer_types") or fields.get("layers_block_type")
    layers = max(2, min(4, len(set(kinds)))) if isinstance(kinds, list) else 2
    depths = [fields[n] for n in ("num_hidden_layers", "num_layers", "n_layer", "depth") if n in fields]
    new: dict[str, Any] = {}
    for name, value in fields.items():
        if _LEFT_OUT.search(name):
            continue
        if _UNCHANGED.search(name):
            new[name] = value
        elif name == "per_layer_config":
            new[name] = {i: _walk(v, sections) for i, v in value.items() if int(i) < layers}
        elif isinstance(value, dict):
            new[name] = _rope(value, sections) if "rope" in name else _walk(value, sections)
        elif isinstance(value, list) and len(value) in depths and not _KINDS_OF_LAYERS.search(name):
            new[name] = [_small(name, v, layers) for v in value[:layers]]
        else:
            new[name] = _small(name, value, layers)
    if "qk_rope_head_dim" in new and "num_attention_heads" in new:
        new["num_key_value_heads"] = new["num_attention_heads"]
    return new


def small_config(model: type[PreTrainedModel]) -> PreTrainedConfig:
    kind: Any = model.config_class
    sections = "mrope_section" in inspect.getsource(sys.modules[model.__module__])
    return kind.from_dict(_merged(_walk(kind().to_dict(), sections), FIELDS.get(_type(model), {})))


def _type(model: type[PreTrainedModel]) -> str:
    return model.__module__.split(".")[-2]


def _merged(fields: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The fields with others, those of parts only if there is such a part."""
    new = dict(fields)
    for name, value in others.items():
        if isinstance(value, dict) and isinstance(fields.get(name), dict):
            new[name] = _merged(fields[name], value)
        elif not name.endswith("_config") or name in fields:
            new[name] = value
    return new


def models_of(kind: str, category: str) -> list[Any]:
    """The models of a type whose main input is of a category, those that generate first."""
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    found = [getattr(module, name) for name in module.__all__]
    found = [m for m in found if inspect.isclass(m) and issubclass(m, PreTrainedModel) and m.config_class is not None]
    found = [m for m in found if not m.__name__.endswith("PreTrainedModel") and m.main_input_name == category]
    return sorted(found, key=lambda m: next((i for i, k in enumerate(_KINDS) if m.__name__.endswith(k)), len(_KINDS)))


def pair(model: type[PreTrainedModel]) -> tuple[Any, Any]:
    """The model with eager attention, and one of the same weights with ours."""
    made: Any = model
    with torch.device("meta"):
        size = sum(p.numel() for p in made._from_config(small_config(model)).parameters())
    assert size < 4e6, f"{model.__name__} has {size} parameters"
    torch.manual_seed(0)
    eager, ours = (
        made._from_config(small_config(model), attn_implementation=n).eval() for n in ("eager", "neptune_lab")
    )
    generator = torch.Generator().manual_seed(1)
    for p in eager.parameters():
        drawn = torch.randn(p.shape, generator=generator)
        p.data = drawn * (0.8 / max(1, p[0].numel()) ** 0.5) if p.ndim > 1 else p.data + 0.1 * drawn
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def inputs_of(model: Any) -> list[dict[str, torch.Tensor]]:
    """Inputs of which a model takes one."""
    draw = torch.Generator().manual_seed(3)
    takes = inspect.signature(model.forward).parameters
    decoder = {"decoder_input_ids": IDS[:, :6]} if "decoder_input_ids" in takes else {}
    name = model.main_input_name
    given = INPUTS.get(_type(type(model)))
    if given is not None:
        drawn = given()
        return [{n: t for n, t in drawn.items() if n in takes}]
    if name == "input_ids":
        return [{name: IDS, **decoder}]
    if name == "pixel_values":
        size = getattr(model.config, "image_size", None) or 32
        size = [size] * 2 if isinstance(size, int) else size
        channels = getattr(model.config, "num_channels", 3)
        images = {name: torch.randn(2, channels, *size, generator=draw)}
        frames = {name: torch.randn(2, getattr(model.config, "num_frames", 4), channels, *size, generator=draw)}
        return [{**images, **decoder}, {**images, "input_ids": IDS}, frames]
    shapes = ((2, 16, 64), (2, 64, 16), (2, 16, 256), (2, 4000))
    return [{name: torch.randn(shape, generator=draw), **decoder} for shape in shapes]


def result(out: Any) -> torch.Tensor:
    """The logits of an output, or its first tensor of floats."""
    if isinstance(getattr(out, "logits", None), torch.Tensor):
        return out.logits
    return next(v for v in out.to_tuple() if isinstance(v, torch.Tensor) and v.is_floating_point())
