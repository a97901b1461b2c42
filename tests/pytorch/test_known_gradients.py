"""Gradients that FlexAttention has or had wrong, or refused, by their issues: they are float64 autograd's here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from attention_reference import DEVICE, causal, tensors
from gradient_reference import check, leaf
from torch.nn.attention.flex_attention import create_block_mask

import neptune_lab as nl

pytestmark = pytest.mark.filterwarnings("ignore:attention copies")


class Known(NamedTuple):
    """A call of attention.

    Args:
        mods: from its parameters to score_mod and mask_mod.
        parameters: tensors that get gradients.
        q, kv: shapes.
        dtype, limit: of the inputs, and of the relative error.
    """

    mods: Callable[..., tuple[Any, Any]]
    parameters: tuple[torch.Tensor, ...] = ()
    q: tuple[int, ...] = (1, 2, 20, 8)
    kv: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32
    limit: float = 1e-5


def shifted_window(offset: int) -> tuple[Any, Any]:
    """A window of 8 keys whose place depends on a captured number; at the last offset it begins at the first key."""
    place = torch.tensor(offset, device=DEVICE)
    return None, lambda b, h, q, kv: (kv <= q + 8 - place) & (kv >= q - place)


def odd_reads(bias: torch.Tensor) -> tuple[Any, Any]:
    """Reads of one tensor at constants, at equal and at swapped indices."""
    return lambda s, b, h, q, kv: s + bias[h, 0, kv] * bias[h, q, q % 3] + bias[0, kv, q], None


KNOWN = {
    "158212, first offset": Known(lambda: shifted_window(0)),
    "158212, last offset": Known(lambda: shifted_window(8), kv=(1, 2, 27, 8)),
    "145208, a number": Known(lambda t: (lambda s, b, h, q, kv: s * t, causal), (leaf().detach().requires_grad_(),)),
    "145208, a number in float16": Known(
        lambda t: (lambda s, b, h, q, kv: s * t, None), (leaf(),), dtype=torch.float16, limit=2e-3
    ),
    "145208, several reads": Known(odd_reads, (leaf(2, 20, 20),)),
    "attention-gym 171": Known(lambda t: (lambda s, b, h, q, kv: s + t * (q - kv), causal), (leaf(),)),
    "attention-gym 20": Known(lambda t: (lambda s, b, h, q, kv: s + t[q - kv], causal), (leaf(20),)),
    "136076": Known(lambda t: (lambda s, b, h, q, kv: s + t[q + kv], None), (leaf(39),)),
    "153799": Known(lambda: (lambda s, b, h, q, kv: s + (q - kv), causal), q=(1, 1, 33, 16)),
    "157677": Known(lambda t: (lambda s, b, h, q, kv: s + t[b, h, q, kv], None), (leaf(2, 2, 20, 20),), (2, 2, 20, 8)),
}


@pytest.mark.one_in(18)
@pytest.mark.parametrize("name", KNOWN)
def test_gradients_are_those_of_float64(name: str):
    row = KNOWN[name]
    check(tensors(row.q, row.kv, row.dtype), row.mods, row.parameters, row.limit)


@pytest.mark.nightly
def test_146377_gradients_of_strided_keys():
    """Zeros have gradient 0, also after a call of another length, and for keys whose rows are apart in memory."""
    for length in (20, 12, 20):
        q = torch.zeros(1, 2, length, 8, device=DEVICE, requires_grad=True)
        packed = torch.zeros(1, length, 4, 2, 8, device=DEVICE, requires_grad=True)
        k, v = (packed[:, :, n].transpose(1, 2) for n in (1, 3))
        nl.attention(q, k, v, mask_mod=causal).sum().backward()
        assert not q.grad.any()
        assert not packed.grad[:, :, :3].any()
        weights = torch.ones(length, length, device=DEVICE).tril()
        wanted = (weights / weights.sum(1, keepdim=True)).sum(0)
        assert torch.allclose(packed.grad[0, :, 3, 0, 0], wanted, rtol=1e-6)


def test_136232_the_log_sum_exp_with_a_block_mask():
    """The output times exp(lse), with blocks that do not divide the length."""
    mask = create_block_mask(causal, None, None, 20, 20, device=DEVICE, BLOCK_SIZE=16)
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    out, lse = nl.attention(q, k, v, block_mask=mask, return_lse=True)
    found = torch.autograd.grad((out * lse.exp()[..., None]).sum(), (q, k, v))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    hidden = torch.ones(20, 20, device=DEVICE).triu(1).bool()
    scores = (wide[0] @ wide[1].mT * 8**-0.5).masked_fill(hidden, -torch.inf)
    for ours, theirs in zip(found, torch.autograd.grad((scores.exp() @ wide[2]).sum(), wide), strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_166722_a_tensor_that_is_read_in_vain():
    q, k, v = tensors((1, 2, 20, 8))
    weight = leaf(2)

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        weight[h]
        return score

    nl.attention(q.requires_grad_(), k, v, score_mod=score_mod).sum().backward()
    assert weight.grad is None or not weight.grad.any()
    assert q.grad.any()


@pytest.mark.nightly
def test_145050_scores_without_gradients():
    """Neither q nor k counts, and only v gets a gradient other than 0; a table in their place gets its own."""
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    table = leaf(20, 20)
    out = nl.attention(q, k, v, score_mod=lambda s, b, h, i, j: table[i, j])
    found = torch.autograd.grad(out.square().sum(), (q, k, v, table), allow_unused=True)
    wide_v, wide_table = (t.detach().double().requires_grad_() for t in (v, table))
    expected = torch.autograd.grad((wide_table.softmax(-1) @ wide_v).square().sum(), (wide_v, wide_table))
    assert all(t is None or not t.any() for t in found[:2])
    for ours, theirs in zip(found[2:], expected, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    constant = nl.attention(q, k, v, score_mod=lambda s, b, h, i, j: (i - j) * 0.25)
    (of_v,) = torch.autograd.grad(constant.sum(), v)
    rows = torch.arange(20.0, device=DEVICE, dtype=torch.float64)
    weights = ((rows[:, None] - rows) * 0.25).softmax(-1).sum(0)
    assert torch.allclose(of_v.double(), weights[:, None].expand(1, 2, 20, 8), rtol=1e-5)
