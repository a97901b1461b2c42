"""Inputs, mods and the references that these tests share: the float64 definition, and FlexAttention's eager form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex_module

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensors(q=(1, 2, 32, 16), kv=None, dtype=torch.float32) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = (q, kv or q, kv or q)
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


def reference(q: Any, k: Any, v: Any, score_mod: Any = None, mask_mod: Any = None, scale: Any = None) -> Any:
    """The definition, in float64."""
    q, k, v = (t.double() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    b, h, i, j = torch.meshgrid(*(torch.arange(n, device=q.device) for n in (*q.shape[:3], k.shape[2])), indexing="ij")
    score = q @ k.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    if score_mod is not None:
        score = score_mod(score, b, h, i, j)
    if mask_mod is not None:
        score = score.masked_fill(~mask_mod(b, h, i, j), -torch.inf)
    return score.softmax(-1) @ v


def causal(b, h, q, kv):
    return q >= kv


def make_bias(slopes, width=100):
    def bias(score, b, h, q, kv):
        return score + torch.where(q - kv < width, slopes[h] * (kv - q), 0.0)

    return bias


def flex(
    q: Any, k: Any, v: Any, score_mod: Any = None, mask_mod: Any = None, scale: Any = None, traced: bool = False
) -> Any:
    """What FlexAttention's eager form computes, in the inputs' dtype; the mask is one of the score.

    Args:
        traced: torch first makes a graph of the mods, as it does for its users, and runs the same operations from it.
            The graph takes most of the time of a test.
    """

    def mod(score, b, h, i, j):
        score = score if score_mod is None else score_mod(score, b, h, i, j)
        return score if mask_mod is None else torch.where(mask_mod(b, h, i, j), score, -torch.inf)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", not traced)
        return flex_module.flex_attention(q, k, v, score_mod=mod, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
