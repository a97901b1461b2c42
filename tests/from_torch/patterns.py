"""Functions of PyTorch in textbook spelling: attention variants and what else chains reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

B, H, N, D = 1, 2, 64, 32


def vanilla(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    p = torch.softmax(scores, dim=-1)
    return p @ v


def causal(q, k, v):
    n = q.shape[-2]
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    mask = torch.tril(torch.ones(n, n, dtype=torch.bool))
    scores = scores.masked_fill(~mask, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def alibi(q, k, v):
    n = q.shape[-2]
    slopes = (2.0 ** (-8.0 * torch.arange(1, q.shape[1] + 1) / q.shape[1])).to(q.dtype)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    scores = scores - slopes[:, None, None] * (i - j)
    scores = torch.where(i >= j, scores, float("-inf"))
    return torch.softmax(scores, -1) @ v


def softcap(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = 20.0 * torch.tanh(scores / 20.0)
    return torch.softmax(scores, -1) @ v


def sliding_window(q, k, v):
    n = q.shape[-2]
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores.masked_fill((j > i) | (i - j >= 16), float("-inf"))
    return scores.softmax(-1) @ v


def prefix_lm(q, k, v):
    n = q.shape[-2]
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~((j <= i) | (j < 24)), float("-inf"))
    return scores.softmax(-1) @ v


def document_mask(q, k, v, document):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    same = document[:, None, :, None] == document[:, None, None, :]
    scores = scores.masked_fill(~same, float("-inf"))
    return scores.softmax(-1) @ v


def gqa(q, k, v):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ v


def differential(q1, q2, k1, k2, v):
    first = torch.softmax(q1 @ k1.mT / math.sqrt(q1.shape[-1]), -1)
    second = torch.softmax(q2 @ k2.mT / math.sqrt(q2.shape[-1]), -1)
    return (first - 0.3 * second) @ v


def evoformer(q, k, v, mask_bias, pair_bias, gate):
    scores = torch.einsum("bshqd,bshkd->bshqk", q, k) / math.sqrt(q.shape[-1])
    scores = scores + mask_bias[:, :, None, None, :] + pair_bias[:, None]
    out = torch.einsum("bshqk,bshkd->bshqd", torch.softmax(scores, -1), v)
    return torch.sigmoid(gate) * out


def invariant_point(q, k, v, q_points, k_points, head_weight):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    distance = ((q_points[:, :, :, None] - k_points[:, :, None]) ** 2).sum((-1, -2))
    scores = scores - 0.5 * head_weight[:, None, None] * distance
    return torch.softmax(scores, -1) @ v


def _half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16)


def _qkv() -> tuple[torch.Tensor, ...]:
    return _half(B, H, N, D), _half(B, H, N, D), _half(B, H, N, D)


ATTENTION: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "vanilla": (vanilla, _qkv),
    "causal": (causal, _qkv),
    "alibi": (alibi, _qkv),
    "softcap": (softcap, _qkv),
    "sliding_window": (sliding_window, _qkv),
    "prefix_lm": (prefix_lm, _qkv),
    "document_mask": (document_mask, lambda: (*_qkv(), torch.arange(N, dtype=torch.int32)[None] // 20)),
    "gqa": (gqa, lambda: (_half(B, 4, N, D), _half(B, 2, N, D), _half(B, 2, N, D))),
    "differential": (differential, lambda: (*(_half(B, H, N, D) for _ in range(4)), _half(B, H, N, 2 * D))),
    "evoformer": (
        evoformer,
        lambda: (
            *(_half(B, 2, H, N, D) for _ in range(3)),
            _half(B, 2, N),
            _half(B, H, N, N),
            _half(B, 2, H, N, D),
        ),
    ),
    "invariant_point": (
        invariant_point,
        lambda: (*_qkv(), _half(B, H, N, 4, 3), _half(B, H, N, 4, 3), torch.rand(H).half()),
    ),
}
