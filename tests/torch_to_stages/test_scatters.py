"""What is written and folded at positions, in kernels: gradients, positions that repeat, no elements, random calls."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.loop_ir.run import run_wide

SCATTERED = torch.tensor([[0, 2, 0, 1], [1, 1, 1, 1], [2, 0, 1, 0]])
# By name: a function of x and y with whole elements, whose maxima repeat, so that gradients are shared.
TRAINED = {
    "added": lambda x, y: x.scatter_add(1, SCATTERED, y),
    "means": lambda x, y: x.scatter_reduce(1, SCATTERED, y, "mean", include_self=False),
    "maxima": lambda x, y: x.scatter_reduce(1, SCATTERED, y, "amax"),
    "put": lambda x, y: x.index_put((torch.tensor([2, 0]),), y[:2]),
    "put at a mask": lambda x, y: x.index_put((x > 0,), y[0, 0]),
    "bags": lambda x, y: F.embedding_bag(SCATTERED[:, :2], y, mode="max") + F.embedding_bag(SCATTERED, x),
    "bags of any length": lambda x, y: F.embedding_bag(SCATTERED[0], x, torch.tensor([0, 1, 1])) * y,
    "edges": lambda x, y: x.index_add(0, SCATTERED[0, :3], y[SCATTERED[1, :3]]),
    "running": lambda x, y: x.cumsum(1) * y.cumprod(0) + x.logcumsumexp(0) + y.cummax(1).values - x.cummin(0).values,
    "resized": lambda x, y: F.interpolate(x[None], size=7, mode="linear")[0] + y.sum(),
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", TRAINED)
def test_gradients_are_those_of_torch(name: str):
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(3, 4, generator=generator).round() for _ in range(2)]
    ours, theirs = ([t.clone().to(d).requires_grad_() for t in given] for d in (torch.float32, torch.float64))
    out = nl.compile(nl.from_torch(TRAINED[name], *given)).with_gradients()(*ours)
    want = TRAINED[name](*theirs)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-6)
    cotangent = torch.randn(want.shape, generator=generator)
    out.backward(cotangent)
    want.backward(cotangent.double())
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5, check_dtype=False)


def test_of_equal_positions_the_last_one_counts():
    x, y = torch.zeros(1, 3), torch.arange(12.0)[None]
    places = torch.tensor([[0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0]])

    def function(x, y):
        return x.scatter(1, places, y), x.scatter(1, places[:, :4], y), x[0].index_put((places[0, :9],), y[0, :9])

    many, few, put = nl.compile(nl.from_torch(function, x, y))(x, y)
    assert [t.flatten().tolist() for t in (many, few, put)] == [[11, 9, 0], [2, 3, 0], [8, 7, 0]]


def test_bags_between_offsets():
    table, ids = torch.eye(4), torch.arange(4)
    for offsets in ([0, 1], [0, 2]):

        def function(table, ids, offsets=offsets):
            return F.embedding_bag(ids, table, torch.tensor(offsets), mode="sum")

        operator = nl.from_torch(function, table, ids)
        arrays = {"table": table.numpy(), "ids": ids.numpy(), **operator.captured}
        assert run_wide(operator.program, arrays)["out"].tolist() == function(table, ids).tolist()


@pytest.mark.nightly
def test_a_loss_whose_limit_has_no_gradient_is_trained():
    """A variance below the limit counts as the limit, and the gradient passes through it, as PyTorch's does."""
    x, variance = torch.randn(2, 3).requires_grad_(), torch.tensor([[0.0, 0.5, 2.0], [1e-9, 0.1, 1.0]]).requires_grad_()
    function = lambda x, v: F.gaussian_nll_loss(x, x * 2, v, eps=0.25)  # noqa: E731
    kernel = nl.compile(nl.from_torch(function, x.detach(), variance.detach())).with_gradients()
    found, expected = (torch.autograd.grad(f(x, variance), (x, variance)) for f in (kernel, function))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_results_that_are_none_are_left_out():
    kernel = nl.compile(nl.from_torch(lambda x: (None, x * 2, {"weights": None, "sum": x.sum()}), torch.ones(2, 3)))
    doubled, total = kernel(torch.ones(2, 3))
    assert (doubled.sum().item(), total.item()) == (12, 6)
    with pytest.raises(nl.errors.DefinitionError, match="returns no tensor"):
        nl.from_torch(lambda x: (None, None), torch.ones(2))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 60))])
def test_random_writes(seed: int):
    """Against torch in float64: any dimension, shorter indices, integers and 16 bits, every fold."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(4):
        shape = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
        dim = rng.randrange(len(shape))
        counts = [rng.randint(1, 7) if d == dim else rng.randint(1, n) for d, n in enumerate(shape)]
        dtype = rng.choice([torch.float32, torch.float32, torch.float16, torch.int32, torch.int64])
        x, y = (torch.randn(s).mul(3).round().to(dtype) for s in (shape, counts))
        index = torch.randint(0, shape[dim], counts)
        how, own = rng.choice(["sum", "prod", "mean", "amax", "amin", "add", "index_add", "put"]), rng.random() < 0.5

        def function(x, y, index, how=how, own=own, dim=dim):
            if how == "add":
                return x.scatter_add(dim - x.ndim, index, y)
            if how == "index_add":
                rest = [slice(None, n) if d != dim else slice(None) for d, n in enumerate(y.shape)]
                return x[rest].index_add(dim, line(index, dim), y)
            if how == "put":
                return x.index_put(tuple(index.flatten() % n for n in x.shape), y.flatten(), accumulate=True)
            return x.scatter_reduce(dim, index, y, how, include_self=own)

        operator = nl.from_torch(function, x, y, index)
        wide = [t.double() if t.is_floating_point() else t for t in (x, y)]
        arrays = dict(zip((t.name for t in operator.inputs), (t.numpy() for t in (x, y, index)), strict=False))
        found = run_wide(operator.program, arrays | dict(operator.captured))[operator.outputs[0].name]
        torch.testing.assert_close(torch.as_tensor(found).double(), function(*wide, index).double())


def line(index: torch.Tensor, dim: int) -> torch.Tensor:
    """The first positions along a dimension."""
    for d in reversed(range(index.ndim)):
        if d != dim:
            index = index.select(d, 0)
    return index
