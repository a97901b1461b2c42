"""Runs to play: the naive and the repaired program of a step side by side, frame by frame, on small sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.frames import PlayedRun, played
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.tags import record
from neptune_lab.loop_schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Playable:
    """What can be played of a schedule.

    Args:
        step: its number, as in the trace; step 0 is the definition.
        what: the step as text.
        block: the reduction that it fuses; "" if it is none.
        phases: keys of the phases to play side by side, the naive one first if there is one.
    """

    step: int
    what: str
    block: str
    phases: tuple[str, ...]


def playable(schedule: Schedule) -> tuple[Playable, ...]:
    """The steps that repair a reduction, or whose repair was refused; if there are none, the last program alone."""
    found = []
    for n, applied in enumerate(schedule.history, 1):
        phases = applied.outcome.phases
        naive = next((p.key for p in phases if p.key == "naive" and p.wrong), None)
        if naive is None:
            continue
        block = dict(applied.step.arguments).get("block")
        last = phases[-1].key
        sides = (naive,) if last == naive or last == "repair" else (naive, last)
        found.append(Playable(n, str(applied.step), block if isinstance(block, str) else "", sides))
    if found:
        return tuple(found)
    if schedule.history:
        step, phase = len(schedule.history), schedule.phases[-1].key
        return (Playable(step, str(schedule.history[-1].step), "", (phase,)),)
    return (Playable(0, "definition", "", ("definition",)),)


def play(schedule: Schedule, step: int, phase: str, rolling: str, inputs: Mapping[str, np.ndarray]) -> PlayedRun:
    """The frames of the program of one phase.

    Args:
        schedule: a small one: its program runs in plain Python, and every write is recorded.
        step, phase: as in `Playable`.
        rolling: variable of the loop whose iterations are the frames.
        inputs: arrays by name.

    Raises:
        ScheduleError: there is no such step, phase or loop, the program is too large, or an input has another shape.
    """
    program = _program(schedule, step, phase)
    return played(record(program, dict(inputs)), record(schedule.base, dict(inputs)), rolling=rolling)


def _program(schedule: Schedule, step: int, phase: str) -> Program:
    if step == 0:
        return schedule.definition
    if not 0 <= step <= len(schedule.history):
        raise ScheduleError(
            f"there is no step {step}; the schedule has {len(schedule.history)}",
            help="give one of these, or 0: the definition",
        )
    phases = {p.key: p.program for p in schedule.history[step - 1].outcome.phases}
    if phase not in phases:
        raise ScheduleError(f"step {step} has no phase {phase!r}", help=f"the phases: {', '.join(phases)}")
    return phases[phase]


__all__ = ["Playable", "play", "playable"]
