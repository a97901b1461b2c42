"""What types of models need beside small numbers: fields of their configurations, and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_IDS = torch.randint(3, 31, (2, 13), generator=torch.Generator().manual_seed(0))
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
}
_CONVOLVED: dict[str, Any] = {
    "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 4], "num_feat_extract_layers": 2,
}  # fmt: skip
_SERIES: dict[str, Any] = {
    "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 1, "input_size": 1,
    "feature_size": 5,
}  # fmt: skip
# By type; a dict within a dict is merged.
FIELDS: dict[str, dict[str, Any]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "bridgetower": {
        "hidden_size": 64, "vision_config": {"hidden_size": 64}, "text_config": {"hidden_size": 64},
    },
    "chameleon": {"vocabulary_map": {"<image>": 5, "IMGIMGAZ": 6}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8}},
    "decision_transformer": {"vocab_size": 64},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
    "ernie4_5_moe": {"moe_k": 2},
    "ernie4_5_vl_moe": {"text_config": {"moe_k": 2, "rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]}}},
    "esm": {"vocab_size": 64, "pad_token_id": 1, "mask_token_id": 32, "token_dropout": False},
    "esmc": {"num_key_value_heads": 4},
    "gemma3n": {
        "text_config": {
            "num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"],
            "activation_sparsity_pattern": [0.0, 0.0],
        },
        "num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"],
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "glm4v_moe": {"text_config": {"rope_parameters": {"partial_rotary_factor": 1.0}}},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention"]},
    "hrm_text": {"H_cycles": 1, "L_cycles": 1, "L_bp_cycles": [1], "num_layers_per_stack": 1, "num_hidden_layers": 2},
    "hubert": _CONVOLVED,
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl": {"text_config": {"head_dim": 8}},
    "informer": _SERIES,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "mamba_dt_rank": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {"qk_head_dim": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "head_dim": 8},
    "kosmos2": {"latent_query_num": 4},
    "ministral": {"head_dim": 8},
    "mistral4": {"head_dim": 16},
    "mobilebert": {"true_hidden_size": 32, "intra_bottleneck_size": 32},
    "nemotron": {"num_key_value_heads": 2},
    "qwen2_5_omni": {"vision_start_token_id": 33},
    "qwen3_omni_moe": {"vision_start_token_id": 33},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "attention_window_size": 6},
    "sew": {**_CONVOLVED, "squeeze_factor": 2},
    "step3p7": {"text_config": {"sliding_window": 6}},
    "swin": {"depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 4},
    "time_series_transformer": _SERIES,
    "unispeech": _CONVOLVED,
    "unispeech_sat": _CONVOLVED,
    "wav2vec2": _CONVOLVED,
    "wav2vec2_conformer": _CONVOLVED,
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "n_mamba_heads": 2, "mamba_d_state": 8,
        "mamba_dt_rank": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
}  # fmt: skip


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_generator())


def _past() -> dict[str, torch.Tensor]:
    return {
        "past_values": _drawn(2, 10), "past_time_features": _drawn(2, 10, 1), "past_observed_mask": torch.ones(2, 10),
        "future_values": _drawn(2, 4), "future_time_features": _drawn(2, 4, 1),
    }  # fmt: skip


def _patches() -> dict[str, torch.Tensor]:
    places = (torch.arange(32).reshape(2, 16, 1) % 4 + 1.0).expand(2, 16, 2)
    return {"flattened_patches": torch.cat([places, _drawn(2, 16, 32)], 2), "decoder_input_ids": _IDS[:, :6]}


# By type: other inputs than those of `inputs_of`.
INPUTS: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
    "audio_spectrogram_transformer": lambda: {"input_values": _drawn(2, 128, 16)},
    "bridgetower": lambda: {"input_ids": _IDS, "pixel_values": _drawn(2, 3, 32, 32)},
    "dia": lambda: {"input_ids": _IDS, "decoder_input_ids": _IDS[:, :6, None].expand(2, 6, 9)},
    "idefics": lambda: {
        "input_ids": _IDS, "pixel_values": _drawn(2, 1, 3, 32, 32), "image_attention_mask": torch.ones(2, 13, 1)
    },
    "informer": _past,
    "kosmos2": lambda: {
        "input_ids": _IDS, "pixel_values": _drawn(2, 3, 32, 32),
        "image_embeds_position_mask": (torch.arange(13) < 4).expand(2, 13),
    },
    "musicgen": lambda: {"input_ids": _IDS.repeat(4, 1)},
    "musicgen_melody": lambda: {"input_ids": _IDS.repeat(4, 1)},
    "patchtst": lambda: {"past_values": _drawn(2, 32, 1)},
    "pix2struct": _patches,
    "speech_to_text": lambda: {"input_features": _drawn(2, 16, 80), "decoder_input_ids": _IDS[:, :6]},
    "time_series_transformer": _past,
    "udop": lambda: {
        "input_ids": _IDS, "bbox": torch.rand(2, 13, 4, generator=_generator()), "decoder_input_ids": _IDS[:, :6]
    },
    "vit_mae": lambda: {"pixel_values": _drawn(2, 3, 32, 32), "noise": torch.rand(2, 16, generator=_generator())},
    "vjepa2": lambda: {"pixel_values_videos": _drawn(2, 4, 3, 32, 32)},
    "wav2vec2_bert": lambda: {"input_features": _drawn(2, 16, 32)},
}  # fmt: skip
