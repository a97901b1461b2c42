"""The steps of a schedule applied once more, to its operator at small sizes."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.verify import verify
from neptune_lab.loop_schedule.remembered import at_other_sizes
from neptune_lab.loop_schedule.schedule import Schedule, Step
from neptune_lab.operators import Operator, TensorSpec
from neptune_lab.pipeline.validate.sizes import Plan, Sizes, is_silent, new_factor


def small_schedule(scheduled: Schedule, planned: Plan) -> Schedule:
    """The operator of `scheduled` at small sizes, with the same steps.

    Raises:
        ScheduleError: a step does not apply at small sizes.
    """
    made = Schedule(small_operator(scheduled.operator, planned.definition))
    with at_other_sizes():
        for applied in scheduled.history:
            if not is_silent(applied.step):
                made.apply(_step(applied.step, applied.before, made.program, planned.sizes))
    verify(made.program, made.definition)
    return made


def small_operator(operator: Operator, small: Program) -> Operator:
    """The operator with the definition `small`."""

    inputs, outputs = specs_of(small, small.inputs), specs_of(small, small.outputs)
    return replace(operator, inputs=inputs, outputs=outputs, build=lambda: small, captured={})


def specs_of(program: Program, names: tuple[str, ...]) -> tuple[TensorSpec, ...]:
    """Names, shapes and dtypes of some of a program's buffers."""
    return tuple(TensorSpec(n, program.buffer(n).shape, program.buffer(n).dtype) for n in names)


def _step(step: Step, before: Program, now: Program, sizes: Sizes) -> Step:
    """The step with factors for the loops as they are now."""
    arguments = dict(step.arguments)

    def factor(block: str, var: str, old: int) -> int:
        extent = tree.find_loop(before, block, var)[1].extent
        return new_factor(extent, old, tree.find_loop(now, block, var)[1].extent, sizes)

    match step.primitive:
        case "tile":
            block = arguments["block"]
            arguments["tiles"] = tuple((var, factor(block, var, size)) for var, size in arguments["tiles"])
        case "tile_outermost":
            block, var = arguments["loop"].rsplit(".", 1)
            arguments["size"] = factor(block, var, arguments["size"])
        case "split":
            block, var = arguments["loop"].rsplit(".", 1)
            extent = tree.find_loop(before, block, var)[1].extent
            small = tree.find_loop(now, block, var)[1].extent
            factors = list(arguments["factors"])
            if len(factors) == 2 and factors[0] is None:
                factors[1] = new_factor(extent, factors[1], small, sizes)
            elif len(factors) == 2 and factors[1] is None:
                inner = new_factor(extent, -(-extent // factors[0]), small, sizes)
                factors[0] = -(-small // inner)
            elif len(factors) == 3 and None not in factors:  # parts, tiles in each, and elements of a tile
                tile = new_factor(extent, factors[2], small, sizes)
                each = min(factors[1], 2)
                factors = [-(-small // (tile * each)), each, tile]
            elif extent != small:
                factors = [f if f is None else min(f, 2) for f in factors]
            arguments["factors"] = tuple(factors)
    return Step(step.primitive, tuple(arguments.items()))
