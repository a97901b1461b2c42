"""Mods over tensors that record gradients, each with the tensor whose gradient is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._python_dispatch
from attention_reference import DEVICE
from gradient_reference import leaf

pytestmark = pytest.mark.filterwarnings("ignore:attention copies")


def alibi(slopes):
    return lambda score, b, h, q, kv: score + slopes[h] * (kv - q)


def pair_bias(bias):
    return lambda score, b, h, q, kv: score + bias[h, q, kv]


def relative(bias, length):
    return lambda score, b, h, q, kv: score + bias[h, q - kv + length - 1]


def learned_cap(cap):
    return lambda score, b, h, q, kv: cap * torch.tanh(score / cap)


def buckets(table):
    return lambda score, b, h, q, kv: score + table[(q - kv).abs() // 4, h]


def gated(gate):
    return lambda score, b, h, q, kv: score * torch.sigmoid(gate[b, q])


def two_reads(table):
    return lambda score, b, h, q, kv: score * torch.exp(table[q // 4, h]) + torch.where(q > kv, table[kv % 5, h], 0.0)


def by_data(table):
    ids = torch.arange(20, device=DEVICE) * 7 % 6
    return lambda score, b, h, q, kv: score + table[ids[q], h] * table[ids[kv], h]


def between_positions(table):
    """Contextual positions: a captured number chooses two elements, and the weight of each."""
    place = torch.linspace(0, 4.99, 20, device=DEVICE).requires_grad_()

    def score_mod(score, b, h, q, kv):
        below = place[kv].floor()
        low, high = table[below.long(), h], table[below.long() + 1, h]
        return score + low + (high - low) * (place[kv] - below)

    return score_mod


def tempered_bias(bias):
    """The kept logarithm of the sum subtracts a maximum that is rounded as its elements are."""
    return lambda score, b, h, q, kv: (score + bias[h, q, kv]) / 0.7


def vectors(rows):
    return lambda score, b, h, q, kv: score + torch.atan((rows[q] * rows[kv]).sum(-1))


PARAMETERS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "slopes": (alibi, leaf(2)),
    "pair bias": (pair_bias, leaf(2, 20, 20)),
    "relative": (lambda bias: relative(bias, 20), leaf(2, 39)),
    "soft cap": (learned_cap, torch.tensor(5.0, device=DEVICE, requires_grad=True)),
    "a large cap": (learned_cap, torch.tensor(50.0, device=DEVICE, requires_grad=True)),
    "buckets": (buckets, leaf(5, 2)),
    "gate of each query": (gated, leaf(1, 20)),
    "two reads": (two_reads, leaf(5, 2)),
    "rows chosen by data": (by_data, leaf(6, 2)),
    "between positions": (between_positions, leaf(6, 2)),
    "tempered bias": (tempered_bias, leaf(2, 20, 20)),
    "vectors": (vectors, leaf(20, 3)),
    "float64": (pair_bias, leaf(2, 20, 20).detach().double().requires_grad_()),
}
