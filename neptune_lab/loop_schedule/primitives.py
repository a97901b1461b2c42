"""The registry: every primitive by name, with its arguments. Schedules, files, the command line and editors use it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.loop_schedule import standard
from neptune_lab.loop_schedule.arguments import check_types
from neptune_lab.loop_schedule.cut import cut
from neptune_lab.loop_schedule.fuse_under import fuse_under
from neptune_lab.loop_schedule.materialize_tags import materialize_tags
from neptune_lab.loop_schedule.outcome import Outcome
from neptune_lab.loop_schedule.privatize_reduction import privatize_reduction
from neptune_lab.loop_schedule.remark import remark
from neptune_lab.loop_schedule.retire_tags import retire_tags
from neptune_lab.loop_schedule.rolling_update import rolling_update
from neptune_lab.loop_schedule.split_k_update import split_k_update
from neptune_lab.loop_schedule.tile_outermost import tile_outermost


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive: `apply(program, **arguments) -> Outcome`; `ours` where TVM has none like it."""

    name: str
    apply: Callable[..., Outcome]
    ours: bool
    summary: str
    parameters: tuple[tuple[str, str, bool], ...]


def _primitive(apply: Callable[..., Outcome], ours: bool) -> Primitive:
    parameters = tuple(
        (name, str(p.annotation), p.default is inspect.Parameter.empty)
        for name, p in list(inspect.signature(apply).parameters.items())[1:]
    )
    doc = (inspect.getdoc(apply) or "").removeprefix("The primitive: ").split("\n")[0]
    return Primitive(apply.__name__, apply, ours, doc, parameters)


_STANDARD = (
    standard.split,
    standard.reorder,
    standard.fuse,
    standard.tile,
    standard.bind,
    standard.compute_at,
    standard.reverse_compute_at,
    standard.inline,
    standard.cache_read,
    standard.cache_write,
    standard.set_scope,
    standard.decompose_reduction,
    standard.annotate,
)
_OURS = (
    *(fuse_under, tile_outermost, privatize_reduction, rolling_update, split_k_update, materialize_tags, retire_tags),
    *(cut, remark),
)

PRIMITIVES: Mapping[str, Primitive] = {
    p.name: p for p in (*(_primitive(f, False) for f in _STANDARD), *(_primitive(f, True) for f in _OURS))
}


def get(name: str, arguments: Mapping[str, Any]) -> Primitive:
    """The primitive called `name`, its arguments' names and types checked; ScheduleError otherwise."""
    if name not in PRIMITIVES:
        raise ScheduleError(f"there is no primitive {name!r}", help=nearest(name, list(PRIMITIVES), "primitives"))
    primitive = PRIMITIVES[name]
    known = [p for p, _, _ in primitive.parameters]
    for argument in arguments:
        if argument not in known:
            raise ScheduleError(f"{name} has no argument {argument!r}", help=nearest(argument, known, "arguments"))
    missing = [p for p, _, required in primitive.parameters if required and p not in arguments]
    if missing:
        raise ScheduleError(f"{name} needs the argument {missing[0]!r}", help=f"its arguments: {', '.join(known)}")
    check_types(name, {p: annotation for p, annotation, _ in primitive.parameters}, arguments)
    return primitive
