"""Traffic of every form of a scheduled program: the definition, each phase of each step, and the kernel."""

from __future__ import annotations

from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.target import Target
from neptune_lab.traffic import TrafficRecord, traffic_of


def schedule_traffic(schedule: Schedule, tiles: TileProgram | None, target: Target, blocks: int = 1) -> TrafficRecord:
    """Counts every form of a scheduled program.

    Args:
        schedule: the definition, and the phases of its steps.
        tiles: the HTile program that was emitted from it; None: there is no kernel, and the last form is that of the
            last step.
        target: the GPU.
        blocks: that reside on one multiprocessor at once.

    Returns:
        A form per phase, in order.
    """
    forms = [("definition", 0, "definition", schedule.definition)]
    for n, applied in enumerate(schedule.history, 1):
        name = f"{n}. {applied.step.primitive}"
        for phase in applied.outcome.phases:
            title = name if len(applied.outcome.phases) == 1 else f"{name}, {phase.key}"
            forms.append((title, n, phase.key, phase.program))
    return traffic_of(forms, tiles, target, blocks)
