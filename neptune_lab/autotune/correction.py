"""Corrects estimates by measurements: how much more or less time than estimated each option's value took.

The logarithm of measured over estimated time is fitted by a ridge regression over the values of single options and of
pairs of them.  Its penalty keeps the weight of values that were seen once small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

# The template and the value of each option of a candidate, by name (`Space.settings`).
Settings: TypeAlias = tuple[tuple[str, Any], ...]
Feature: TypeAlias = tuple[tuple[str, Any], ...]

RIDGE = 0.2
# The weight of a pair of values; a single value has 1.
PAIR = 0.3
# A candidate that failed counts as this many times slower than the mean.
FAILED = 4.0


def features(settings: Settings) -> dict[Feature, float]:
    """The values of a candidate's options, singly and in pairs, with their weights."""
    single = [(setting,) for setting in settings]
    pairs = {(*a, *b): PAIR for a, b in combinations(single, 2)}
    return {**dict.fromkeys(single, 1.0), **pairs}


def fit(
    seen: Sequence[tuple[Settings, float, float | None]],
) -> Callable[[Settings, float], float]:
    """A function of a candidate's settings and the logarithm of its estimate that gives the logarithm of its time,
    corrected.

    Args:
        seen: settings of candidates, with the logarithms of estimate and time; None for the time of one that failed.
    """
    if not any(time is not None for _, _, time in seen):
        return lambda _, estimate: estimate
    usual = float(np.mean([time - estimate for _, estimate, time in seen if time is not None]))
    columns: dict[Feature, int] = {}
    for settings, _, _ in seen:
        for feature in features(settings):
            columns.setdefault(feature, len(columns))
    matrix = np.zeros((len(seen), len(columns)))
    excess = np.zeros(len(seen))
    for n, (settings, estimate, time) in enumerate(seen):
        for feature, weight in features(settings).items():
            matrix[n, columns[feature]] = weight
        excess[n] = np.log(FAILED) if time is None else time - estimate - usual
    # As many unknowns as measured candidates: the dual form of the ridge regression.
    weights = matrix.T @ np.linalg.solve(matrix @ matrix.T + RIDGE * np.eye(len(seen)), excess)

    def corrected(settings: Settings, estimate: float) -> float:
        known = ((columns[f], weight) for f, weight in features(settings).items() if f in columns)
        return estimate + usual + sum(weights[column] * weight for column, weight in known)

    return corrected
