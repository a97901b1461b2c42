"""Small operators, written in tensor expressions, for the tests of schedules (and of the translation to HTile)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.tvm_compat import from_te
from neptune_lab.loop_schedule import Schedule
from neptune_lab.operators.base import Operator, TensorSpec

Define = Callable[[], tuple[list[Any], list[Any]]]
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def build_operator(name: str, define: Define, *, draw: Draw | None = None) -> Operator:
    """An operator of `define()`, which gives its inputs and outputs; `draw(rng, shape)` makes each input."""
    inputs, outputs = define()
    shapes = [tuple(int(n) for n in t.shape) for t in inputs]
    make = draw or (lambda rng, shape: rng.standard_normal(shape))

    def build() -> Program:
        return from_te(name, inputs, outputs)

    def compute(*_: np.ndarray):
        raise NotImplementedError("these tests compare with the unscheduled program")

    return Operator(
        name=name,
        title=name,
        doc="a test",
        params={},
        inputs=tuple(TensorSpec(t.op.name, s, str(t.dtype)) for t, s in zip(inputs, shapes, strict=True)),
        outputs=tuple(TensorSpec(t.op.name, tuple(int(n) for n in t.shape), str(t.dtype)) for t in outputs),
        source="",
        template="rolling_update",
        build=build,
        compute=compute,
        draw=lambda rng: tuple(make(rng, s) for s in shapes),
    )


@pytest.fixture
def schedule_of() -> Callable[..., Schedule]:
    """`schedule_of(define, draw=None)`: a fresh schedule of an operator made from tensor expressions."""

    def make(define: Define, draw: Draw | None = None) -> Schedule:
        return Schedule(build_operator("chain", define, draw=draw))

    return make
