"""The writing exercises of notebooks 02 and 03: right functions, and what each likely wrong one is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from neptune_widgets.course import writing_parts as exercises


def variance(numbers: Iterable[float]) -> float:
    n, r, t0, t1 = 0, 0.0, 0.0, 0.0
    for c in numbers:
        new = r + (c - r) / (n + 1)
        d = r - new
        t0, t1 = t0 + 2 * d * t1 + d * d * n, t1 + d * n
        t0, t1 = t0 + (c - new) ** 2, t1 + c - new
        n, r = n + 1, new
    return t0 / n


def welford(numbers: Iterable[float], divide: Callable[[float, int], float] = lambda t, n: t / n) -> float:
    n, mean, t = 0, 0.0, 0.0
    for c in numbers:
        n += 1
        d = c - mean
        mean += d / n
        t += d * (c - mean)
    return divide(t, n)


def unrepaired(numbers: Iterable[float]) -> float:
    n, r, t = 0, 0.0, 0.0
    for c in numbers:
        n, r = n + 1, r + (c - r) / (n + 1)
        t += (c - r) ** 2
    return t / n


def two_moments(numbers: Iterable[float]) -> float:
    n, x, xx = 0, np.float32(0), np.float32(0)
    for c in numbers:
        n, x, xx = n + 1, x + np.float32(c), xx + np.float32(c) ** 2
    return xx / n - (x / n) ** 2


def two_passes(numbers: Iterable[float]) -> float:
    kept = [c for c in numbers]  # noqa: C416
    return float(np.var(kept)) + 0 * sum(numbers)


def endless(*_: Any) -> Any:
    while True:
        pass


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", [variance, welford])
def test_right_variances(function: Any):
    assert exercises.variance(function), exercises.variance(function)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda numbers: welford(numbers, lambda t, n: t / (n - 1)), "divides by the count less 1"),
        (lambda numbers: welford(numbers, lambda t, n: t), "still has to be divided"),
        (lambda numbers: welford(numbers, lambda t, n: (t / n) ** 0.5), "the standard deviation"),
        (unrepaired, "made with older means"),
        (two_moments, "it subtracts two large numbers"),
        (lambda numbers: float(np.var(list(numbers))), "it keeps the numbers"),
        (two_passes, "a second time"),
        (endless, "does not end"),
        (lambda numbers: sum(numbers) / 0, "raises ZeroDivisionError"),
        (lambda numbers: [x for x in numbers], "should have the shape ()"),  # noqa: C416
        (0.5, "expected a function"),
    ],
)
def test_wrong_variances_are_told_why(function: Any, why: str):
    verdict = exercises.variance(function)
    assert verdict.state == "wrong"
    assert why in verdict.text


def combine(largest: np.ndarray, sums: np.ndarray, accs: np.ndarray) -> np.ndarray:
    factor = np.exp(largest - largest.max())
    return factor @ accs / (factor @ sums)


def combine_one_by_one(largest: np.ndarray, sums: np.ndarray, accs: np.ndarray) -> list[float]:
    m, s, acc = -np.inf, 0.0, np.zeros(accs.shape[1])
    for mine, total, part in zip(largest, sums, accs, strict=True):
        new = max(m, mine)
        s, acc = s * np.exp(m - new) + total * np.exp(mine - new), acc * np.exp(m - new) + part * np.exp(mine - new)
        m = new
    return list(acc / s)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", [combine, combine_one_by_one])
def test_right_combinations(function: Any):
    assert exercises.combine(function), exercises.combine(function)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda m, s, a: a.sum(axis=0) / s.sum(), "adds the parts as they are"),
        (lambda m, s, a: np.exp(m - m.max()) @ a, "still has to be divided"),
        (lambda m, s, a: (a / s[:, None]).mean(axis=0), "mean of the parts' own outputs"),
        (lambda m, s, a: np.exp(m - m.max()) @ a / s.sum(), "need the same factor"),
        (lambda m, s, a: np.exp(m) @ a / (np.exp(m) @ s), "overflows"),
        (lambda m, s, a: combine(m, s, a) if len(m) == 4 else combine(np.maximum(m, 0), s + 1, a), "that has no key"),
        (lambda m, s, a: combine(m, s, a)[:, None], "should have the shape (4,), found (4, 1)"),
        (endless, "more than 500 lines"),
        (lambda m, s, a: m @ a @ s @ s, "raises ValueError"),
        ("combine", "expected a function"),
    ],
)
def test_wrong_combinations_are_told_why(function: Any, why: str):
    verdict = exercises.combine(function)
    assert verdict.state == "wrong"
    assert why in verdict.text


def test_functions_that_are_not_filled_in_are_open():
    def skeleton(*_: Any) -> Any:
        raise NotImplementedError

    assert exercises.variance(skeleton).state == exercises.combine(skeleton).state == "open"
