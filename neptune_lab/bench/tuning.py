"""Tuning as part of a run: how long it takes without records, and the predictions for each candidate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neptune_lab.autotune.cost_model import CostModel
from neptune_lab.autotune.shared_memory import kernel_bytes
from neptune_lab.bench.setups import Setup
from neptune_lab.operators import Operator
from neptune_lab.pipeline import Choice, compile_choice
from neptune_lab.records import Record
from neptune_lab.target import Target
from neptune_lab.tuning.tune import TuneResult, tune

# The paper's own choice for its Figure 11 (the first four chains of its Table II), and one attention operator.
TUNED_SETUPS = ("g1", "g2", "g3", "g4", "causal_pf-2048")


def tune_setup(setup: Setup, seconds: float) -> dict[str, Any]:
    """Tunes a setup without records; the result in the form of `BenchmarkResults.tuning`.

    Args:
        seconds: time limit.

    Raises:
        MeasureError: there is no GPU, or no candidate could be timed.
    """
    return told(setup, tune(setup.op, seconds=seconds, cold=setup.cold, fresh=True, command="neptune-lab bench"))


def told(setup: Setup, result: TuneResult) -> dict[str, Any]:
    """A tuning run on the GPU here as plain JSON: its seconds, why it ended, and one trial per measured candidate."""
    return {
        "setup": setup.name,
        "seconds": result.seconds,
        "ended": result.ended,
        "trials": trials(setup.op, result.records, Target.current()),
    }


def trials(op: Operator, records: Iterable[Record], target: Target) -> list[Mapping[str, Any]]:
    """For each record: measured and predicted microseconds, actual and estimated bytes of shared memory.

    A figure that is not known is None (a candidate that failed has no time).
    """
    model = CostModel(op, target)
    return [_trial(op, record, model) for record in records]


def _trial(op: Operator, record: Record, model: CostModel) -> Mapping[str, Any]:
    candidate = Choice.from_json(record.candidate)
    actual = [r.shared for r in record.resources if r.shared is not None]
    return {
        "us": record.us,
        "predicted_us": model(candidate) * 1e6,
        "shared": max(actual, default=None),
        # Compiling takes a third of a second: only if there is an actual size to compare with.
        "shared_estimate": _estimate(op, candidate) if actual else None,
    }


def _estimate(op: Operator, candidate: Choice) -> int:
    tiles = compile_choice(op, candidate).htile
    return max(kernel_bytes(tiles, kernel) for kernel in tiles.kernels)
