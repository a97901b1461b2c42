"""Which nodes of a graph form regions, and that the regions never make a cycle."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn import functional as F
from torch_regions.graphs import groups_of, is_acyclic, traced

from neptune_lab.torch_regions.carve import carved
from neptune_lab.torch_regions.extract import extracted, hidden_by
from neptune_lab.torch_regions.holdings import chains

X = torch.randn(2, 16, 32)
Q = torch.randn(2, 4, 16, 8)
W = torch.randn(32, 32)
V = torch.randn(96, 32)
ROW = torch.randn(32)


def rms_norm(x, weight):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 3.0, dim=-1) @ v


def test_a_norm_between_two_linear_layers():
    def function(x, w1, weight, w2):
        return rms_norm(x @ w1, weight) @ w2

    assert groups_of(function, X, W, ROW, W) == [["pow", "mean", "add", "rsqrt", "mul", "mul"]]


def test_attention_of_two_products_and_a_softmax():
    (group,) = groups_of(attention, Q, Q, Q)
    assert [n for n in group if n in ("bmm", "_softmax", "div")] == ["bmm", "div", "_softmax", "bmm"]


def test_attention_of_one_key():
    (group,) = groups_of(attention, Q, Q[:, :, :1], Q[:, :, :1])
    assert [n for n in group if n in ("bmm", "_softmax")] == ["bmm", "_softmax", "bmm"]


def test_attention_by_einsum():
    """Its products have a further dimension of one, which a view puts last and drops."""

    def function(q, k, v):
        scores = torch.einsum("bihd,bjhd->bhij", q, k)
        return torch.einsum("bhij,bjhd->bihd", torch.softmax(scores / 3.0, dim=-1), v)

    (group,) = groups_of(function, Q, Q, Q)
    assert [n for n in group if n in ("bmm", "_softmax")] == ["bmm", "_softmax", "bmm"]


def test_attention_of_matrices():
    (group,) = groups_of(attention, X[0], X[0], X[0])
    assert [n for n in group if n in ("mm", "_softmax")] == ["mm", "_softmax", "mm"]


def test_a_norm_of_the_queries_and_the_attention_are_two_regions():
    def function(q, k, v, weight):
        return F.scaled_dot_product_attention(rms_norm(q, weight), k, v)

    first, second = groups_of(function, Q, Q, Q, torch.randn(8))
    assert "mean" in first
    assert len(second) == 1


def test_a_residual_that_a_later_layer_reads_makes_no_cycle():
    def function(x, weight, w):
        for _ in range(2):
            x = x + rms_norm(x, weight) @ w
        return rms_norm(x, weight)

    groups = groups_of(function, X, ROW, W)
    assert [g.count("mean") for g in groups] == [1, 1, 1]
    assert [g.count("add") for g in groups] == [1, 2, 2]  # the residual joins the norm that reads it


def test_two_norms_in_a_row_are_one_region():
    (group,) = groups_of(lambda x, y, w: rms_norm(y + rms_norm(x, w), w), X, X, ROW)
    assert group.count("mean") == 2


def test_a_loss_takes_the_product_whose_result_it_alone_reads():
    target = torch.zeros(32, dtype=torch.int64)

    def loss(x, w, t):
        return F.cross_entropy(x.view(32, 32) @ w.t(), t)

    def loss_and_logits(x, w, t):
        logits = x.view(32, 32) @ w.t()
        return logits, F.cross_entropy(logits, t)

    (group,) = groups_of(loss, X, V, target, weights=(1,))
    assert "mm" in group
    (group,) = groups_of(loss_and_logits, X, V, target, weights=(1,))
    assert "mm" not in group
    assert "_log_softmax" in group


def test_a_view_after_a_loss_that_took_its_product_is_left_out():
    def loss(x, w, t):
        return F.cross_entropy(x.view(32, 32) @ w.t(), t, reduction="none").view(2, 16)

    (group,) = groups_of(loss, X, V, torch.zeros(32, dtype=torch.int64), weights=(1,))
    assert "mm" in group
    assert group[-1] != "view"


def test_a_product_of_what_is_not_a_softmax_stays_apart():
    def function(x, weight, w):
        y = rms_norm(x, weight)
        return torch.softmax(y, -1), y @ w

    (group,) = groups_of(function, X[0], ROW, W)
    assert "mm" not in group


def test_a_router_leaves_its_product_to_torch():
    (group,) = groups_of(lambda x, w: torch.softmax(x.view(32, 32) @ w.t(), -1), X, V, weights=(1,))
    assert group == ["_softmax"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w1, w2: F.gelu(x @ w1) @ w2,
        lambda x, *_: (x * 2 + 1).relu(),
        lambda x, w, _: x @ w + x,
        lambda x, *_: x.sum(-1),
        lambda x, *_: x.sum(-1) * 2,
        lambda x, *_: x.transpose(0, 1)[..., :8],
    ],
)
def test_what_holds_no_chain_of_reductions_stays_apart(function):
    assert groups_of(function, X, W, W) == []


def test_batched_products_with_a_weight_stay_apart():
    def experts(x, w1, w2):
        return F.silu(torch.bmm(x, w1)) @ w2

    def retention(q, k, v):
        return (q @ k.transpose(-2, -1) * 0.5) @ v

    w = torch.randn(2, 32, 32)
    assert groups_of(experts, X, w, w, weights=(1, 2)) == []
    assert len(groups_of(retention, Q, Q, Q)) == 1


def test_positions_that_layers_share_stay_apart():
    def function(q, k, v, angle):
        cos = angle.cos()
        for _ in range(2):
            q = F.scaled_dot_product_attention(q * cos, k * cos, v)
        return q

    groups = groups_of(function, Q, Q, Q, Q[:1, :1])
    assert len(groups) == 2
    assert not any("cos" in group for group in groups)


def test_what_a_region_holds():
    def block(x, weight, q, k, v):
        return rms_norm(x, weight), F.layer_norm(x, (32,)), attention(q, k, v), torch.softmax(x, -1)

    graph = traced(block, X, ROW, Q, Q, Q)
    kinds = [h.kind for group in carved(graph) for h in chains(group)]
    assert sorted(kinds) == ["attention", "norm", "norm", "softmax"]


def _random_function(seed: int):
    """A random function of norms, softmaxes, products and sums, each of earlier values."""

    def function(x, w):
        draw = random.Random(seed).randrange
        values = [x, x.cos()]
        for _ in range(14):
            a, b = values[draw(len(values))], values[draw(len(values))]
            made = (
                lambda a=a, b=b: a + b,
                lambda a=a: torch.softmax(a, -1),
                lambda a=a: a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1),
                lambda a=a: a @ w,
                lambda a=a, b=b: torch.softmax(a @ b.transpose(-2, -1), -1) @ b,
                lambda a=a, b=b: a - b.amax(-1, keepdim=True),
                lambda a=a, b=b: torch.cat([a[..., :16], b[..., 16:]], -1),
                lambda a=a: a.sin(),
            )
            values.append(made[draw(len(made))]())
        return values[-1], values[-3]

    return function


@pytest.mark.one_in(15)
@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_have_no_cycle(seed: int):
    graph = traced(_random_function(seed), X, W)
    groups = carved(graph)
    assert is_acyclic(graph, groups)
    assert all(chains(group) for group in groups)
    extracts = [extracted(group, hidden_by(groups)) for group in groups]
    inner = {n for group in groups for n in group} - {n for extract in extracts for n in extract.outputs}
    assert not inner.intersection(n for extract in extracts for n in extract.inputs)
