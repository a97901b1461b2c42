"""The check of all phases of a schedule."""

from __future__ import annotations

from neptune_lab.loop_ir.run import compare
from neptune_lab.loop_schedule import PRIMITIVES, Schedule


def assert_phases_hold(sch: Schedule, seed: int = 0) -> None:
    """Every phase of our primitives, run: equal to the definition, unless it says that it is meant to be wrong."""
    assert sch.check(seed)
    for applied in sch.history:
        if not PRIMITIVES[applied.step.primitive].ours:
            continue
        for phase in applied.outcome.phases:
            agreement = compare(phase.program, sch.definition, sch.operator.random_inputs(seed))
            assert agreement.equal is not phase.wrong, f"{applied.step}, phase {phase.key}: {agreement}"
