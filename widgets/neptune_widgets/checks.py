"""Is the scheduled program still the definition?  Checked natively, on the same schedule at smaller sizes where the
program is too large to run in plain loops."""

from __future__ import annotations

from math import ceil, prod
from typing import TYPE_CHECKING

from neptune_lab.errors import NeptuneError
from neptune_widgets.sample import sample as sampled
from neptune_widgets.sizes import again, few_tiles, function_name, tiny

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neptune_lab import Kernel, Schedule
    from neptune_lab.loop_schedule import Step
    from neptune_lab.operators import Operator

# Stores that run natively within about half a second.
LARGEST = 30_000_000
# Tiles in a part of a split, where it has more: a few say as much as many.
_TILES = 2


def check(schedule: Schedule, sample: Operator | None = None) -> tuple[bool | None, str]:
    """Whether the schedule agrees with the definition, and a sentence; None where that could not be found out.

    Args:
        schedule: what is checked, at smaller sizes if it is large.
        sample: its operator at smaller sizes; None: made from its parameters, or by the function that made it.
    """
    from neptune_lab.pipeline.facts import stores

    size = max(stores(schedule.definition), stores(schedule.program))
    try:
        if size <= LARGEST:
            found = schedule.check()
            return found.equal, str(found)
        smaller = None if sample is not None else reduced(schedule)
        if smaller is None and (small := sampled(schedule, sample)) is not None:
            found = small[0].check()
            return found.equal, f"{found}; the same steps at {small[1]}, since {size:,} stores are too many"
        smaller = smaller or reduced(schedule)
        if smaller is None:
            return None, f"not checked: one run makes {size:,} stores, more than {LARGEST:,}"
        found = smaller.check()
    except NeptuneError as error:
        return None, f"not checked: {error.reason}"
    return found.equal, f"{found}; {_at(schedule, smaller)}, since {size:,} stores are too many"


def _at(schedule: Schedule, smaller: Schedule) -> str:
    """The sizes that are not the schedule's own."""
    own = schedule.operator.params
    pairs = [(n, v) for n, v in smaller.operator.params.items() if v != own.get(n) and not isinstance(v, float)]
    changed = [str(new) for old, new in zip(schedule.steps, smaller.steps, strict=True) if old != new]
    splits = f" with {', '.join(changed)}" if changed else ""
    return f"the same steps{splits} at {', '.join(f'{n}={v}' for n, v in pairs)}"


def smaller_kernel(kernel: Kernel) -> tuple[Kernel, str] | None:
    """A kernel of the same steps and options at smaller sizes, and which; None where that is not to be had."""
    from neptune_lab import compile

    smaller = reduced(kernel.schedule)
    try:
        if smaller is None:
            return None
        return compile(smaller, code=kernel.code, target=kernel.target), _at(kernel.schedule, smaller)
    except NeptuneError:
        return None


def reduced(schedule: Schedule) -> Schedule | None:
    """The same steps on the same operator at sizes that just hold the tiles; None where that is not to be had.

    A split whose factors are all given is made into as many parts as the smaller size fills, since a template leaves
    no part empty.
    """
    from neptune_lab import Schedule

    steps = [_fewer_tiles(step) for step in schedule.steps]
    smaller = again(schedule.operator, few_tiles(schedule.operator, max(_sizes(steps), default=8)))
    if smaller is None:
        return None
    made = Schedule(smaller)
    try:
        for step in steps:
            made.apply(_filled(step, made))
    except NeptuneError:
        return None
    return made


def _fewer_tiles(step: Step) -> Step:
    """A split into parts, tiles of a part and elements of a tile, with few tiles a part."""
    factors = _all_factors(step)
    if len(factors) < 3:
        return step
    return _with_factors(step, [factors[0], *(min(f, _TILES) for f in factors[1:-1]), factors[-1]])


def _filled(step: Step, schedule: Schedule) -> Step:
    """A split into as many parts as the loop fills."""
    from neptune_lab.pipeline.facts import extent

    factors = _all_factors(step)
    if not factors:
        return step
    block, _, var = dict(step.arguments)["loop"].partition(".")
    return _with_factors(step, [ceil(extent(schedule.program, block, var) / prod(factors[1:])), *factors[1:]])


def _all_factors(step: Step) -> list[int]:
    """The factors of a split that gives all of them; otherwise none."""
    factors = list(dict(step.arguments).get("factors", ()))
    return factors if all(isinstance(f, int) for f in factors) else []


def _with_factors(step: Step, factors: list[int]) -> Step:
    return type(step).of(step.primitive, **{**step.as_record()["arguments"], "factors": factors})


def _sizes(steps: Sequence[Step]) -> list[int]:
    """Every size of a tile, and what a part of a split holds."""
    found = []
    for step in steps:
        arguments = step.as_record()["arguments"]
        found += [v for v in arguments.get("tiles", {}).values() if isinstance(v, int)]
        whole = _all_factors(step)
        found += [prod(whole[1:])] if whole else [v for v in arguments.get("factors", ()) if isinstance(v, int)]
    return found


def small_enough(operator: Operator) -> str | None:
    """How one writes the operator at sizes for tag tables; None where it cannot be made again."""
    wanted = tiny(operator)
    if not wanted or again(operator, wanted) is None:
        return None
    return f"{function_name(operator)}({', '.join(f'{n}={v}' for n, v in wanted.items())})"
