"""The exercises on functions of PyTorch: what is right, and what each likely wrong answer is told."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from neptune_widgets.course import from_pytorch as exercises


def scores_of(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def chosen(q, k, v, gate):
    scores = scores_of(q, k)
    scores = torch.where(gate > 0, 20 * torch.tanh(scores / 20), scores)
    return torch.softmax(scores, -1) @ v


def the_other_way_round(q, k, v, gate):
    scores = scores_of(q, k)
    scores = torch.where(gate <= 0, scores, 20 * torch.tanh(scores / 20))
    return torch.softmax(scores, -1) @ v


def always(q, k, v, gate):
    return torch.softmax(20 * torch.tanh(scores_of(q, k) / 20) + 0 * gate, -1) @ v


def from_one(q, k, v, gate):
    scores = scores_of(q, k)
    return torch.softmax(torch.where(gate > 1, 20 * torch.tanh(scores / 20), scores), -1) @ v


def from_zero(q, k, v, gate):
    scores = scores_of(q, k)
    return torch.softmax(torch.where(gate >= 0, 20 * torch.tanh(scores / 20), scores), -1) @ v


def in_one_line(q, k, v, gate):
    scores = scores_of(q, k)
    return torch.softmax(20 * torch.tanh(scores / 20) if gate > 0 else scores, -1) @ v


def transposed(q, k, v, gate):
    return chosen(q, k, v, gate).mT


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", [chosen, the_other_way_round])
def test_right_gates(function: Any):
    verdict = exercises.without_branch(function)
    assert verdict, verdict
    assert "right for the gates -1, 0, 0.5, 2" in verdict.text


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (exercises.gated, "depends on the values of a tensor"),
        (in_one_line, "line"),
        (always, "with gate = -1 the largest difference"),
        (from_zero, "with gate = 0 the largest difference"),
        (from_one, "with gate = 0.5 the largest difference"),
        (transposed, "has the shape (1, 2, 16, 64), expected (1, 2, 64, 16)"),
        (3, "expected a function"),
    ],
)
def test_wrong_gates_are_told_why(function: Any, why: str):
    verdict = exercises.without_branch(function)
    assert verdict.state == "wrong"
    assert why in verdict.text


def positions(q):
    n = q.shape[-2]
    return torch.arange(n)[:, None], torch.arange(n)[None, :]


def attention(q, k, v, hidden):
    return torch.softmax(scores_of(q, k).masked_fill(hidden, float("-inf")), -1) @ v


def by_positions(q, k, v):
    i, j = positions(q)
    return attention(q, k, v, (j > i) | (i - j >= 16))


def by_triangles(q, k, v):
    mask = torch.ones(q.shape[-2], q.shape[-2]).tril().triu(-15).bool()
    return attention(q, k, v, ~mask)


def too_wide(q, k, v):
    i, j = positions(q)
    return attention(q, k, v, (j > i) | (i - j > 16))


def sees_ahead(q, k, v):
    i, j = positions(q)
    return attention(q, k, v, i - j >= 16)


def causal_alone(q, k, v):
    i, j = positions(q)
    return attention(q, k, v, j > i)


def after_softmax(q, k, v):
    i, j = positions(q)
    return (torch.softmax(scores_of(q, k), -1) * ((j <= i) & (i - j < 16))) @ v


MASK = exercises.window_mask(64)


def held(q, k, v):
    return exercises.windowed(q, k, v, MASK)


@pytest.mark.nightly
@pytest.mark.parametrize("function", [by_positions, by_triangles])
def test_right_masks(function: Any):
    verdict = exercises.computed_mask(function)
    assert verdict, verdict
    assert "loads q, k and v, and no mask" in verdict.text


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (held, "loads a tensor of 4096 elements that the function holds"),
        (too_wide, "the largest difference is"),
        (sees_ahead, "the largest difference is"),
        (causal_alone, "the largest difference is"),
        (after_softmax, "the largest difference is"),
        (exercises.windowed, "missing 1 required positional argument"),
        ("mask", "expected a function"),
    ],
)
def test_wrong_masks_are_told_why(function: Any, why: str):
    verdict = exercises.computed_mask(function)
    assert verdict.state == "wrong"
    assert why in verdict.text


RIGHT = {
    "norm_and_product": "one kernel",
    "rounded_product": "several kernels",
    "softmax_product": "one kernel",
    "ranked_product": "refused",
}


@pytest.mark.nightly
def test_the_right_prediction():
    verdict = exercises.predicted(RIGHT)
    assert verdict, verdict
    assert "ranked_product: refused" in verdict.text


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({**RIGHT, "norm_and_product": "several kernels"}, "1 of 4 are something else; look at `norm_and_product`"),
        (dict.fromkeys(RIGHT, "one kernel"), "2 of 4 are something else; look at `rounded_product`"),
        ({**RIGHT, "ranked_product": "several kernels"}, "look at `ranked_product`"),
        ({"softmax_product": "one kernel"}, "expected one of 'one kernel'"),
        ({**RIGHT, "ranked_product": "two"}, "expected one of"),
        (4, "expected one of"),
    ],
)
def test_wrong_predictions_are_told_where(answer: Any, why: str):
    verdict = exercises.predicted(answer)
    assert verdict.state == "wrong"
    assert why in verdict.text
