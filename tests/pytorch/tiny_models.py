"""More tiny random models of transformers, of which one call is compared: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

_SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
    "initializer_range": 0.3,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": 8}
_LAYERS: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32}
_TWO_SIDES: dict[str, Any] = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "init_std": 0.3, "pad_token_id": 0,
    "decoder_start_token_id": 1,
}  # fmt: skip


def _deepseek() -> Any:
    config = hf.DeepseekV3Config(
        **{**_SIZES, "num_key_value_heads": 4}, moe_intermediate_size=16, n_routed_experts=4, n_group=1, topk_group=1,
        num_experts_per_tok=2, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
        v_head_dim=12, qk_nope_head_dim=8,
    )  # fmt: skip
    return hf.DeepseekV3ForCausalLM(config)


def _llama_4() -> Any:
    config = hf.Llama4TextConfig(**_GROUPED, num_local_experts=2, intermediate_size_mlp=48, attention_chunk_size=8)
    return hf.Llama4ForCausalLM(config)


def _gpt_2() -> Any:
    config = hf.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=128, scale_attn_by_inverse_layer_idx=True,
        initializer_range=0.3,
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config)


def _opt() -> Any:
    config = hf.OPTConfig(**{**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3, "dropout": 0.0})
    return hf.OPTForCausalLM(config)


# Of tokens; padding to the left and to the right.
TOKENS: dict[str, Callable[[], Any]] = {
    "Phi 3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**_GROUPED)),
    "Cohere 2": lambda: hf.Cohere2ForCausalLM(hf.Cohere2Config(**_GROUPED, sliding_window=6)),
    "Granite": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**_GROUPED, attention_multiplier=0.3)),
    "Gemma 3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**_GROUPED, sliding_window=6)),
    "StableLM": lambda: hf.StableLmForCausalLM(hf.StableLmConfig(**_SIZES, num_key_value_heads=2)),
    "Mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**_GROUPED, num_local_experts=2)),
    "OPT": _opt,
    "GPT-2": _gpt_2,
    "GPT-NeoX": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**_SIZES)),
    "Llama 4": _llama_4,
    "DeepSeek V3": _deepseek,
    "Exaone 4": lambda: hf.Exaone4ForCausalLM(hf.Exaone4Config(**_GROUPED, sliding_window=6)),
    "BERT": lambda: hf.BertForMaskedLM(hf.BertConfig(**_SIZES)),
    "ModernBERT": lambda: hf.ModernBertForMaskedLM(
        hf.ModernBertConfig(**_SIZES, local_attention=8, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2)
    ),
}
# Of other inputs.
OTHERS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, torch.Tensor]]]] = {
    "ViT": (
        lambda: hf.ViTModel(hf.ViTConfig(**_LAYERS, intermediate_size=48, patch_size=8)),
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32)},
    ),
    "SigLIP": (
        lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**_LAYERS, intermediate_size=48, patch_size=8)),
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32)},
    ),
    "DINOv2": (
        lambda: hf.Dinov2Model(hf.Dinov2Config(**_LAYERS, patch_size=8)),
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32)},
    ),
    "BART": (
        lambda: hf.BartForConditionalGeneration(hf.BartConfig(**_TWO_SIDES, max_position_embeddings=64)),
        lambda: {
            "input_ids": torch.randint(3, 64, (2, 13)),
            "attention_mask": torch.tensor([[1] * 13, [1] * 9 + [0] * 4]),
            "decoder_input_ids": torch.randint(3, 64, (2, 6)),
        },
    ),
    "Whisper": (
        lambda: hf.WhisperModel(
            hf.WhisperConfig(**_TWO_SIDES, num_mel_bins=8, max_source_positions=20, max_target_positions=30)
        ),
        lambda: {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": torch.randint(3, 64, (2, 7))},
    ),
}
