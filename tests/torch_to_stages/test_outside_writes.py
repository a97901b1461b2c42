"""Writes of a traced function to tensors from outside are refused, by their line, and leave these tensors alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import DefinitionError

TABLE = torch.zeros(2, 3)
WEIGHT = torch.nn.Parameter(torch.zeros(3))


def adds(x):
    TABLE.add_(1)
    return x * TABLE


def sets_an_element(x):
    TABLE[0] = x[0]
    return x * TABLE


def adds_to_the_data(x):
    TABLE.data.add_(1)
    return x * TABLE


def adds_to_what_is_detached(x):
    TABLE.detach().view(-1)[2:].add_(1)
    return x * TABLE


def writes_the_result(x):
    torch.add(x, 1, out=TABLE)
    return x * TABLE


def limits_a_weight(x):
    WEIGHT.data.clamp_(1.0)
    return x * WEIGHT


class Cache(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last.detach().copy_(x)
        return x * self.last


WRITES = (
    adds,
    sets_an_element,
    adds_to_the_data,
    adds_to_what_is_detached,
    writes_the_result,
    limits_a_weight,
    Cache(),
)


@pytest.mark.parametrize("function", WRITES, ids=lambda f: getattr(f, "__name__", "a module"))
def test_a_write_outside_is_refused_before_it_is_done(function: Callable[[torch.Tensor], torch.Tensor]):
    with pytest.raises(DefinitionError, match=r"writes to a tensor that is no argument, in .*outside_writes\.py") as e:
        nl.from_torch(function, torch.ones(2, 3))
    assert "make a new tensor" in e.value.help
    assert not TABLE.any()
    assert not WEIGHT.any()


def sets_the_data(x):
    y = x.clone()
    y.data = x * 2
    return x * y


def test_new_data_of_any_tensor_is_refused():
    with pytest.raises(DefinitionError, match=r"sets the \.data of a tensor, in .*line \d+: `y.data = x \* 2`"):
        nl.from_torch(sets_the_data, torch.ones(2, 3))


def writes_to_its_own(x):
    y, z = torch.zeros_like(TABLE), TABLE.detach().clone()
    y.data.add_(1)
    z.detach()[0] = 5
    TABLE.requires_grad_(False)
    TABLE.grad = None
    return torch.vmap(lambda row: row.clone().add_(1))(x) * y + z


def test_writes_to_the_functions_own_tensors_are_taken():
    x = torch.randn(2, 3)
    torch.testing.assert_close(nl.compile(nl.from_torch(writes_to_its_own, x))(x), writes_to_its_own(x))


class Clamped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.clamp_(0, 0.5)
        return x * self.weight


def test_a_module_that_writes_to_its_parameter_says_so():
    with pytest.raises(
        DefinitionError, match=r"the module writes to its parameter 'weight', in .*line \d+: `self.weig"
    ):
        nl.from_torch(Clamped(), torch.ones(2, 3))
    with pytest.raises(DefinitionError, match=r"writes to its parameter 'weight'(.|\n)*max_norm"):
        nl.from_torch(torch.nn.Embedding(8, 4, max_norm=1.0), torch.tensor([[1, 2]]))


class Mean(torch.nn.Module):
    """Keeps a running mean, a count, or a table of positions."""

    def __init__(self, keeps: str) -> None:
        super().__init__()
        self.keeps = keeps
        self.register_buffer("rates", torch.ones(3))
        for name in ("mean", "count", "table"):
            self.register_buffer(name, torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.keeps == "mean":
            self.mean = x.mean(0)
        if self.keeps == "count":
            self.count = self.count + 1
        if self.keeps == "table":
            self.table = torch.cos(torch.arange(3) * self.rates)
        return x * self.mean + self.count + self.table


@pytest.mark.parametrize("keeps", ["mean", "count"])
def test_a_buffer_of_the_next_call_is_refused(keeps: str):
    """Each call of the kernel would read the first one."""
    with pytest.raises(
        DefinitionError, match=rf"gives the buffer '{keeps}' a new value, .*, in .*: `self\.{keeps} = "
    ) as e:
        nl.from_torch(Mean(keeps), torch.ones(2, 3))
    assert ".eval()" in e.value.help


@pytest.mark.parametrize("keeps", ["nothing", "table"])
def test_a_buffer_that_is_the_same_at_each_call_is_taken(keeps: str):
    x, module = torch.randn(2, 3), Mean(keeps)
    kernel = nl.compile(nl.from_torch(module, x))
    for _ in range(2):
        torch.testing.assert_close(kernel(x), module(x))


def in_a_batch_norm(x):
    return torch.nn.functional.batch_norm(x, TABLE[0], TABLE[1], training=True)


def test_a_write_that_torch_finds_reads_as_a_sentence():
    with pytest.raises(DefinitionError, match=r"cannot trace in_a_batch_norm: it writes to a tensor that is no arg"):
        nl.from_torch(in_a_batch_norm, torch.ones(2, 3))


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


@pytest.mark.parametrize("module", [Counts(), torch.nn.Sequential(Counts())])
def test_a_module_that_writes_to_its_buffer_names_it(module: torch.nn.Module):
    with pytest.raises(DefinitionError, match=r"writes to its buffer '(0\.)?count', in .*: `self\.count") as e:
        nl.from_torch(module, torch.ones(2, 3))
    assert "return the new value" in e.value.help
