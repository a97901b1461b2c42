"""What a traced function leaves outside of itself is restored, and refused if the next call would read it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import DefinitionError

STATE: dict[str, torch.Tensor] = {}
SEEN: list[torch.Tensor] = []
KEPT: torch.Tensor | None = None


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    STATE.update(mean=torch.zeros(3), last=torch.zeros(2, 3))
    yield
    STATE.clear()
    SEEN.clear()
    positions.cache_clear()


class OfClass:
    kept: torch.Tensor | None = None


class Keeps(torch.nn.Module):
    """Keeps one thing in a buffer or an attribute."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.kept, self.size = what, None, 0
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("none", None)
        self.register_buffer("square", torch.arange(9.0).view(3, 3))
        self.rates = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, f"{self.what}_of")(x)

    def mean_of(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.5 * self.mean + x.mean(0)
        return x * (1 + self.mean)

    def none_of(self, x: torch.Tensor) -> torch.Tensor:
        if self.none is None:
            self.none = x.mean(0)
        return x + self.none

    def attribute_of(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = x.mean(0)
        return x + self.kept

    def turned_of(self, x: torch.Tensor) -> torch.Tensor:
        self.square = self.square.t()
        return x @ self.square

    def cast_of(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean.to(torch.float64).clone()
        return (x + self.mean.view(3)).float()

    def part_of(self, x: torch.Tensor) -> torch.Tensor:
        self.square = self.square[:, :2]
        return x @ self.square

    def like_of(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = torch.ones_like(x).tril()
        return x * self.kept

    def table_of(self, x: torch.Tensor) -> torch.Tensor:
        if self.size < x.shape[-1]:
            self.size = x.shape[-1]
            self.kept = torch.cos(torch.arange(self.size) * self.rates.detach())
        return x * self.kept


def in_a_dict(x: torch.Tensor) -> torch.Tensor:
    STATE["mean"] = 0.5 * STATE["mean"] + x.mean(0)
    return x * STATE["mean"]


def the_last_one(x: torch.Tensor) -> torch.Tensor:
    last, STATE["last"] = STATE["last"], x
    return x - last


def in_a_global(x: torch.Tensor) -> torch.Tensor:
    global KEPT
    if KEPT is None:
        KEPT = x.mean(0)
    return x + KEPT


def in_a_class(x: torch.Tensor) -> torch.Tensor:
    if OfClass.kept is None:
        OfClass.kept = x.mean(0)
    return x + OfClass.kept


def in_a_function_that_it_calls(x: torch.Tensor) -> torch.Tensor:
    return in_a_dict(x)


def _in_a_closure() -> Callable[[torch.Tensor], torch.Tensor]:
    kept = None

    def in_a_closure(x: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        if kept is None:
            kept = x.mean(0)
        return x + kept

    return in_a_closure


def _called(module: Keeps, x: torch.Tensor) -> torch.Tensor:
    return module(x)


WAYS: dict[str, Callable[[Keeps], Any]] = {
    "a module": lambda m: m,
    "a closure": lambda m: lambda x: m(x),
    "a partial of a module": functools.partial,
    "a partial": lambda m: functools.partial(_called, m),
    "a method": lambda m: m.forward,
}


def _refused(function: Any) -> str:
    x = torch.ones(2, 3)
    with pytest.raises(DefinitionError, match=r"a new value, which the next call reads, in .*: `") as e:
        nl.from_torch(function, x)
    assert type(function(x)) is torch.Tensor
    return str(e.value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["mean", "none", "attribute", "turned"])
def test_a_modules_state_is_refused_and_restored(what: str, way: str):
    module = Keeps(what)
    before = dict(vars(module)), dict(module.named_buffers())
    with pytest.raises(DefinitionError, match=r"a new value, which the next call reads, in .*kept_state\.py"):
        nl.from_torch(WAYS[way](module), torch.ones(2, 3))
    assert (dict(vars(module)), dict(module.named_buffers())) == before
    assert "a new value" in _refused(WAYS[way](module))


@pytest.mark.parametrize(
    "function", [in_a_dict, the_last_one, in_a_global, in_a_class, in_a_function_that_it_calls, _in_a_closure()]
)
def test_state_elsewhere_is_refused_and_restored(function: Callable[[torch.Tensor], torch.Tensor]):
    global KEPT
    try:
        _refused(function)
    finally:
        KEPT = OfClass.kept = None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["cast", "part", "like", "table"])
def test_what_is_the_same_at_each_call_is_taken_and_restored(what: str, way: str):
    x, module = torch.randn(2, 3), Keeps(what)
    before = dict(vars(module)), dict(module.named_buffers())
    op = nl.from_torch(WAYS[way](module), x)
    assert (dict(vars(module)), dict(module.named_buffers())) == before
    kernel = nl.compile(op)
    for _ in range(2):
        torch.testing.assert_close(kernel(x), module(x))


def records(x: torch.Tensor) -> torch.Tensor:
    STATE["last"] = x.relu()
    SEEN.append(x * 2)
    return STATE["last"] + 1


def test_what_no_call_reads_is_taken_and_restored():
    x, last = torch.randn(2, 3), STATE["last"]
    kernel = nl.compile(nl.from_torch(records, x))
    assert STATE["last"] is last
    assert not SEEN
    torch.testing.assert_close(kernel(x), records(x))


@functools.lru_cache
def positions(n: int) -> torch.Tensor:
    return torch.arange(n).float()


def test_a_cache_of_calls_keeps_no_tensor_of_a_trace():
    x = torch.randn(2, 3)
    kernel = nl.compile(nl.from_torch(lambda x: x + positions(3), x))
    assert type(positions(3)) is torch.Tensor
    torch.testing.assert_close(kernel(x), x + positions(3))


def test_a_cache_of_calls_that_a_trace_only_reads_is_kept():
    kept = positions(3)
    many = functools.lru_cache(None)(lambda n: n)
    for n in range(300):
        many(n)
    calls: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(many(1))
        return x + positions(3)

    nl.from_torch(function, torch.ones(2, 3))
    assert calls
    assert many.cache_info().currsize == 300
    assert positions(3) is kept


def fails(x: torch.Tensor) -> torch.Tensor:
    STATE["mean"] = x.mean(0)
    return x.sort().values


def test_a_trace_that_is_refused_leaves_nothing():
    mean = STATE["mean"]
    with pytest.raises(DefinitionError, match="sort"):
        nl.from_torch(fails, torch.ones(2, 3))
    assert STATE["mean"] is mean


WEIGHT = torch.nn.Parameter(torch.ones(3))


def sets_a_gradient(x: torch.Tensor) -> torch.Tensor:
    WEIGHT.grad = x.mean(0)
    return x * 2


def test_a_gradient_that_is_set_is_refused():
    with pytest.raises(DefinitionError, match=r"sets the \.grad of a tensor, in .*: `WEIGHT\.grad = ") as e:
        nl.from_torch(sets_a_gradient, torch.ones(2, 3))
    assert "after the call" in e.value.help
    assert WEIGHT.grad is None
