"""What a pass is: a function of a program that is declared with its place among the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from neptune_lab.htile.nodes import Kernel, Program, TileExpr
from neptune_lab.htile.walk import map_stores, rewrite_store, unchanged, with_body


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A pass's result: the program (the same object if nothing changed) and its proof, one sentence per line."""

    program: Program
    notes: tuple[str, ...] = ()


Pass: TypeAlias = Callable[[Program], Program | Rewrite]


_Declared = TypeVar("_Declared", bound=Pass)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pass runs.

    Args:
        name: of the pass in lists and options.
        run: the pass itself.
        after: the pass that it follows directly; None for the first one.
        before: instead of `after`, the pass that it runs directly before: a new pass names one, and no other changes.
        on_request: it runs only on request, so it has no place in the order.
    """

    name: str
    run: Pass
    after: str | None = None
    before: str | None = None
    on_request: bool = False


def tile_pass(
    *, after: str | None = None, before: str | None = None, name: str | None = None, on_request: bool = False
) -> Callable[[_Declared], _Declared]:
    """Declares a function as a pass; a function may have several places. See `Place` for the arguments."""

    def declare(function: _Declared) -> _Declared:
        place = Place(name or function.__name__, function, after, before, on_request)
        function.places = (place, *getattr(function, "places", ()))  # type: ignore[attr-defined]
        return function

    return declare


def in_order(places: Iterable[Place]) -> dict[str, Pass]:
    """Passes by name, in the order that their places ask for.

    Raises:
        TypeError: two passes have one name or one place, or a pass names one that does not exist.
    """
    named: dict[str, Place] = {}
    taken: dict[tuple[str | None, str | None], Place] = {}
    for place in places:
        for known, what in ((named.get(place.name), "name"), (taken.get((place.after, place.before)), "place")):
            if known is not None:
                modules = f"{known.name} ({known.run.__module__}) and {place.name} ({place.run.__module__})"
                raise TypeError(f"two passes have one {what}: {modules}")
        named[place.name] = taken[(place.after, place.before)] = place
    order: list[str] = []
    while (place := taken.pop((order[-1] if order else None, None), None)) is not None:
        order.append(place.name)
    while ready := next((key for key in taken if key[1] in order), None):
        order.insert(order.index(str(ready[1])), taken.pop(ready).name)
    for place in taken.values():
        beside = f"after {place.after}" if place.before is None else f"before {place.before}"
        raise TypeError(f"pass {place.name} is to run {beside}, which is none of the passes")
    return {name: named[name].run for name in order}


def apply(rewrite: Pass, program: Program) -> Rewrite:
    """`rewrite(program)`, with no notes where the pass gives none."""
    result = rewrite(program)
    return result if isinstance(result, Rewrite) else Rewrite(result)


def summary(rewrite: Pass) -> str:
    """What a pass does, in one line: the first of its module's docstring."""
    return (sys.modules[rewrite.__module__].__doc__ or "").partition("\n")[0]


def rewrite_expressions(program: Program, visit: Callable[[TileExpr], TileExpr]) -> Program:
    """`program` with `visit` applied to every expression of every store; the same object where nothing changed."""
    return map_kernels(program, lambda k: with_body(k, map_stores(k.body, lambda s: rewrite_store(s, visit))))


def map_kernels(program: Program, change: Callable[[Kernel], Kernel]) -> Program:
    """`program` with `change` applied to every kernel; the same object where nothing changed."""
    kernels = tuple(map(change, program.kernels))
    return program if unchanged(kernels, program.kernels) else replace(program, kernels=kernels)
