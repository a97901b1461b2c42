"""A saved record made again: its operator and its steps, by the compiler that is here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neptune_lab.errors import ScheduleError
from neptune_widgets.session import Session, normal
from neptune_widgets.sizes import again, function_name

if TYPE_CHECKING:
    from neptune_lab.trace import Trace

_DIFFERENT = "The kernel's text differs from the saved one: other options of code generation, or another version."


def can_revive(trace: Trace) -> bool:
    """Whether a record is of an operator that the library can make from the record's parameters."""
    operator = trace.operator
    mods = any(operator.params.get(mod) for mod in ("score_mod", "mask_mod"))
    return not operator.python and not mods and function_name(operator) is not None


def revived(trace: Trace) -> tuple[Session, str]:
    """A session that shows what a record shows.

    Args:
        trace: the record; its parameters and steps are data, which the operator's function and the schedule check.

    Returns:
        The session, and in what its kernel differs from the saved one, "" if in nothing.

    Raises:
        ScheduleError: the operator is none of the library's, or its steps do not make the loop program of the record.
        NeptuneError: a step is refused.
    """
    from neptune_lab import Schedule

    record = trace.operator
    operator = again(record, {}) if can_revive(trace) else None
    if operator is None:
        raise ScheduleError(
            f"{record.name} is not an operator that this library can make from its parameters",
            help="show the operator itself: nl.explore(op)",
        )
    tensors = [(t.name, tuple(t.shape), t.dtype) for t in (*operator.inputs, *operator.outputs)]
    if tensors != [(t.name, tuple(t.shape), t.dtype) for t in (*record.inputs, *record.outputs)]:
        raise ScheduleError(f"{record.name} has other inputs or outputs here than in the record")
    schedule = Schedule(operator)
    steps = [step for step in trace.steps[1:] if step.error is None]
    for n, step in enumerate(steps):
        schedule.apply(normal(step.primitive, step.arguments))
        schedule.attribute(step.template, n)
    session = Session(schedule)
    made = session.trace
    if [line.text for line in made.program] != [line.text for line in trace.program]:
        raise ScheduleError(
            f"the steps of the record make another loop program of {record.name} here",
            help="open the record with the version of neptune_lab that saved it",
        )
    saved = "" if trace.kernel is None else trace.kernel.source
    here = "" if made.kernel is None else made.kernel.source
    return session, "" if saved == here else _DIFFERENT


__all__ = ["can_revive", "revived"]
