"""Chooses normalisations: rewrites of a definition before it is scheduled, so that more of it can be fused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from neptune_lab.errors import NeptuneError
from neptune_lab.loop_ir.nodes import Op
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.walks import walk
from neptune_lab.loop_schedule import PRIMITIVES
from neptune_lab.loop_schedule.definition.refusal import FloatsDiffer
from neptune_lab.loop_schedule.schedule import Schedule, Step
from neptune_lab.pipeline.facts import between_kernels, buffer_bytes

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

# The normalisations, in the order in which they are applied: each may make a later one possible.
ORDER = ("share_stage", "split_entropy", "split_concatenation", "distribute", "move_scale", "inline_map")
# Those that make more work, which are left out if the others do.
COSTLY = frozenset({"distribute"})
# The most steps of one definition.
_MOST = 64


def normalised(operator: Operator) -> tuple[list[Schedule], tuple[str, ...]]:
    """Schedules of `operator` with the normalisations that apply.

    Args:
        operator: from `neptune_lab.operators`.

    Returns:
        Schedules with different steps, the one with the least work first; none if nothing applies. And why others,
        which are right over the reals, do not apply.
    """
    refused: dict[str, None] = {}
    made = [
        _with_steps(operator, [name for name in ORDER if name not in COSTLY], refused),
        _with_steps(operator, ORDER, refused),
    ]
    if made[0].steps == made[1].steps:
        made.pop()
    return [schedule for schedule in made if schedule.steps], tuple(refused)


def shared(operator: Operator) -> Schedule:
    """A schedule that leaves out the stages that compute the same as earlier ones, which is less work in every case.

    Args:
        operator: from `neptune_lab.operators`.

    Returns:
        The schedule, without steps if there are no such stages.
    """
    return _with_steps(operator, ("share_stage",), {})


def _with_steps(operator: Operator, primitives: Iterable[str], refused: dict[str, None]) -> Schedule:
    """A schedule with every step of some normalisations; `refused` gets the reasons against others."""
    schedule = Schedule(operator)
    for primitive in primitives:
        while len(schedule.steps) < _MOST and _apply_one(schedule, primitive, refused):
            pass
    return schedule


def _apply_one(schedule: Schedule, primitive: str, refused: dict[str, None]) -> bool:
    """Applies a normalisation to the first stage that takes it."""
    (parameter,) = PRIMITIVES[primitive].parameters
    for block in blocks(schedule.program):
        try:
            schedule.apply(Step.of(primitive, **{parameter.name: block.name}))
        except FloatsDiffer as error:
            refused[error.reason] = None
        except NeptuneError:
            continue
        else:
            return True
    return False


def kernels(schedule: Schedule) -> int:
    """How many kernels a scheduled program has: its outermost nests.

    Args:
        schedule: by a template.

    Returns:
        Their number.
    """
    return len(schedule.program.body)


def stored_bytes(schedule: Schedule) -> int:
    """Bytes of what the kernels of a scheduled program leave in global memory for each other."""
    program = schedule.program
    return sum(buffer_bytes(program, name) for name in between_kernels(program))


def asks_for_last_tile(schedule: Schedule) -> bool:
    """Whether a guard of a scheduled program depends on whether the tile is the last one (`loop_schedule.guards`)."""
    expressions = (e for b in blocks(schedule.program) for e in walk(b.body.value))
    return any(
        isinstance(e, Op) and e.name == "guard" and isinstance(e.args[2], Op) and e.args[2].name == "select"
        for e in expressions
    )


__all__ = ["ORDER", "asks_for_last_tile", "kernels", "normalised", "shared", "stored_bytes"]
