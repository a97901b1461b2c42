"""Estimates corrected by what was measured: how much more or less than estimated each knob's value took.

The logarithm of measured over estimated time is fitted by a ridge regression over the values of single knobs and of
pairs of them.  Shrinking keeps what was seen once from counting much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np

from neptune_lab.autotune.candidate import Candidate, Option

Feature: TypeAlias = tuple[tuple[str, Option], ...]

RIDGE = 0.2
# A pair of values counts less than a single one.
PAIR = 0.3
# A candidate that failed counts as this many times slower than the usual one.
FAILED = 4.0


def features(candidate: Candidate) -> dict[Feature, float]:
    """The values of its knobs, singly and in pairs, with their weights."""
    single = [(("template", candidate.template),), *(((name, value),) for name, value in candidate.options)]
    pairs = {(*a, *b): PAIR for a, b in combinations(single, 2)}
    return {**dict.fromkeys(single, 1.0), **pairs}


def fit(
    seen: Sequence[tuple[Candidate, float, float | None]],
) -> Callable[[Candidate, float], float]:
    """A function of a candidate and the logarithm of its estimate that gives the logarithm of its time, corrected.

    Args:
        seen: candidates with the logarithms of estimate and time; None for the time of one that failed.
    """
    if not any(time is not None for _, _, time in seen):
        return lambda _, estimate: estimate
    usual = float(np.mean([time - estimate for _, estimate, time in seen if time is not None]))
    columns: dict[Feature, int] = {}
    for candidate, _, _ in seen:
        for feature in features(candidate):
            columns.setdefault(feature, len(columns))
    matrix = np.zeros((len(seen), len(columns)))
    excess = np.zeros(len(seen))
    for n, (candidate, estimate, time) in enumerate(seen):
        for feature, weight in features(candidate).items():
            matrix[n, columns[feature]] = weight
        excess[n] = np.log(FAILED) if time is None else time - estimate - usual
    # As many unknowns as answers: the dual form of the ridge regression.
    weights = matrix.T @ np.linalg.solve(matrix @ matrix.T + RIDGE * np.eye(len(seen)), excess)

    def corrected(candidate: Candidate, estimate: float) -> float:
        found = features(candidate).items()
        return estimate + usual + sum(weights[columns[f]] * weight for f, weight in found if f in columns)

    return corrected
