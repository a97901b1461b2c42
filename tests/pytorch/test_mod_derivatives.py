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
}
OF_ONE = ("asinh", "atanh", "sinc", "fmod")
# Zeros, equal numbers, zeros on either side, and others.
X = (0.0, 0.0, 1.0, -1.0, 2.0, 0.5, -3.0, -1.0, 0.0)
Y = (0.0, 1.0, 0.0, 0.0, 2.0, 0.5, 0.25, -1.0, -2.0)


@pytest.mark.one_in(5)
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
