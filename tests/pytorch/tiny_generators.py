"""Tiny random models of transformers that generate, made from configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from attention_reference import DEVICE

_DECODER: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": None, "tie_word_embeddings": False, "initializer_range": 0.3,
}  # fmt: skip


def _gpt_oss() -> Any:
    config = hf.GptOssConfig(
        **_DECODER, num_local_experts=2, num_experts_per_tok=1, sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    model = hf.GptOssForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks, std=2.0)
    return model


def _t5() -> Any:
    config = hf.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
        eos_token_id=None, initializer_factor=3.0,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config)


MODELS: dict[str, Callable[[], Any]] = {
    "Llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_DECODER)),
    "Mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**_DECODER, sliding_window=6)),
    "Gemma 2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**_DECODER, sliding_window=6, attn_logit_softcapping=2.0, query_pre_attn_scalar=8)
    ),
    "GPT-OSS": _gpt_oss,
    "Qwen 3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_DECODER)),
    "T5": _t5,
}


def pair(name: str) -> tuple[Any, Any]:
    """The model with eager attention and with this package's, of the same weights."""
    torch.manual_seed(0)
    made = MODELS[name]()
    eager, ours = (_with_attention(made, kind).eval().to(DEVICE) for kind in ("eager", "neptune_lab"))
    return eager, ours


def _with_attention(model: Any, kind: str) -> Any:
    """The model made again.  (`set_attn_implementation` of transformers 5.17 does not reach the stacks of T5.)"""
    config = model.config.__class__.from_dict(model.config.to_dict())
    made = type(model)._from_config(config, attn_implementation=kind)
    made.load_state_dict(model.state_dict())
    return made
