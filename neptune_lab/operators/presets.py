"""Attention as published models and papers use it: shapes by name, for `attention.preset` and the command line.

The first ten are the operators of Neptune's Table 1 at its public benchmark's sizes ("pf" is prefill, "dc" decode with
one query); the others are the self-attention modules of MCFuser's
Table III, whose sizes M, N, K, H are q_len, kv_len, head_dim and v_head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Preset:
    """An operator at a model's sizes.

    Args:
        name: what `attention.preset` calls it.
        operator: the function of `attention` that makes it.
        model: where the sizes come from.
        paper: whose table lists it.
        sizes: arguments of that function.
        decode: one query against `seq` keys; otherwise `seq` is both lengths, where `sizes` gives none.
    """

    name: str
    operator: str
    model: str
    paper: str
    sizes: Mapping[str, Any]
    decode: bool = False

    @property
    def takes_seq(self) -> bool:
        """Whether the lengths are for the caller to give."""
        return "q_len" not in self.sizes


def _neptune(name: str, operator: str, model: str, heads: int, kv_heads: int, **more: Any) -> Preset:
    decode = name.endswith("_dc")
    sizes: dict[str, Any] = {"heads": heads, "head_dim": 128}
    if kv_heads != heads:
        sizes["kv_heads"] = kv_heads
    return Preset(name, operator, model, "Neptune, Table 1", MappingProxyType({**sizes, **more}), decode)


def _mcfuser(name: str, model: str, heads: int, q_len: int, kv_len: int, head_dim: int) -> Preset:
    sizes = {"heads": heads, "q_len": q_len, "kv_len": kv_len, "head_dim": head_dim, "v_head_dim": head_dim}
    return Preset(name, "full", model, "MCFuser, Table III", MappingProxyType(sizes))


# A single query sees every key, so the decoding operators have no mask.
_PRESETS = (
    _neptune("global_pf", "full", "ViT-L/16", 32, 32),
    _neptune("causal_pf", "causal", "GPT-3 6.7B", 32, 32),
    _neptune("alibi_pf", "alibi", "MPT 7B", 32, 32),
    _neptune("gqa_pf", "gqa", "Llama 3 70B", 64, 8),
    _neptune("softcap_pf", "softcap", "Gemma 2 27B", 32, 16, cap=50.0),
    _neptune("window_pf", "window", "Gemma 2 27B", 32, 8, window=4096),
    _neptune("causal_dc", "full", "GPT-3 6.7B", 32, 32),
    _neptune("alibi_dc", "alibi", "MPT 7B", 32, 32, causal=False),
    _neptune("gqa_dc", "gqa", "Llama 3 70B", 64, 8, causal=False),
    _neptune("softcap_dc", "softcap", "Gemma 2 27B", 32, 16, cap=50.0, causal=False),
    _mcfuser("s1", "BERT-Small", 8, 512, 512, 64),
    _mcfuser("s2", "BERT-Base", 12, 512, 512, 64),
    _mcfuser("s3", "BERT-Large", 16, 512, 512, 64),
    _mcfuser("s4", "ViT-Base", 12, 256, 256, 64),
    _mcfuser("s5", "ViT-Large", 16, 256, 256, 64),
    _mcfuser("s6", "ViT-Huge", 16, 256, 256, 80),
    _mcfuser("s7", "MLP-Mixer", 1, 512, 256, 64),
    _mcfuser("s8", "MLP-Mixer", 1, 768, 384, 64),
    _mcfuser("s9", "MLP-Mixer", 1, 1024, 512, 64),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({p.name: p for p in _PRESETS})
# The ten operators of Neptune's tables.
TEN = tuple(name for name, preset in PRESETS.items() if preset.paper.startswith("Neptune"))
