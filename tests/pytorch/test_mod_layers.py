"""Layers of captured tensors in a mod, beside the definition that maps the mod over the positions in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from mod_table import Row, draw, whole

from neptune_lab.errors import DefinitionError

SIZES = (1, 2, 2, 5, 6, 16)
TABLE, QUERIES, KEYS, MIXED = draw(3, 2, seed=1), draw(5, 4, seed=2), draw(6, 4, seed=3), draw(4, 4, seed=4)
GATES, KINDS = draw(2, 6, seed=5), whole(6, high=3, seed=6)
HIDDEN = torch.tensor([0.5, -1.0, 0.25, float("-inf"), 1.0, 2.0])
BYTES = torch.tensor([100, 90, -128, 127, 3, 60], dtype=torch.int8)


def every(s, b, h, q, kv):
    """One mod for all, since each compiles."""
    s = s + torch.log_softmax(TABLE, 0)[kv % 3, h] + F.log_softmax(TABLE[q % 3], dim=-1)[h]
    s = s + torch.einsum("i,ij,j->", QUERIES[q], MIXED, KEYS[kv]) + torch.einsum("i,i", QUERIES[q], KEYS[kv])
    s = s + (F.layer_norm(QUERIES[q], (4,), MIXED[0]) * F.rms_norm(KEYS[kv], (4,), eps=1e-5)).sum()
    s = s + F.linear(QUERIES[q], MIXED, KEYS[kv]).tanh().sum() + F.embedding(KINDS[kv], TABLE)[h]
    s = s + (F.one_hot(KINDS, 3)[kv] * TABLE[:, h]).sum() + (F.one_hot(q % 3, 3) * TABLE[:, 0]).sum()
    return s + torch.cumsum(F.logsigmoid(GATES), -1)[h, kv] - GATES.cumsum(1)[h, -1]


def some(s, b, h, q, kv):
    """A softmax, a product, a norm, a table and a sum so far."""
    s = s + F.log_softmax(TABLE[q % 3], dim=-1)[h] + torch.einsum("i,i", QUERIES[q], KEYS[kv])
    return s + F.rms_norm(KEYS[kv], (4,), eps=1e-5).sum() + F.embedding(KINDS[kv], TABLE)[h] + GATES.cumsum(1)[h, kv]


@pytest.mark.parametrize("mod", [some, pytest.param(every, marks=pytest.mark.nightly)])
def test_layers_of_captured_tensors(mod):
    assert Row(score=mod, sizes=SIZES).error() < 1e-5


def ends_and_axes(s, b, h, q, kv):
    """Indices that count from the end, axes that are not named, infinities, and integers that leave their dtype."""
    s = s + HIDDEN.cumsum(0)[kv] + GATES.cumsum(-2)[h - 1, q] + (GATES > 0).cumsum(1)[h, kv - 6]
    s = s + BYTES.cumsum(0, dtype=torch.int8)[kv] / 64 + BYTES.sum(dtype=torch.int8) * kv / 640
    s = s + F.one_hot(kv % 3, 3)[h - 1] + F.softmax(GATES, _stacklevel=5)[h, kv] + F.log_softmax(MIXED)[q % 4, h]
    return s + F.layer_norm(MIXED, [4, 4])[h, q % 4] + GATES.sum([0])[kv] + torch.amax(GATES, [0, 1]) * q


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_layers_at_ends_without_axes_and_past_a_dtype():
    assert Row(score=ends_and_axes, sizes=SIZES).error() < 1e-5


@pytest.mark.parametrize(
    ("mod", "cause"),
    [
        (lambda s, b, h, q, kv: s + torch.einsum("...i,i", QUERIES[q], KEYS[kv]), "a letter for each"),
        (lambda s, b, h, q, kv: s + torch.einsum("i,i", QUERIES[q], GATES[h]), "of the shapes"),
        (lambda s, b, h, q, kv: s + torch.einsum("i->j", QUERIES[q])[0], "no operand has"),
        (lambda s, b, h, q, kv: s + GATES.cumsum(1)[h, kv + 1], "reaches 6"),
        (lambda s, b, h, q, kv: s + F.one_hot(KINDS, 3)[kv, kv], "reaches 5"),
        (lambda s, b, h, q, kv: s + F.layer_norm(QUERIES[q], (3,)).sum(), "has the shape"),
        (lambda s, b, h, q, kv: s + F.rms_norm(QUERIES[q], (4,)).sum(), "eps"),
        (lambda s, b, h, q, kv: s + F.one_hot(KINDS)[kv, 0], "number of classes"),
        (lambda s, b, h, q, kv: s + F.embedding(KINDS[kv], TABLE, padding_idx=0)[h], "padding_idx"),
    ],
)
def test_what_a_layer_does_not_take_is_refused(mod, cause: str):
    with pytest.raises(DefinitionError, match=cause) as raised:
        Row(score=mod, sizes=SIZES).found()
    assert raised.value.help
