"""Softmaxes of softmaxes in a backward pass: each row's sum of gradients is there before it is passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradients import gradients

import neptune_lab as nl
from neptune_lab.operators import training


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, w: torch.logsumexp(torch.softmax(y - x @ w, -1), -1, keepdim=True) * x,
        lambda x, y, w: torch.softmax(2 * torch.softmax(y - x @ w, -1), -1) * x,
        lambda x, y, w: torch.log_softmax(torch.softmax(y * 2, -1) - x @ w, -1) * y,
        lambda x, y, w: torch.logsumexp(torch.softmax(torch.softmax(y - x, -1) @ w, -1), -1, keepdim=True) * x,
    ],
    ids=["log-sum-exp of softmax", "softmax of softmax", "log-softmax of softmax", "three"],
)
def test_softmaxes_of_softmaxes(function: Callable[..., Any]):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(size, generator=generator, dtype=torch.float64) for size in ((3, 4), (3, 4), (4, 4))]
    op = nl.from_torch(function, *(tensor.float() for tensor in tensors))
    given = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    own = [tensor.clone().requires_grad_() for tensor in tensors]
    arrays = {t.name: tensor.numpy() for t, tensor in zip(op.inputs, tensors, strict=True)}
    found = gradients(training(op), arrays, {f"d_{op.outputs[0].name}": given.numpy()})
    for name, wanted in zip(arrays, torch.autograd.grad(function(*own), own, given), strict=True):
        torch.testing.assert_close(torch.from_numpy(found[name]), wanted, rtol=1e-6, atol=1e-7)
