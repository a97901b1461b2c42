"""Tag tables for large shapes: the same steps on the same operator at sizes that a table can hold.

A table of every value of a real shape would have millions of rows. So the operator is made again with a few rows and
columns, from its parameters or by the function that made it, and the schedule's tile sizes shrink with the loops they
split: as many tiles, each smaller.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_widgets.sizes import differentiated, pass_again, remade_smaller, tiny

if TYPE_CHECKING:
    from neptune_lab import Schedule
    from neptune_lab.loop_ir.nodes import Program
    from neptune_lab.loop_schedule import Step
    from neptune_lab.loop_schedule.normalising import Applied
    from neptune_lab.operators import Operator


def sample(schedule: Schedule, smaller: Operator | None = None) -> tuple[Schedule, str] | None:
    """The schedule at tiny sizes, and what these are; None if the operator cannot be made again, or the steps refuse.

    Args:
        schedule: of the real sizes.
        smaller: the operator at small sizes; None: made from the parameters of an operator of the library, or by the
            function that made it.
    """
    return _sample(schedule.operator, schedule.history, smaller)


def fitting(operator: Operator, smaller: Operator) -> Operator:
    """The operator to take the sample of.

    Raises:
        ScheduleError: `smaller` is not the operator at other sizes: it has other inputs or outputs.
    """
    for kind in ("inputs", "outputs"):
        own, other = ([(t.name, len(t.shape), t.dtype) for t in getattr(o, kind)] for o in (operator, smaller))
        if own != other:
            raise ScheduleError(
                f"sample is not {operator.name} at other sizes: its {kind} are {_named(other)}, expected {_named(own)}",
                help="make it by the same function with smaller shapes",
            )
    return smaller


def _named(tensors: list[tuple[str, int, str]]) -> str:
    return ", ".join(f"{name} ({rank}-d {dtype})" for name, rank, dtype in tensors) or "none"


@lru_cache(maxsize=16)
def _sample(operator: Operator, history: tuple[Applied, ...], given: Operator | None) -> tuple[Schedule, str] | None:
    from neptune_lab import Schedule
    from neptune_lab.pipeline.validate.replay import apply_resized

    definition = differentiated(operator) or operator
    wanted = tiny(definition)
    smaller = None if given is not None else pass_again(operator, wanted)
    if smaller is None:
        given = given if given is not None else remade_smaller(operator)
        smaller = given
    if smaller is None:
        return None
    small = Schedule(smaller)
    try:
        apply_resized(small, history, _scaled)
    except NeptuneError:
        return None
    if given is not None:
        return small, ", ".join(f"{t.name} of {' × '.join(map(str, t.shape)) or 'no dimension'}" for t in given.inputs)
    return small, ", ".join(f"{n}={v}" for n, v in wanted.items() if v != definition.params[n])


def _scaled(step: Step, real: Program, small: Program) -> Step:
    """The step with its sizes scaled by the loops that they split."""
    from neptune_lab.loop_schedule import PRIMITIVES

    primitive = PRIMITIVES[step.primitive]
    scaled = primitive.with_sizes(step.plain_arguments(), lambda loop, size: _size(size, loop, real, small))
    return type(step).of(step.primitive, **scaled)


def _size(size: int, loop: str, real: Program, small: Program) -> int:
    from neptune_lab.pipeline.facts import extent

    block, _, var = loop.partition(".")
    few = extent(small, block, var)
    # A tile of one element would have no inner loop, and later steps of the schedule name what that makes.
    return max(min(2, few, size), ceil(size * few / extent(real, block, var)))
