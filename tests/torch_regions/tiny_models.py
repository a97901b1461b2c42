"""Tiny random models of transformers, made from configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

_IDS = torch.arange(24).remainder(7).view(2, 12)
_DECODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
_ENCODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


@dataclass(frozen=True)
class Model:
    """A model, and how many chains of reductions its definition has.

    Args:
        make: the model.
        inputs: of its forward.
        norms, attentions: modules of these kinds that one call runs.
    """

    make: Callable[[], torch.nn.Module]
    inputs: dict[str, Any]
    norms: int
    attentions: int


def _t5() -> torch.nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    )


def _gpt2() -> torch.nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32))


def _vit() -> torch.nn.Module:
    sizes = dict(_ENCODER, image_size=16, patch_size=4)
    del sizes["vocab_size"], sizes["max_position_embeddings"]
    return hf.ViTForImageClassification(hf.ViTConfig(**sizes))


MODELS = {
    "llama": Model(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_DECODER)), {"input_ids": _IDS}, 5, 2),
    "bert": Model(lambda: hf.BertForMaskedLM(hf.BertConfig(**_ENCODER)), {"input_ids": _IDS}, 6, 2),
    "t5": Model(_t5, {"input_ids": _IDS, "decoder_input_ids": _IDS[:, :5]}, 7, 3),
    "gemma2": Model(lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**_DECODER)), {"input_ids": _IDS}, 9, 2),
    "gpt2": Model(_gpt2, {"input_ids": _IDS}, 5, 2),
    "vit": Model(_vit, {"pixel_values": torch.linspace(-1, 1, 1536).view(2, 3, 16, 16)}, 5, 2),
}
IN_EVERY_RUN = ("llama", "bert", "t5")
