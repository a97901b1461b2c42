"""Every primitive by name: each module of this package that declares one is found by itself.

Schedules, files, the command line, editors and the documentation read `PRIMITIVES`. A new primitive is a new module
here.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.tree import find_block, nearest
from neptune_lab.loop_schedule.declare import Primitive, declared
from neptune_lab.loop_schedule.fusion import check_loop_name


def _declared_primitives() -> Iterator[Primitive]:
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        yield from declared(import_module(f"{__name__}.{name}"))


def by_name(found: Iterable[Primitive]) -> Mapping[str, Primitive]:
    """Primitives by name, TVM's first, each behind the one that its declaration names.

    Raises:
        TypeError: two of them have one name, or a primitive is to follow one that is not there.
    """
    named: dict[str, Primitive] = {}
    for p in sorted(found, key=lambda p: (p.ours, p.name)):
        if p.name in named:
            modules = f"{named[p.name].apply.__module__} and {p.apply.__module__}"
            raise TypeError(f"two primitives are called {p.name!r}, in {modules}: rename one")
        named[p.name] = p

    def listed(after: str | None) -> Iterator[Primitive]:
        for p in named.values():
            if p.after == after:
                yield p
                yield from listed(p.name)

    made = {p.name: p for p in listed(None)}
    for p in named.values():
        if p.name not in made:
            raise TypeError(f"primitive {p.name} is to be listed after {p.after!r}, which is no primitive")
    return made


PRIMITIVES: Mapping[str, Primitive] = by_name(_declared_primitives())


def get(name: str, arguments: Mapping[str, Any], program: Program) -> Primitive:
    """The primitive called `name`, its arguments checked by their kinds; ScheduleError otherwise, with the blocks
    or loops of the program that a name may mean."""
    if name not in PRIMITIVES:
        raise ScheduleError(f"there is no primitive {name!r}", help=nearest(name, list(PRIMITIVES), "primitives"))
    primitive = PRIMITIVES[name]
    primitive.check(arguments)
    for p in primitive.parameters:
        if p.kind.control == "block" and p.name in arguments:
            find_block(program, arguments[p.name])
        if p.kind.control == "loop" and p.name in arguments:
            check_loop_name(program, arguments[p.name])
    return primitive


__all__ = ["PRIMITIVES", "Primitive", "by_name", "get"]
