"""Fits the model of few rows to kernels that were measured: `python -m neptune_lab.autotune.few_rows_fit` writes the
constants.

The measurements (`calibrated/few_rows_measured.json`) are of decoding with lengths, heads and widths drawn at random,
on an H200, or on an H100 where they say so, in a CUDA graph with a cold L2; each has tiles and splits around those that
could be good.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import exp, log
from statistics import geometric_mean, mean
from typing import Any

import numpy as np

from neptune_lab.autotune.calibration import FOLDER, SCHEMA
from neptune_lab.autotune.few_rows import FewRows
from neptune_lab.autotune.few_rows_rates import FewRowsFit, Rates
from neptune_lab.choice import Choice
from neptune_lab.errors import MeasureError
from neptune_lab.files import write_text
from neptune_lab.strict.json_text import check_schema, read_json
from neptune_lab.strict.typed import pack
from neptune_lab.target import DEFAULT, as_target

# Where the fit starts: one microsecond, or the data sheet's rate.
FIRST = Rates(5.0, 4.4e6, 5e4, 8.0, 0.5, 1.5, 2.5, 0.15, 5.0, 1.2, 1.0, 1.5, 0.5, 1.2)
# Relative errors from which on a measurement counts less.
OUTLIER = 0.05


@dataclass(frozen=True)
class Problem:
    """A problem, and the microseconds of its kernels."""

    facts: FewRows
    kernels: tuple[tuple[Choice, float], ...]


def measured() -> tuple[Problem, ...]:
    """The problems in the package."""
    path = FOLDER / "few_rows_measured.json"
    data = check_schema(read_json(path, MeasureError), SCHEMA, path.name, "measurements", MeasureError, help="add them")
    return tuple(map(_problem, data["problems"]))


def _problem(data: Mapping[str, Any]) -> Problem:
    facts: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in data.items() if name not in ("kernels", "gpu")
    }
    kernels = tuple(
        (Choice.of(template, options, "a measured kernel"), us) for template, options, us in data["kernels"]
    )
    return Problem(FewRows(**facts, target=as_target(data.get("gpu", DEFAULT))), kernels)


def fitted(problems: Sequence[Problem], start: Rates = FIRST) -> Rates:
    """The constants with the least error: their logarithms, by the method of Levenberg and Marquardt."""
    times = np.log([us for one in problems for _, us in one.kernels])

    def residuals(logs: np.ndarray) -> np.ndarray:
        rates = Rates(*map(float, np.exp(logs)))
        return np.array([log(p.facts.seconds(c, rates) * 1e6) for p in problems for c, _ in p.kernels]) - times

    found = np.exp(_robust_least_squares(residuals, np.log(astuple(start))))
    return Rates(*(float(f"{value:.4g}") for value in found))


def _robust_least_squares(residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> np.ndarray:
    """The minimum of a sum of squares, in which large residuals count linearly."""
    at, damping, step = start, 1e-2, 1e-3
    now = residuals(at)
    for _ in range(60):
        slopes = np.stack([(residuals(at + step * unit) - now) / step for unit in np.eye(len(at))], axis=1)
        weights = 1 / np.sqrt(1 + (now / OUTLIER) ** 2)
        squares, slope = slopes.T @ (slopes * weights[:, None]), slopes.T @ (weights * now)
        before = _cost(now)
        for _ in range(10):
            move = np.linalg.solve(squares + damping * np.diag(np.diag(squares) + 1e-6), -slope)
            there = at + np.clip(move, -1, 1)
            if _cost(after := residuals(there)) < before:
                at, now, damping = there, after, damping / 3
                break
            damping = min(4 * damping, 1e9)
        if before - _cost(now) < 1e-6 * before:
            break
    return at


def _cost(residuals: np.ndarray) -> float:
    return float(np.sum(np.sqrt(1 + (residuals / OUTLIER) ** 2) - 1))


def fit(problems: Sequence[Problem]) -> FewRowsFit:
    """The constants, with their error and the cost of the ranking on problems that are left out in turn."""
    rates = fitted(problems)
    misses = [abs(log(p.facts.seconds(c, rates) * 1e6 / us)) for p in problems for c, us in p.kernels]
    losses = [_loss(one, fitted([p for p in problems if p is not one], rates)) for one in problems]
    return FewRowsFit(rates, len(misses), len(problems), round(exp(mean(misses)), 3), round(geometric_mean(losses), 3))


def _loss(problem: Problem, rates: Rates) -> float:
    """The time of the kernel that ranks first, of those that are ranked, over the best one's."""
    offered = {_tiling(choice) for choice in problem.facts.choices()}
    kernels = [kernel for kernel in problem.kernels if _tiling(kernel[0]) in offered] or problem.kernels
    _, first = min(kernels, key=lambda kernel: problem.facts.seconds(kernel[0], rates))
    return first / min(us for _, us in problem.kernels)


def _tiling(choice: Choice) -> tuple[Any, ...]:
    """What a choice is ranked by."""
    return choice.template, choice.sizes.block_kv, choice.splits, choice.code.combine


def main() -> None:
    """Fits the constants to the measurements in the package."""
    made = fit(measured())
    write_text(FOLDER / "few_rows_sm_90.json", json.dumps({"schema": SCHEMA, **pack(made)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
