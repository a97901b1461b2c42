"""A mod gives the same value whenever it is called, or is refused: it is called once for all positions."""

from __future__ import annotations

import itertools
import random
import secrets
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import attention

numbers, generator, drawing = itertools.count(), np.random.default_rng(0), random.Random(0)
stack, seen, kept = [n / 7 for n in range(99)], [], {}


def with_score(value: Callable[[Any], Any]) -> Any:
    """The definition of attention whose score_mod adds `value(kv)`."""
    return attention.general(1, 2, 8, 8, 8, lambda score, b, h, q, kv: score + value(kv)).program


class Counter:
    n = 0

    def __call__(self, kv: Any) -> int:
        self.n += 1
        return self.n


def drawn_by_drawing(kv: Any) -> Any:
    return torch.where(kv > 3, 1.0, 2.0 if drawing.random() < 0.5 else 3.0) + drawing.randint(1, 9)


CHANGE: dict[str, Callable[[Any], Any]] = {
    "random": lambda kv: random.random(),
    "numpy.random": lambda kv: np.random.rand(),  # noqa: NPY002
    "a generator of NumPy": lambda kv: generator.random(),
    "a generator of Python": drawn_by_drawing,
    "without a seed": lambda kv: np.random.default_rng().random(),
    "secrets": lambda kv: secrets.randbelow(10**6),
    "a clock": lambda kv: time.perf_counter(),
    "an iterator": lambda kv: next(numbers),
    "a list": lambda kv: stack.pop(),
    "an object": Counter(),
}
MEMORY: dict[str, Callable[[Any], Any]] = {
    "a number": lambda kv: torch.empty(()),
    "a table": lambda kv: torch.empty(8)[kv],
    "conditions": lambda kv: torch.empty(8, dtype=torch.bool)[kv],
    "like another": lambda kv: torch.empty_like(torch.ones(8))[kv],
    "of a tensor": lambda kv: torch.ones(8).new_empty(4)[kv % 4],
}


def filled(kv: Any) -> Any:
    table = torch.empty(8)
    table.fill_(2.0)
    return table[kv]


def noted(kv: Any) -> float:
    seen.append(kv)
    return kept.setdefault("scale", 0.25)


def seeded(kv: Any) -> float:
    return np.random.default_rng(7).random()


@pytest.mark.parametrize("name", CHANGE)
def test_a_value_that_changes_is_refused(name: str):
    with pytest.raises(DefinitionError, match=r"another value when it is called again(.|\n)*before the call"):
        with_score(CHANGE[name])


@pytest.mark.parametrize("name", MEMORY)
def test_memory_that_nothing_was_written_to_is_refused(name: str):
    with pytest.raises(DefinitionError, match=r"nothing was written to(.|\n)*torch\.zeros"):
        with_score(MEMORY[name])


@pytest.mark.parametrize(
    "value", [filled, noted, seeded, lambda kv: float("nan"), lambda kv: torch.dot(torch.ones(3), torch.arange(3.0))]
)
def test_a_value_that_stays_is_taken(value: Callable[[Any], Any]):
    assert with_score(value)
