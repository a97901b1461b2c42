"""The largest, the k-th and the middle element of a row, and what is chosen by them, beside PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import neptune_lab as nl
from neptune_lab.errors import DefinitionError

inf, nan = float("inf"), float("nan")
EQUAL = torch.tensor([[0.5, 2.0, 0.5, -1.0], [nan, 1.0, nan, -inf], [inf, -inf, 0.0, -0.0], [nan] * 4])


def router(x, w):
    p = (x @ w).softmax(-1)
    weights, experts = torch.topk(p, 2, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter(1, experts, weights), experts


def sparsemax(x):
    ordered = x.topk(x.shape[-1]).values
    count = torch.arange(1, x.shape[-1] + 1)
    inside = (ordered > (ordered.cumsum(-1) - 1) / count).sum(-1, keepdim=True)
    threshold = (ordered.cumsum(-1).gather(-1, inside - 1) - 1) / inside
    return (x - threshold).clamp(min=0)


@pytest.mark.nightly
def test_rows_with_equal_elements_infinities_and_nan():
    """NaN is the largest; `median` gives the first NaN, `nanmedian` leaves them out."""

    def function(x):
        return x.topk(3)[0], x.topk(2, 0, largest=False)[0], x.kthvalue(2)[0], *x.median(1), x.nanmedian(1)[0]

    for ours, theirs in zip(nl.compile(nl.from_torch(function, EQUAL))(EQUAL), function(EQUAL), strict=True):
        assert torch.equal(ours.nan_to_num(7), theirs.nan_to_num(7))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("function", "count"), [(router, 2), (sparsemax, 1)])
def test_what_is_chosen_and_its_gradient(function, count: int):
    inputs = [torch.randn(n, 6, requires_grad=True) for n in (3, 6)[:count]]
    made = nl.compile(nl.from_torch(function, *(t.detach() for t in inputs))).with_gradients()
    wide = [t.detach().double().requires_grad_() for t in inputs]
    ours, theirs = (pytree.tree_leaves(f(*given)) for f, given in ((made, inputs), (function, wide)))
    for got, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-5, atol=1e-6)
    given = torch.randn(ours[0].shape)
    found = torch.autograd.grad(ours[0], inputs, given)
    for got, wanted in zip(found, torch.autograd.grad(theirs[0], wide, given.double()), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)


QUANTILES = {
    "medians": lambda x: (x.median(), x.nanmedian()),
    "quantiles": lambda x: (x.quantile(0.3, 1), x.sum().quantile(0.2)),
    "all elements": lambda x: (x.quantile(0.5, keepdim=True),),
    "at elements": lambda x: tuple(x.quantile(0.7, 1, interpolation=how) for how in ("nearest", "lower", "higher")),
    "between": lambda x: (x.quantile(0.6, -2, keepdim=True, interpolation="midpoint"),),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", QUANTILES)
def test_medians_and_quantiles(name: str):
    """Also of rows with NaN and equal elements; the elements that are read have the gradient."""
    function = QUANTILES[name]
    wide = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    kernel = nl.compile(nl.from_torch(function, wide))
    for x in (wide, EQUAL):
        for ours, theirs in zip(kernel(x) if len(function(x)) > 1 else (kernel(x),), function(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, equal_nan=True)
    found, wanted = (wide.clone().requires_grad_() for _ in range(2))
    results = kernel.with_gradients()(found)
    for made in (results if isinstance(results, tuple) else (results,), function(wanted)):
        sum((n + 1) * t.sum() for n, t in enumerate(made)).backward()
    torch.testing.assert_close(found.grad, wanted.grad)


@pytest.mark.parametrize("function", [lambda x: x.topk(0)[0] + x.sum(), lambda x: x[:, :0].kthvalue(1)[0]])
def test_nothing_to_order(function):
    with pytest.raises((DefinitionError, RuntimeError, IndexError), match=r"element|selected"):
        nl.from_torch(function, torch.ones(2, 3))
