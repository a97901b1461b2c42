"""Applies the steps of a schedule again, to its operator at small sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.verify import verify
from neptune_lab.loop_schedule import PRIMITIVES
from neptune_lab.loop_schedule.cut_loops import Resized
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.normalising import Applied
from neptune_lab.loop_schedule.outcome_cache import at_other_sizes
from neptune_lab.loop_schedule.schedule import Schedule, Step
from neptune_lab.operators import Operator, TensorSpec
from neptune_lab.pipeline.validate.sizes import Plan, is_silent
from neptune_lab.pipeline.validate.small_program import Sizes, new_factor
from neptune_lab.tensor_spec import resized_strides


def small_schedule(scheduled: Schedule, planned: Plan) -> Schedule:
    """The operator of `scheduled` at small sizes, with the same steps.

    Raises:
        ScheduleError: a step does not apply at small sizes.
    """
    made = Schedule(small_operator(scheduled.operator, planned.definition))
    history = [applied for applied in scheduled.history if not is_silent(applied.step)]
    apply_resized(made, history, lambda step, before, now: _step(step, before, now, planned.sizes))
    return made


def apply_resized(
    made: Schedule, history: Iterable[Applied], resized: Callable[[Step, Program, Program], Step]
) -> None:
    """Applies the steps of a schedule to its operator at other sizes, and verifies the last program.

    Args:
        made: the schedule of the operator at other sizes.
        history: the steps, as they were applied and checked before.
        resized: the step with other sizes, from the step, the program that it was applied to, and that of `made`.

    Raises:
        NeptuneError: a step does not apply at these sizes.
    """
    with at_other_sizes():
        for applied in history:
            made.apply(resized(applied.step, applied.before, made.program))
    verify(made.program, made.base)


def small_operator(operator: Operator, small: Program) -> Operator:
    """The operator with the definition `small`."""

    inputs, outputs = (
        tuple(_alike(t, old) for t, old in zip(specs_of(small, names), of_operator, strict=True))
        for names, of_operator in ((small.inputs, operator.inputs), (small.outputs, operator.outputs))
    )
    return replace(operator, inputs=inputs, outputs=outputs, build=lambda: small, captured={})


def _alike(small: TensorSpec, large: TensorSpec) -> TensorSpec:
    """The small tensor, with dimensions in the order, gaps and expansions of the large one's memory."""
    if large.strides is None:
        return small
    return replace(small, strides=resized_strides(small.shape, large.shape, large.strides))


def specs_of(program: Program, names: tuple[str, ...]) -> tuple[TensorSpec, ...]:
    """Names, shapes and dtypes of some of a program's buffers."""
    return tuple(TensorSpec(n, program.buffer(n).shape, program.buffer(n).dtype) for n in names)


def _step(step: Step, before: Program, now: Program, sizes: Sizes) -> Step:
    """The step with factors for the loops as they are now."""

    def loop(ref: str) -> Resized:
        block, var = loop_ref(ref)
        extent, small = (tree.find_loop(program, block, var)[1].extent for program in (before, now))
        return Resized(extent, small, lambda size: new_factor(extent, size, small, sizes))

    return Step.of(step.primitive, **PRIMITIVES[step.primitive].resized(step.plain_arguments(), loop))
