"""Where gradients stop: what detaches, functions with a derivative of their own, and what is written in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gradients import gradients

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.operators import training

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def softened(x):
    return torch.softmax(x / 0.07, -1)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


@torch.no_grad()
def largest(x):
    return x.amax(-1, keepdim=True) * 2


def shifted_by_a_constant(x):
    with torch.no_grad():
        m = x.amax(-1, keepdim=True)
        s = (x - m).exp().sum(-1, keepdim=True)
    return (x - m).exp() / s


def switched_back(x):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
        c = x * 5
    return a * b + c * (x * 7)


def weights_of(x, m):
    e = (x - m).exp()
    return e / e.sum(-1, keepdim=True)


def straight_through_softmax(x):
    soft = x.softmax(-1)
    hard = torch.zeros_like(soft).scatter_(-1, soft.max(-1, keepdim=True)[1], 1.0)
    return hard - soft.detach() + soft


def written_parts(x):
    y, z = x.clone(), x.detach().clone()
    y[:, 2:4] = x.detach()[:, :2] * 3
    z[:, 1] += x[:, 0]
    with torch.no_grad():
        w = x * 2
    w *= x
    return y * z + w


def written_after_a_detach(x):
    y = x * 2
    kept = y.detach()
    y.mul_(x)
    return kept * y


STOPS = {
    "detach": lambda x: (x.detach() * x).sum(-1),
    "data": lambda x: x * x.data,
    "a straight-through estimator": lambda x: x + (x.round() - x).detach(),
    "no_grad": lambda x: x * largest(x),
    "a switch": lambda x: x * torch.set_grad_enabled(False)(lambda: x * 2)(),
    "switched back": switched_back,
    "a constant row": shifted_by_a_constant,
    "a softmax that keeps in range": lambda x: weights_of(x, x.amax(-1, keepdim=True).detach()),
    "a softmax that also gives its maximum": lambda x: (lambda m: weights_of(x, m) + m)(
        x.amax(-1, keepdim=True).detach()
    ),
    "a sum that keeps in range": lambda x: (x - x.amax(-1, keepdim=True).detach()).exp().sum(-1).log(),
    "a sum": lambda x: x.exp() / x.exp().sum(-1, keepdim=True).detach(),
    "weights": lambda x: torch.softmax(x, -1).detach() * torch.softmax(x + x.detach() ** 2, -1),
    "a focal loss": lambda x: ((1 - torch.softmax(x, -1).detach()) ** 2 * torch.log_softmax(x, -1)).sum(-1),
    "a factor of a product": lambda x: (x.detach() @ x.T).softmax(-1) @ x,
    "a result": lambda x: (x.square().sum(-1), x.abs().sum(-1).detach()),
    "a whole number": lambda x: torch.where(x > 0, 1.0, x.detach()) * x,
    "in place beside a detach": lambda x: (x * 2).relu_() * x.detach(),
    "one of a softmax, straight through": straight_through_softmax,
    "a part of a copy": written_parts,
}


def in_place_without_gradient(x):
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
    return y * x


REFUSED = {
    "a function of autograd": lambda x: Straight.apply(x) * x,
    "in place, detached": lambda x: (x * 2).detach_() * x,
    "in place after a detach": written_after_a_detach,
    "in place without a gradient": in_place_without_gradient,
    "in place through data": lambda x: (x * 2).data.mul_(2) * x,
    "rows of a table that get no gradient": lambda x: F.embedding(torch.tensor([1, 2]), x, padding_idx=2),
    "rows of a table that get a mean": lambda x: F.embedding(torch.tensor([1, 1]), x, scale_grad_by_freq=True),
}
GOES_ON = {
    "no_grad around what has no gradient": lambda x: x * torch.no_grad()(lambda: torch.arange(8.0) * 2)(),
    "a mask that is detached": lambda x: torch.where((x > 0).detach(), x, 0.0),
    "integers": lambda x: x * x.argmax(-1, keepdim=True).detach(),
}


def listed(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.one_in(21)
@pytest.mark.parametrize("name", STOPS)
def test_a_gradient_stops_where_pytorchs_does(name: str):
    """The definition of the backward pass, in float64."""
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    op = nl.from_torch(STOPS[name], x.detach().float())
    given = {f"d_{t.name}": torch.randn(t.shape, dtype=torch.float64).numpy() for t in op.outputs}
    found = gradients(training(op), {"x": x.detach().numpy()}, given)["x"]
    outs = [(out, torch.from_numpy(g)) for out, g in zip(listed(STOPS[name](x)), given.values(), strict=True)]
    outs = [(out, g) for out, g in outs if out.requires_grad]
    (expected,) = torch.autograd.grad([out for out, _ in outs], x, [g for _, g in outs])
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.nightly
def test_a_kernel_whose_gradient_stops():
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    function = lambda x: (STOPS["a result"](x)[1], STOPS["a softmax that keeps in range"](x).square())  # noqa: E731
    fixed, found = nl.compile(nl.from_torch(function, x.detach())).with_gradients()(x)
    assert (fixed.requires_grad, found.requires_grad) == (False, True)
    (ours,), (theirs,) = (torch.autograd.grad(out.sum(), x) for out in (found, function(x)[1]))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", REFUSED)
def test_a_function_with_a_derivative_of_its_own_is_refused(name):
    op = nl.from_torch(REFUSED[name], torch.randn(3, 8))
    with pytest.raises(DefinitionError, match=r"a derivative of its own \((.|\n)*test_gradient_stops.py, line"):
        training(op)


def test_marks_change_no_kernel():
    def softened(x, stop):
        return weights_of(x, stop(x.amax(-1, keepdim=True))) @ stop(x).T

    x = torch.randn(3, 8)
    ops = [nl.from_torch(lambda x, s=s: softened(x, s), x) for s in (lambda x: x, torch.detach)]
    assert ops[0].program == ops[1].program == ops[0].marked != ops[1].marked


@pytest.mark.nightly
def test_a_derivative_of_its_own_counts_where_it_is_asked_for():
    x, y = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    function = lambda x, y: (x * Straight.apply(y)).softmax(-1)  # noqa: E731
    ours = nl.compile(nl.from_torch(function, x, y)).with_gradients()
    given = x.clone().requires_grad_()
    found, expected = (torch.autograd.grad(f(given, y).square().sum(), given) for f in (ours, function))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(DefinitionError, match="a derivative of its own"):
        ours(given, y.clone().requires_grad_())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", GOES_ON)
def test_what_stops_no_gradient_is_differentiated(name):
    assert training(nl.from_torch(GOES_ON[name], torch.randn(3, 8))).wrt == ("x",)
