"""Derived gradients of random definitions and of random attention, against differences of what the judge evaluates."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
from gradients import as_float64, cotangents, differences, gradients

from fuzz import draw, judge, special
from fuzz.definitions import evaluate
from fuzz.outcome import Outcome, Wrong
from neptune_lab.operators.reverse_mode import reductions

# From arrays to the outputs, and whether differences have digits: all values on the way are finite, none is huge.
Reference = Callable[..., tuple[tuple[np.ndarray, ...], bool]]
# Differences with two steps that disagree by more than this say nothing: there is a kink, or no digit is left.
_APART = 1e-5
# Results from this on, such as the log-sum-exp of a row of least floats, leave no digit of the others in a sum.
_HUGE = 1e30


def draw_gradient(rng: random.Random) -> dict[str, Any]:
    """A definition, or attention with mods."""
    if rng.random() < 0.3:
        from fuzz.attention import draw_attention

        case = draw_attention(rng)
        case["sizes"] |= {"dtype": "float32", "empty_rows": "zero"}
        return {"attention": case}
    return {"definition": draw.definition(rng)}


def run_gradient(case: dict[str, Any], outcome: Outcome) -> None:
    """Derives the backward pass, compares it with differences, and in one case of four its kernel with it."""
    from neptune_lab.operators import training

    op, inputs, evaluated = _problem(case)
    reference = lambda *arrays: evaluated(*arrays)[0]  # noqa: E731
    passes = training(op)
    outcome.met["gradient derived"] += 1
    given = cotangents(op, np.random.default_rng(case["seed"]))
    values = as_float64(inputs)
    with np.errstate(all="ignore"):
        results, exact = evaluated(*values.values())
        if not exact or not all((np.abs(a) < _HUGE).all() for a in results):
            return  # (where a value is infinite, PyTorch's gradients are NaN; beside a huge one, differences are 0)
        found = gradients(passes, values, given)
    taken = [given[f"d_{t.name}"] if f"d_{t.name}" in passes.backward.program.inputs else None for t in op.outputs]
    for n, name in enumerate(passes.wrt):
        direction = np.random.default_rng(n).standard_normal(values[name].shape)
        with np.errstate(all="ignore"):
            wide, narrow = (differences(reference, values, taken, name, direction, step) for step in (2e-5, 1e-5))
        got, size = float((found[name] * direction).sum()), float(np.abs(found[name] * direction).sum())
        # (a derivative of 0 times an infinite constant of the definition is NaN in PyTorch, too)
        if not np.isfinite(got) and "-inf" in str(case.get("definition", "")):
            continue
        if not np.isfinite(wide + narrow) or abs(wide - narrow) > _APART * max(abs(narrow), 1e-3):
            continue
        outcome.met["gradient compared"] += 1
        apart = 1e-4 * max(abs(narrow), 1e-6 * size, 1e-6)
        if abs(got - narrow) > apart:  # (terms that are equal up to float32's rounding share a maximum's cotangent)
            with patch.object(reductions, "ROUNDINGS", 2.0**-50):
                found = gradients(training(op), values, given)
            got = float((found[name] * direction).sum())
        if not abs(got - narrow) <= apart:
            raise Wrong(f"derivative: d_{name} along a direction is {got:g}, expected {narrow:g}")
    if case["seed"] % 4 == 0:
        _check_kernel(passes, op, {**inputs, **given})


def _problem(case: dict[str, Any]) -> tuple[Any, dict[str, np.ndarray], Reference]:
    """The operator, its inputs, and how the judge evaluates its outputs."""
    from fuzz import attention
    from fuzz.run_case import custom_operator

    if "attention" in case:
        own = {**case["attention"], "seed": case["seed"]}
        op = attention.operator(own, attention.captured(own))
        names = [t.name for t in op.outputs]
        shapes = {t.name: list(t.shape) for t in op.inputs if t.name not in op.captured}
        inputs = special.draw("ordinary", shapes, "float32", case["seed"]) | dict(op.captured)

        def attended(*arrays: np.ndarray) -> tuple[tuple[np.ndarray, ...], bool]:
            values = attention.reference(own, dict(zip(inputs, arrays, strict=True)), "float64")
            return tuple(values[name] for name in names), True

        return op, {t.name: inputs[t.name] for t in op.inputs}, attended
    definition = case["definition"]
    op = custom_operator(definition)
    inputs = special.draw("ordinary", definition["inputs"], "float32", case["seed"])
    inputs = {t.name: inputs[t.name] for t in op.inputs}

    def defined(*arrays: np.ndarray) -> tuple[tuple[np.ndarray, ...], bool]:
        values = evaluate(definition, dict(zip(inputs, arrays, strict=True)), "float64")
        return tuple(values[t.name] for t in op.outputs), all((np.abs(a) < 1e8).all() for a in values.values())

    return op, inputs, defined


def _check_kernel(passes: Any, op: Any, given: Mapping[str, np.ndarray]) -> None:
    """The tiles of the backward pass give what it is defined as."""
    import neptune_lab as nl
    from fuzz.run_case import compare
    from neptune_lab.htile.interpret import interpret
    from neptune_lab.loop_ir.run import run, run_wide

    program = passes.backward.program
    kept = run_wide(passes.forward.program, as_float64({t.name: given[t.name] for t in op.inputs}))
    values = {**given, **{name: kept[name] for name in passes.kept}}
    dtypes = {b.name: b.dtype for b in program.buffers}
    inputs = {name: np.asarray(values[name]).astype(dtypes[name]) for name in program.inputs}
    kernel = nl.compile(passes.backward, validate="none")

    def reference(arrays: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
        return run(program, dict(arrays)) if dtype == "float32" else run_wide(program, as_float64(arrays))

    with np.errstate(all="ignore"):
        wanted = judge.expectations(reference, inputs, list(kernel.htile.outputs))
    compare("tiles of the backward pass", "ordinary", interpret(kernel.htile, inputs), wanted, inputs, True)


__all__ = ["draw_gradient", "run_gradient"]
