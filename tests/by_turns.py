"""Which combinations of several lists run in every run: each value with some of the others, in turn."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def in_turn(*axes: Iterable[Any], every: int, first: int = 0) -> list[Any]:
    """All combinations of some lists, as arguments of `parametrize`; most are marked `nightly`.

    Args:
        axes: the lists; values that are functions or dtypes get ids of pytest's own.
        every: one combination in so many is in every run: those whose places in the lists add up to `first`, modulo
            this number. If all lists but one are as long, each value is among them.
        first: as above.
    """
    lists = [list(axis) for axis in axes]
    places = product(*(range(len(values)) for values in lists))
    return [
        pytest.param(*values, marks=() if sum(at) % every == first else pytest.mark.nightly)
        for at, values in zip(places, product(*lists), strict=True)
    ]


def half(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Half of all combinations of some lists: those whose places in the lists add up to an even number, so that each
    two values of two lists meet, if another list has more than one."""
    lists = [list(axis) for axis in axes]
    places = product(*(range(len(values)) for values in lists))
    return [values for at, values in zip(places, product(*lists), strict=True) if sum(at) % 2 == 0]


def some_seeds(by_day: int, of: int) -> list[Any]:
    """The numbers below `of`; those from `by_day` on are marked `nightly`."""
    return [pytest.param(n, marks=() if n < by_day else pytest.mark.nightly) for n in range(of)]
