"""Is the scheduled program still the definition?  Checked natively, on the same schedule at smaller sizes where the
program is too large to run in plain loops."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import NeptuneError

if TYPE_CHECKING:
    from neptune_lab import Kernel, Schedule
    from neptune_lab.operators import Operator

# Stores that run natively within about half a second.
LARGEST = 30_000_000
# Sizes that a lecture hall can read, for tag tables.
_TINY = {"batch": 1, "heads": 1, "q_len": 8, "kv_len": 8, "head_dim": 4, "rows": 2, "cols": 8}
_SMALL = {"batch": 1, "heads": 2, "head_dim": 16}


def check(schedule: Schedule) -> tuple[bool | None, str]:
    """Whether the schedule agrees with the definition, and a sentence; None where that could not be found out."""
    from neptune_lab.pipeline.facts import stores

    size = max(stores(schedule.definition), stores(schedule.program))
    try:
        if size <= LARGEST:
            found = schedule.check()
            return found.equal, str(found)
        smaller = reduced(schedule)
        if smaller is None:
            return None, f"not checked natively: a run makes {size:,} stores"
        found = smaller.check()
    except NeptuneError as error:
        return None, f"not checked: {error.reason}"
    return found.equal, f"{found}; {_at(schedule, smaller)}, since {size:,} stores are too many"


def _at(schedule: Schedule, smaller: Schedule) -> str:
    """The sizes that are not the schedule's own."""
    own = schedule.operator.params
    pairs = [(n, v) for n, v in smaller.operator.params.items() if v != own.get(n) and not isinstance(v, float)]
    return f"the same steps at {', '.join(f'{n}={v}' for n, v in pairs)}"


def smaller_kernel(kernel: Kernel) -> tuple[Kernel, str] | None:
    """A kernel of the same steps at smaller sizes, and which; None where that is not to be had."""
    from neptune_lab import compile

    smaller = reduced(kernel.schedule)
    try:
        return None if smaller is None else (compile(smaller), _at(kernel.schedule, smaller))
    except NeptuneError:
        return None


def reduced(schedule: Schedule) -> Schedule | None:
    """The same steps on the same operator at sizes that just hold the tiles; None where that is not to be had."""
    from neptune_lab import Schedule

    tile = max(_sizes(schedule), default=8)
    wanted = {}
    for name, value in schedule.operator.params.items():
        if isinstance(value, int) and not isinstance(value, bool):
            # Two whole tiles and the tail that the real size has.
            wanted[name] = min(value, _SMALL.get(name, 2 * tile + value % tile))
    smaller = again(schedule.operator, wanted)
    if smaller is None:
        return None
    try:
        return Schedule.replay(smaller, schedule.steps)
    except NeptuneError:
        return None


def small_enough(operator: Operator) -> str | None:
    """How one writes the operator at sizes for tag tables; None where it cannot be made again."""
    wanted = {n: min(v, _TINY[n]) for n, v in operator.params.items() if n in _TINY}
    if not wanted or again(operator, wanted) is None:
        return None
    return f"{_name(operator)}({', '.join(f'{n}={v}' for n, v in wanted.items())})"


def _sizes(schedule: Schedule) -> list[int]:
    """Every tile size and factor in the schedule."""
    found = []
    for step in schedule.steps:
        arguments = step.as_record()["arguments"]
        found += [v for v in arguments.get("tiles", {}).values() if isinstance(v, int)]
        found += [v for v in arguments.get("factors", ()) if isinstance(v, int)]
    return found


def _name(operator: Operator) -> str | None:
    from neptune_lab.operators import OPERATORS

    return next((name for name in OPERATORS if name.replace(".", "_") == operator.name), None)


def again(operator: Operator, sizes: dict[str, Any]) -> Operator | None:
    """The operator made anew at other sizes; None where its parameters do not tell all (a mod is a function)."""
    from neptune_lab.operators import OPERATORS

    name = _name(operator)
    if name is None or any(operator.params.get(mod) for mod in ("score_mod", "mask_mod")):
        return None
    taken = inspect.signature(OPERATORS[name]).parameters
    try:
        return OPERATORS[name](**{n: v for n, v in {**operator.params, **sizes}.items() if n in taken})
    except (NeptuneError, TypeError):
        return None
