"""What the tests of definitions share: the definition run natively, beside its float64 reference."""

from __future__ import annotations

import numpy as np

from neptune_lab.loop_ir.run import run, run_wide
from neptune_lab.operators.base import Operator


def outputs_and_references(op: Operator, inputs: dict[str, np.ndarray], *, wide: bool = True) -> list[tuple]:
    """(output, reference) for each output; `wide` runs the definition in float64, otherwise in its own dtypes."""
    found = run_wide(op.program, inputs) if wide else run(op.program, inputs)
    wanted = op.reference(*inputs.values())
    several = wanted if isinstance(wanted, tuple) else (wanted,)
    return [(found[spec.name], reference) for spec, reference in zip(op.outputs, several, strict=True)]


def assert_defined_as_referenced(op: Operator, seed: int = 0) -> None:
    """The definition, run natively in float64, equals the reference to 1e-9, output by output."""
    for output, reference in outputs_and_references(op, op.random_inputs(seed)):
        assert np.isfinite(reference).all()
        np.testing.assert_allclose(output, reference, rtol=1e-9, atol=1e-12)


def stages(op: Operator) -> list[str]:
    """The definition's stages, in order."""
    from neptune_lab.loop_ir.tree import blocks

    return [block.name for block in blocks(op.program)]
