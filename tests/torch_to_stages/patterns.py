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
    mask = torch.tril(torch.ones(n, n, dtype=torch.bool, device=q.device))
    scores = scores.masked_fill(~mask, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def alibi(q, k, v):
    n = q.shape[-2]
    slopes = (2.0 ** (-8.0 * torch.arange(1, q.shape[1] + 1, device=q.device) / q.shape[1])).to(q.dtype)
    at = torch.arange(n, device=q.device)
    i, j = at[:, None], at[None, :]
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
    at = torch.arange(n, device=q.device)
    i, j = at[:, None], at[None, :]
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores.masked_fill((j > i) | (i - j >= 16), float("-inf"))
    return scores.softmax(-1) @ v


def prefix_lm(q, k, v):
    n = q.shape[-2]
    at = torch.arange(n, device=q.device)
    i, j = at[:, None], at[None, :]
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


def linear_cross_entropy(x, weight, target):
    return F.cross_entropy(x @ weight.T, target)


def moe_routing(x, gate):
    p = torch.softmax(x @ gate.T, dim=-1)
    entropy = -(p * torch.log(p)).sum(-1)
    return p.amax(-1), entropy


def moe_routing_by_logarithms(x, gate):
    logits = x @ gate.T
    p, log = torch.softmax(logits, dim=-1), torch.log_softmax(logits, dim=-1)
    return p.amax(-1), -(p * log).sum(-1)


def entropy(x):
    return -(F.softmax(x, -1) * F.log_softmax(x, -1)).sum(-1)


def quantised_product(x, weight):
    scale = x.abs().amax(-1, keepdim=True) / 127
    steps = torch.round(x / scale)
    return (steps @ weight) * scale


def rms_norm_product(x, norm_weight, weight):
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * norm_weight
    return x @ weight


def cosine_attention(q, k, v):
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return torch.softmax(10.0 * q @ k.transpose(-2, -1), -1) @ v


def sigmoid_attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.sigmoid(scores - math.log(k.shape[-2])) @ v


def sink_attention(q, k, v, sink):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    sinks = sink[None, :, None, None].expand(q.shape[0], -1, q.shape[2], 1)
    p = torch.softmax(torch.cat([scores, sinks], dim=-1), -1)
    return p[..., :-1] @ v


def sink_attention_by_hand(q, k, v, sink):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    top = torch.maximum(scores.amax(-1, keepdim=True), sink[:, None, None])
    e = torch.exp(scores - top)
    return (e / (e.sum(-1, keepdim=True) + torch.exp(sink[:, None, None] - top))) @ v


def retention(q, k, v):
    n = q.shape[-2]
    at = torch.arange(n, device=q.device)
    i, j = at[:, None], at[None, :]
    decay = torch.where(i >= j, 0.9 ** (i - j), 0.0)
    return ((q @ k.transpose(-2, -1)) * decay) @ v


def softmax_weighted_variance(x, values):
    p = torch.softmax(x, -1)
    mean = (p * values).sum(-1, keepdim=True)
    return (p * (values - mean) ** 2).sum(-1)


def masked_mean_pooling(x, mask):
    kept = mask[:, :, None].to(x.dtype)
    return (x * kept).sum(1) / kept.sum(1).clamp(min=1.0)


def info_nce(a, b):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    logits = a @ b.T / 0.07
    return F.cross_entropy(logits, torch.arange(a.shape[0], device=a.device))


def sdpa_causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def layer_norm_rows(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def log_softmax_rows(x):
    return F.log_softmax(x, -1)


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

BEYOND: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "linear_cross_entropy": (
        linear_cross_entropy,
        lambda: (_half(32, D), _half(128, D), torch.randint(0, 128, (32,))),
    ),
    "moe_routing": (moe_routing, lambda: (_half(32, D), _half(64, D))),
    "moe_routing_by_logarithms": (moe_routing_by_logarithms, lambda: (_half(32, D), _half(64, D))),
    "entropy": (entropy, lambda: (torch.randn(32, N),)),
    "quantised_product": (quantised_product, lambda: (torch.randn(32, N), torch.randn(N, D))),
    "rms_norm_product": (rms_norm_product, lambda: (torch.randn(32, N), torch.randn(N), torch.randn(N, D))),
    "cosine_attention": (cosine_attention, _qkv),
    "sigmoid_attention": (sigmoid_attention, _qkv),
    "sink_attention": (sink_attention, lambda: (*_qkv(), _half(H))),
    "sink_attention_by_hand": (sink_attention_by_hand, lambda: (*_qkv(), _half(H))),
    "retention": (retention, lambda: tuple(torch.randn(B, H, N, D) for _ in range(3))),
    "softmax_weighted_variance": (softmax_weighted_variance, lambda: (torch.randn(32, N), torch.randn(32, N))),
    "masked_mean_pooling": (masked_mean_pooling, lambda: (torch.randn(2, N, D), torch.rand(2, N) < 0.7)),
    "info_nce": (info_nce, lambda: (torch.randn(N, D), torch.randn(N, D))),
    "sdpa_causal": (sdpa_causal, _qkv),
    "layer_norm": (layer_norm_rows, lambda: (_half(32, N), _half(N), _half(N))),
    "log_softmax": (log_softmax_rows, lambda: (_half(32, N),)),
}
