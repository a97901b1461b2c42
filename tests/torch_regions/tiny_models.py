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
        result: the name of the result that is compared.
    """

    make: Callable[[], torch.nn.Module]
    inputs: dict[str, Any]
    norms: int
    attentions: int
    result: str = "logits"


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


def _funnel() -> torch.nn.Module:
    sizes = {"vocab_size": 64, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48}
    return hf.FunnelForMaskedLM(hf.FunnelConfig(block_sizes=[1, 1], num_decoder_layers=1, **sizes))


def _gpt_neo() -> torch.nn.Module:
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 5}
    kinds = [[["global", "local"], 1]]
    return hf.GPTNeoForCausalLM(hf.GPTNeoConfig(attention_types=kinds, max_position_embeddings=32, **sizes))


def _deberta() -> torch.nn.Module:
    sizes = dict(_ENCODER, relative_attention=True, max_relative_positions=8, position_buckets=4)
    return hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(pos_att_type=["c2p", "p2c"], **sizes))


def _gpt_oss() -> torch.nn.Module:
    sizes = dict(_DECODER, num_local_experts=4, num_experts_per_tok=2, sliding_window=5)
    return hf.GptOssForCausalLM(hf.GptOssConfig(**sizes))


def _rwkv() -> torch.nn.Module:
    sizes = {"vocab_size": 64, "hidden_size": 32, "attention_hidden_size": 32, "intermediate_size": 48}
    return hf.RwkvForCausalLM(hf.RwkvConfig(num_hidden_layers=2, context_length=32, **sizes))


def _falcon() -> torch.nn.Module:
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return hf.FalconForCausalLM(hf.FalconConfig(alibi=True, **sizes))


_PADDED = torch.ones(2, 12, dtype=torch.int64)
_PADDED[0, :4] = 0

MODELS = {
    "llama": Model(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_DECODER)), {"input_ids": _IDS}, 5, 2),
    "bert": Model(lambda: hf.BertForMaskedLM(hf.BertConfig(**_ENCODER)), {"input_ids": _IDS}, 6, 2),
    "t5": Model(_t5, {"input_ids": _IDS, "decoder_input_ids": _IDS[:, :5]}, 7, 3),
    "gemma2": Model(lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**_DECODER)), {"input_ids": _IDS}, 9, 2),
    "gpt2": Model(_gpt2, {"input_ids": _IDS}, 5, 2),
    "vit": Model(_vit, {"pixel_values": torch.linspace(-1, 1, 1536).view(2, 3, 16, 16)}, 5, 2),
    "mistral": Model(
        lambda: hf.MistralForCausalLM(hf.MistralConfig(sliding_window=5, **_DECODER)),
        {"input_ids": _IDS, "attention_mask": _PADDED},
        5,
        2,
    ),
    "gpt_oss": Model(_gpt_oss, {"input_ids": _IDS}, 5, 2),
    "gpt_neo": Model(_gpt_neo, {"input_ids": _IDS}, 5, 2),
    "falcon_alibi": Model(_falcon, {"input_ids": _IDS, "attention_mask": _PADDED}, 3, 2),
    "funnel": Model(_funnel, {"input_ids": _IDS}, 7, 3),
    "deberta_v2": Model(_deberta, {"input_ids": _IDS}, 6, 2),
    "rwkv": Model(_rwkv, {"input_ids": _IDS}, 6, 0),
    "bert_loss": Model(
        lambda: hf.BertForMaskedLM(hf.BertConfig(**_ENCODER)), {"input_ids": _IDS, "labels": _IDS}, 6, 2, "loss"
    ),
}
