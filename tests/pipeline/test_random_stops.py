"""Random functions of PyTorch that stop gradients: the derived definition beside autograd, in float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradients import gradients

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.operators import training

MAPS = ("torch.tanh({a})", "({a}) * ({b})", "({a}) - 0.5 * ({b})", "torch.where(x > y, {a}, {b})", "({a}).exp() * 0.1")
ROWS = ("({a}).amax(-1, keepdim=True)", "({a}).sum(-1, keepdim=True)", "torch.logsumexp({a}, -1, keepdim=True)")
WHOLE = ("torch.softmax({a}, -1)", "({a}) - ({a}).amax(-1, keepdim=True).detach()", "({a}) @ w")
STOPS = ("({a}).detach()", "({a}).data", "unrecorded(lambda: {a})", "recorded_again(lambda: {a}, lambda: {b})")


def unrecorded(value: Callable[[], Any]) -> Any:
    """The value, without its gradient."""
    with torch.no_grad():
        return value()


def recorded_again(value: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """A product of a value without its gradient and another one with it."""
    with torch.no_grad():
        first = value()
        with torch.enable_grad():
            second = other()
    return first * second


def draw(rng: random.Random, depth: int = 4) -> str:
    """An expression over x and y (3, 4) and w (4, 4)."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice("xy")
    parts = {"a": draw(rng, depth - 1), "b": draw(rng, depth - 1)}
    kind = rng.choice((MAPS, MAPS, WHOLE, STOPS, STOPS, ROWS))
    made = rng.choice(kind).format(**parts)
    return f"({made} + x * 0)" if kind is ROWS else made


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(4, 75))])
def test_a_random_function_that_stops_gradients(seed: int):
    text = draw(random.Random(seed))
    function = eval(f"lambda x, y, w: {text} + x * y + (x @ w)", globals())
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((3, 4), (3, 4), (4, 4))]
    op = nl.from_torch(function, *(t.float() for t in tensors))
    given = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    own = [t.clone().requires_grad_() for t in tensors]
    expected = torch.autograd.grad(function(*own), own, given)
    arrays = {t.name: tensor.numpy() for t, tensor in zip(op.inputs, tensors, strict=True)}
    try:
        passes = training(op)
    except DefinitionError as error:
        raise AssertionError(text) from error
    found = gradients(passes, arrays, {f"d_{op.outputs[0].name}": given.numpy()})
    for name, wanted in zip(arrays, expected, strict=True):
        torch.testing.assert_close(
            torch.from_numpy(found[name]), wanted, rtol=1e-6, atol=1e-7, msg=lambda m, n=name: f"{n} of {text}: {m}"
        )
