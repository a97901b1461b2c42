"""Gradients of what a mod computes, where functions have kinks, ties and poles: those of PyTorch."""

from __future__ import annotations

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
# Zeros, equal numbers, zeros on either side, and others.
X = (0.0, 0.0, 1.0, -1.0, 2.0, 0.5, -3.0, -1.0, 0.0)
Y = (0.0, 1.0, 0.0, 0.0, 2.0, 0.5, 0.25, -1.0, -2.0)


def test_derivatives_at_kinks_ties_and_poles():
    def drawn(row):
        return torch.tensor([row] * len(FUNCTIONS), device=DEVICE).requires_grad_()

    x, y = drawn(X), drawn(Y)
    weights = 1 / torch.arange(1.0, 1.0 + len(FUNCTIONS), device=DEVICE)

    def score_mod(score, b, h, q, kv):
        for n, function in enumerate(FUNCTIONS.values()):
            score = score + weights[n] * function(x[n, kv], y[n, kv])
        return score

    q, k, v = tensors((1, 1, 9, 16), (1, 1, 9, 16))
    found = torch.autograd.grad(nl.attention(q, k, v, score_mod=score_mod, mask_mod=causal).square().sum(), (x, y))
    scores = (q @ k.mT / 4).double()
    terms = [w * function(x[n], y[n]) for n, (w, function) in enumerate(zip(weights, FUNCTIONS.values(), strict=True))]
    hidden = torch.ones(9, 9, dtype=torch.bool, device=DEVICE).triu(1)
    scores = (scores + sum(terms)).masked_fill(hidden, -torch.inf)
    expected = torch.autograd.grad((scores.softmax(-1) @ v.double()).square().sum(), (x, y))
    for name, *rows in zip(FUNCTIONS, *found, *expected, strict=True):
        of_x, of_y, x_wanted, y_wanted = rows
        torch.testing.assert_close(of_x, x_wanted, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n} by x: {m}")
        torch.testing.assert_close(of_y, y_wanted, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n} by y: {m}")
