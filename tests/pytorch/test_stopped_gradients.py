"""A gradient that would be lost without a word is refused: mods that stop it, tangents, and what has no backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_reference import DEVICE, tensors
from torch.autograd import forward_ad

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError

TABLE = torch.tensor([0.5, -1.0, 2.0, 0.25], device=DEVICE)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 2 * grads[0]


def _read_without_gradient(score, b, h, q, kv):
    with torch.no_grad():
        slope = TABLE[h]
    return score * slope


def _views_without_gradient(score, b, h, q, kv):
    with torch.no_grad():
        doubled = TABLE * 2
    return score * doubled[h]


@torch.no_grad()
def _decorated(score, b, h, q, kv):
    return score - 0.5 * kv


STOPS: dict[str, Callable[..., Any]] = {
    "a score": lambda score, b, h, q, kv: score + score.detach() * TABLE[h],
    "a captured tensor": lambda score, b, h, q, kv: score * TABLE.detach()[h],
    "an element": lambda score, b, h, q, kv: score * TABLE[h].detach(),
    "torch.detach": lambda score, b, h, q, kv: score * torch.detach(TABLE[h]),
    "data": lambda score, b, h, q, kv: score * TABLE.data[h],
    "data of a score": lambda score, b, h, q, kv: score * score.data,
    "straight through": lambda score, b, h, q, kv: score + (torch.round(score) - score).detach(),
    "a Function that changes nothing": lambda score, b, h, q, kv: _Doubled.apply(score),
    "an element under no_grad": _read_without_gradient,
    "an array under no_grad": _views_without_gradient,
    "a decorator": _decorated,
}


@pytest.mark.parametrize("name", STOPS)
def test_a_score_mod_that_stops_a_gradient_is_refused(name: str):
    q, k, v = (t.requires_grad_() for t in tensors((1, 4, 3, 8), (1, 4, 5, 8)))
    with pytest.raises(DefinitionError, match=r"stops a gradient(.|\n)*test_stopped_gradients.py, line \d+"):
        nl.attention(q, k, v, score_mod=STOPS[name])


def _positions_without_gradient(score, b, h, q, kv):
    with torch.no_grad():
        near = (q - kv).abs() < 3
    return torch.where(near, score, score * TABLE[h].clone())


@pytest.mark.parametrize(
    "mods",
    [
        {"score_mod": _positions_without_gradient},
        {"mask_mod": lambda b, h, q, kv: TABLE.detach()[h] * kv < 2},
    ],
)
def test_other_mods_stop_none(mods: dict[str, Any]):
    op = nl.operators.attention.general(1, 4, 3, 5, 8, dtype="float32", live=True, **mods)
    assert op.gradient_stops is None or op.gradient_stops() is None


def test_a_call_that_records_nothing_takes_such_a_mod():
    q, k, v = tensors((1, 4, 3, 8), (1, 4, 5, 8))
    found = nl.attention(q, k, v, score_mod=STOPS["a score"])
    expected = torch.softmax((q @ k.mT * 8**-0.5) * (1 + TABLE[:, None, None]), -1) @ v
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_tangents_of_captured_tensors_are_refused():
    q, k, v = tensors((1, 4, 3, 8), (1, 4, 5, 8))
    with forward_ad.dual_level():
        slopes = forward_ad.make_dual(TABLE, TABLE)
        with pytest.raises(LaunchError, match=r"shape \(4,\) carries a forward gradient"):
            nl.attention(q, k, v, score_mod=lambda score, b, h, q, kv: score * slopes[h])


def _paged(score_mod: Any = None, mask_mod: Any = None) -> torch.Tensor:
    q, cache = torch.ones(1, 4, 1, 8, device=DEVICE), torch.ones(2, 4, 4, 8, device=DEVICE)
    pages = torch.tensor([[1, 0]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([6], dtype=torch.int32, device=DEVICE)
    return nl.paged_attention(q, cache, cache, pages, lengths, score_mod=score_mod, mask_mod=mask_mod)


def test_caches_of_pages_refuse_captured_tensors_with_gradients():
    slopes = TABLE.clone().requires_grad_()
    with pytest.raises(LaunchError, match=r"shape \(4,\) records gradients"):
        _paged(lambda score, b, h, q, kv: score * slopes[h])
    assert not _paged(mask_mod=lambda b, h, q, kv: slopes[h] < 3).requires_grad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(TABLE, TABLE)
        with pytest.raises(LaunchError, match="carries a forward gradient"):
            _paged(lambda score, b, h, q, kv: score * dual[h])


def test_they_are_refused_in_graphs_too():
    slopes = TABLE.clone().requires_grad_()
    compiled = torch.compile(lambda: _paged(lambda score, b, h, q, kv: score * slopes[h]), backend="eager")
    with pytest.raises(Exception, match=r"shape \(4,\) records gradients"):
        compiled()
