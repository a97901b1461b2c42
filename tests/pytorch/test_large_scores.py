"""Gradients of rows whose scores are all near a large number: of a mask that adds or sets a finite one."""

from __future__ import annotations

import pytest
import torch
from attention_reference import DEVICE, causal
from gradient_reference import check

import neptune_lab as nl

LEAST = torch.finfo(torch.float32).min


def drawn(n: int = 20) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, 2, n, 8, generator=generator).to(DEVICE) for _ in range(3))


# Each hides all keys from some queries, whose weights are then equal, and some keys from others.
MODS = {
    "set to the least float": lambda x, b, h, q, kv: torch.where((q >= 10) & (q >= kv), x, LEAST),
    "set to a large number": lambda x, b, h, q, kv: torch.where((q >= 10) & (q >= kv), x, -1e9),
    "set to the largest float": lambda x, b, h, q, kv: torch.where(q >= 10, x, -LEAST),
    "added": lambda x, b, h, q, kv: x + torch.where((q >= 10) & (q >= kv), 0.0, 0.9 * LEAST),
    "by products": lambda x, b, h, q, kv: x + (q < 10) * LEAST,
    "halves of the least float": lambda x, b, h, q, kv: torch.where(q >= 10, x, LEAST / 2) + (kv % 2),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", MODS)
def test_rows_of_large_scores(name: str):
    check(drawn(), lambda: (MODS[name], None))


@pytest.mark.nightly
def test_rows_of_large_scores_under_a_mask():
    check(drawn(), lambda: (MODS["set to the least float"], causal))


@pytest.mark.nightly
def test_rows_that_a_tensor_hides_whole():
    mask = torch.where(torch.arange(20) < 10, LEAST, 0.0)[:, None].expand(20, 20).clone().to(DEVICE)
    check(drawn(), lambda: (lambda x, b, h, q, kv: x + mask[q, kv], None))


@pytest.mark.nightly
def test_rows_of_a_traced_function_that_a_tensor_hides_whole():
    x, v, mask = torch.randn(3, 6), torch.randn(6, 4), torch.zeros(3, 6)
    mask[1], mask[2, 3:] = LEAST, LEAST
    inputs = [t.requires_grad_() for t in (x, v, mask)]

    def function(x: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        chosen = torch.where(mask < 0, mask, x)
        return (torch.softmax(x + mask, -1) + torch.softmax(chosen, -1)) @ v

    out = nl.compile(nl.from_torch(function, x, v, mask)).with_gradients()(*inputs)
    expected = torch.autograd.grad(function(*inputs).sum(), inputs)
    for ours, theirs in zip(torch.autograd.grad(out.sum(), inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
def test_the_log_sum_exp_of_such_rows_has_a_gradient():
    q, k, v = (t.requires_grad_() for t in drawn())
    out, lse = nl.attention(q, k, v, score_mod=MODS["set to a large number"], return_lse=True)
    found = torch.autograd.grad(out.sum() + lse[:, :, 10:].sum(), (q, k, v))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    rows = torch.arange(20)
    seen = (rows[:, None] >= 10) & (rows[:, None] >= rows)
    scores = torch.where(seen.to(DEVICE), wide[0] @ wide[1].transpose(-1, -2) / 8**0.5, -1e9)
    exact = (scores.softmax(-1) @ wide[2]).sum() + scores.logsumexp(-1)[:, :, 10:].sum()
    for ours, theirs in zip(found, torch.autograd.grad(exact, wide), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-5
