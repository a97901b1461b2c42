"""Gradients of what a mod computes, where functions have kinks, ties and poles: those of PyTorch."""

from __future__ import annotations

import pytest
import torch
from attention_reference import DEVICE, causal, tensors

import neptune_lab as nl

FUNCTIONS = {
    "asinh": lambda x, y: torch.asinh(x),
    "atanh": lambda x, y: torch.atanh(x / 4),
    "sinc": lambda x, y: torch.sinc(x / 4),
    "fmod": lambda x, y: torch.fmod(x, 0.75),
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "maximum": torch.maximum,
    "logaddexp": torch.logaddexp,
    "atan2": torch.atan2,
    "xlogy": lambda x, y: torch.xlogy(x, y * y + 0.5),
    "copysign": torch.copysign,
    "relu": lambda x, y: torch.relu(x) + torch.nn.functional.relu6(3 * x),
    "clamp": lambda x, y: x.clamp(-1.0, 2.0) + torch.clip(x, min=0),
    "clamp by tensors": lambda x, y: torch.clamp(x, min=y),
    "hardtanh": lambda x, y: torch.nn.functional.hardtanh(x) + torch.nn.functional.hardswish(3 * x),
    "relu beside maximum": lambda x, y: torch.relu(x) + torch.maximum(y, x.clamp(max=0.5)),
}
OF_ONE = ("asinh", "atanh", "sinc", "fmod", "relu", "clamp", "hardtanh")
# Zeros, equal numbers, zeros on either side, and others.
X = (0.0, 0.0, 1.0, -1.0, 2.0, 0.5, -3.0, -1.0, 0.0)
Y = (0.0, 1.0, 0.0, 0.0, 2.0, 0.5, 0.25, -1.0, -2.0)


@pytest.mark.one_in(20)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_at_kinks_ties_and_poles(name: str):
    function = FUNCTIONS[name]
    x, y = (torch.tensor(row, device=DEVICE).requires_grad_() for row in (X, Y))

    def score_mod(score, b, h, q, kv):
        return score + function(x[kv], y[kv])

    q, k, v = tensors((1, 1, 9, 16), (1, 1, 9, 16))
    read = (x,) if name in OF_ONE else (x, y)
    found = torch.autograd.grad(nl.attention(q, k, v, score_mod=score_mod, mask_mod=causal).square().sum(), read)
    hidden = torch.ones(9, 9, dtype=torch.bool, device=DEVICE).triu(1)
    scores = ((q @ k.mT / 4).double() + function(x, y)).masked_fill(hidden, -torch.inf)
    expected = torch.autograd.grad((scores.softmax(-1) @ v.double()).square().sum(), read)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_limits_of_arrays_and_beside_positions_of_64_bits():
    x = torch.tensor(X, device=DEVICE).requires_grad_()

    def score_mod(score, b, h, q, kv):
        never = torch.where((q + 1) * (kv + 1) * 2_000_000_000 < b, 1.0, 0.0)
        return score + x.clamp(max=1.0)[kv] + torch.relu(x)[kv] + 3 * x[kv].clamp(min=q * 0.0) + never

    q, k, v = tensors((1, 1, 9, 16), (1, 1, 9, 16))
    (found,) = torch.autograd.grad(nl.attention(q, k, v, score_mod=score_mod).square().sum(), x)
    scores = (q @ k.mT / 4).double() + x.clamp(max=1.0) + torch.relu(x) + 3 * x.clamp(min=0)
    (expected,) = torch.autograd.grad((scores.softmax(-1) @ v.double()).square().sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_limits_beside_an_index_that_only_a_condition_keeps_inside():
    table = torch.zeros(3, device=DEVICE).requires_grad_()

    def score_mod(score, b, h, q, kv):
        at = 4 - (kv - 4).abs()
        return torch.where(at < 3, torch.clamp(score * 0 + table[at], min=0), score)

    q, k, v = tensors((1, 1, 9, 16), (1, 1, 9, 16))
    (found,) = torch.autograd.grad(nl.attention(q, k, v, score_mod=score_mod).square().sum(), table)
    at = 4 - (torch.arange(9, device=DEVICE) - 4).abs()
    scores = torch.where(at < 3, table[at.clamp(max=2)].clamp(min=0), (q @ k.mT / 4).double())
    (expected,) = torch.autograd.grad((scores.softmax(-1) @ v.double()).square().sum(), table)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
