"""Compares derived gradients with differences of a float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neptune_lab.loop_ir.run import run_wide
from neptune_lab.operators import Operator, Training


def cotangents(op: Operator, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A random cotangent per output, by the name of the input of the backward pass."""
    return {f"d_{t.name}": rng.standard_normal(t.shape) for t in op.outputs}


def gradients(training: Training, inputs: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The gradients in float64, by input: both passes run as they are defined."""
    kept = run_wide(training.forward.program, dict(inputs))
    values = {**inputs, **given, **{name: kept[name] for name in training.kept}}
    program = training.backward.program
    found = run_wide(program, {name: values[name] for name in program.inputs})
    return {name: found[out] for name, out in zip(training.wrt, program.outputs, strict=True)}


def as_float64(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Floats as float64, whole numbers as they are."""
    return {n: a.astype(np.float64) if a.dtype.kind not in "iub" else a for n, a in inputs.items()}


def differences(
    reference: Callable[..., Any],
    inputs: Mapping[str, np.ndarray],
    given: Sequence[np.ndarray | None],
    name: str,
    direction: np.ndarray,
    step: float = 1e-5,
) -> float:
    """The derivative of sum(given * outputs) along a direction of one input, from four values of the reference.

    Args:
        reference: from the inputs, in order, to an output or a tuple of them.
        inputs: where the derivative is taken.
        given: the cotangent of each output; None: it does not count.
        name: of the input.
        direction: of its shape.
        step: its error is about the fourth power of it.
    """

    def total(distance: float) -> float:
        moved = [a + distance * direction if n == name else a for n, a in inputs.items()]
        outputs = reference(*moved)
        listed = outputs if isinstance(outputs, tuple) else (outputs,)
        return sum(float((g * out).sum()) for g, out in zip(given, listed, strict=True) if g is not None)

    return (8 * (total(step) - total(-step)) - (total(2 * step) - total(-2 * step))) / (12 * step)


def worst_error(op: Operator, training: Training, seed: int = 0) -> float:
    """The largest relative difference between a derived gradient and differences of the operator's own reference."""
    rng = np.random.default_rng(seed)
    inputs = as_float64(op.random_inputs(seed))
    given = cotangents(op, rng)
    found = gradients(training, inputs, given)
    taken = [given[f"d_{t.name}"] if f"d_{t.name}" in training.backward.program.inputs else None for t in op.outputs]
    worst = 0.0
    for name in training.wrt:
        direction = rng.standard_normal(inputs[name].shape)
        expected = differences(op.reference, inputs, taken, name, direction)
        actual = float((found[name] * direction).sum())
        worst = max(worst, abs(actual - expected) / max(1e-3, abs(actual), abs(expected)))
        assert np.isfinite(found[name]).all(), name
    return worst
