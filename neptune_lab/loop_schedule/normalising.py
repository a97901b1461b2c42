"""Normalisations among the steps of a schedule: they come first, and templates plan for the program after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.outcome import Outcome
from neptune_lab.loop_schedule.primitives import PRIMITIVES
from neptune_lab.loop_schedule.steps import Step


@dataclass(frozen=True, slots=True)
class Applied:
    """A step that was applied: the program before it, its outcome, and the template that applied it, if one did."""

    step: Step
    before: Program
    outcome: Outcome
    template: str = ""


def base_of(history: Iterable[Applied], definition: Program) -> Program:
    """The definition after the normalisations.

    Args:
        history: the applied steps, in order.
        definition: the program before them.

    Returns:
        The program of the last normalisation; the definition if there is none.
    """
    base = definition
    for applied in history:
        if PRIMITIVES[applied.step.primitive].normalises:
            base = applied.outcome.program
    return base


def divided(history: Sequence[Applied]) -> tuple[Sequence[Applied], Sequence[Applied]]:
    """The steps up to the last normalisation, and those after it.

    Args:
        history: the applied steps, in order.

    Returns:
        Both parts of `history`.
    """
    found = [n for n, applied in enumerate(history, 1) if PRIMITIVES[applied.step.primitive].normalises]
    first = max(found, default=0)
    return history[:first], history[first:]


def sources_of(history: Iterable[Applied]) -> dict[str, str]:
    """The stage of the definition that each new stage was made of.

    Args:
        history: the applied steps, in order.

    Returns:
        Stages of the definition by the names of the stages that normalisations added.
    """
    found: dict[str, str] = {}
    for applied in history:
        for name, source in applied.outcome.sources:
            found[name] = found.get(source, source)
    return found


def check_first(history: Iterable[Applied], step: Step) -> None:
    """Formal statement: a normalisation rewrites a definition, so every step before it is one, or changes no number.

    Args:
        history: the applied steps, in order.
        step: a normalisation.

    Raises:
        ScheduleError: another step was applied before.
    """
    for applied in history:
        if changes_loops(applied.step):
            raise ScheduleError(
                f"{step}: {applied.step} is applied already, and a normalisation rewrites the definition, before any "
                "other step",
                help=f"take steps back with Schedule.undo() up to {applied.step}, then apply {step.primitive}",
            )


def changes_loops(step: Step) -> bool:
    """Whether a step is neither a normalisation nor one that leaves the program unchanged."""
    primitive = PRIMITIVES[step.primitive]
    return not (primitive.normalises or primitive.is_silent(step.plain_arguments()))


__all__ = ["Applied", "base_of", "changes_loops", "check_first", "divided", "sources_of"]
