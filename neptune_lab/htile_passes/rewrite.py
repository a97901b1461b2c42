"""Passes: functions of a program, declared with their place in the order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from neptune_lab.htile.nodes import For, Kernel, Program, Stmt, Store, Tensor, TileExpr
from neptune_lab.htile.walk import map_stores, rewrite_store, unchanged, with_body

_COMBINES = {"sum": "add", "max": "max", "min": "min", "prod": "mul"}
_COMBINES_CONDITIONS = {"max": "or", "min": "and"}
# Lanes of a warp, and warps of a kernel that does not say how many.
LANES, DEFAULT_WARPS = 32, 4


def combining(reducer: str, dtype: str) -> str:
    """The operation that combines two results of a reduction in a dtype; of conditions, the largest is their "or".

    >>> combining("sum", "float32"), combining("max", "bool")
    ('add', 'or')
    """
    return (_COMBINES_CONDITIONS if dtype == "bool" else _COMBINES)[reducer]


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
        name: the pass's name in lists and options.
        run: the pass itself.
        after: the pass that it follows directly; None for the first one.
        before: instead of `after`, the pass that it runs directly before, so that no other declaration changes.
        on_request: whether it runs only on request; then it has no place in the order.
    """

    name: str
    run: Pass
    after: str | None = None
    before: str | None = None
    on_request: bool = False


def tile_pass(
    *, after: str | None = None, before: str | None = None, name: str | None = None, on_request: bool = False
) -> Callable[[_Declared], _Declared]:
    """Declares a function as a pass, once for each place where it runs. See `Place` for the arguments."""

    def declare(function: _Declared) -> _Declared:
        place = Place(name or function.__name__, function, after, before, on_request)
        function.places = (place, *getattr(function, "places", ()))  # type: ignore[attr-defined]
        return function

    return declare


def in_order(places: Iterable[Place]) -> dict[str, Pass]:
    """Passes by name, in the order that their places define.

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
        where = f"after {place.after}" if place.before is None else f"before {place.before}"
        raise TypeError(f"pass {place.name} is to run {where}, which is not a pass")
    return {name: named[name].run for name in order}


def apply(rewrite: Pass, program: Program) -> Rewrite:
    """The result of `rewrite(program)`, without notes if the pass returns a program only."""
    result = rewrite(program)
    return result if isinstance(result, Rewrite) else Rewrite(result)


def summary(rewrite: Pass) -> str:
    """What a pass does, in one line: the first line of its module's docstring."""
    return (sys.modules[rewrite.__module__].__doc__ or "").partition("\n")[0]


def rewrite_expressions(program: Program, visit: Callable[[TileExpr], TileExpr]) -> Program:
    """`program` with `visit` applied to every expression of every store; the same object if nothing changed."""
    return map_kernels(program, lambda k: with_body(k, map_stores(k.body, lambda s: rewrite_store(s, visit))))


def map_kernels(program: Program, change: Callable[[Kernel], Kernel]) -> Program:
    """`program` with `change` applied to every kernel; the same object if nothing changed."""
    kernels = tuple(map(change, program.kernels))
    return program if unchanged(kernels, program.kernels) else replace(program, kernels=kernels)


def map_kernels_with_tiles(
    program: Program, change: Callable[[Kernel, Program, set[str], list[Tensor]], Kernel]
) -> Program:
    """`program` with `change` applied to every kernel; the same object if it needed no more tiles.

    `change` takes the kernel, the program, the names of its tensors, and the tensors that are added to it, and itself
    adds to the last two.
    """
    names = {tensor.name for tensor in program.tensors}
    added: list[Tensor] = []
    kernels = tuple(change(kernel, program, names, added) for kernel in program.kernels)
    return replace(program, tensors=(*program.tensors, *added), kernels=kernels) if added else program


def rewrite_loops(
    program: Program,
    change: Callable[[For, Kernel, Callable[[str], str]], tuple[Sequence[Tensor], Iterable[Stmt]] | None],
) -> Program:
    """`program` with other statements in place of loops that no loop contains; the same object if nothing changed.

    Args:
        program: a program.
        change: called with a loop, its kernel, and a function that makes a new tensor's name; returns the new tensors
            and what stands in place of the loop, or None to leave it.
    """
    names = {tensor.name for tensor in program.tensors}
    added: list[Tensor] = []

    def fresh(wanted: str) -> str:
        name = fresh_name(wanted, names, "_")
        names.add(name)
        return name

    def rewritten(kernel: Kernel) -> Kernel:
        body: list[Stmt] = []
        for stmt in kernel.body:
            made = change(stmt, kernel, fresh) if isinstance(stmt, For) else None
            if made is None:
                body.append(stmt)
                continue
            added.extend(made[0])
            body += made[1]
        return kernel if unchanged(body, kernel.body) else with_body(kernel, tuple(body))

    found = map_kernels(program, rewritten)
    return found if found is program else replace(found, tensors=(*program.tensors, *added))


def position(body: list[Stmt], stmt: Stmt) -> int:
    """Where `stmt`, the same object, is in `body`."""
    return next(n for n, other in enumerate(body) if other is stmt)


def edit_bodies(body: tuple[Stmt, ...], edit: Callable[[Store, list[Stmt]], bool]) -> tuple[Stmt, ...]:
    """`body`, and the bodies of its loops, with `edit` called for every store; the same object if nothing changed.

    Args:
        edit: may change the list of statements that the store is in; the result is whether it did.
    """
    out = list(body)
    changed = False
    for stmt in body:
        if isinstance(stmt, Store):
            changed |= edit(stmt, out)
        elif (inner := edit_bodies(stmt.body, edit)) is not stmt.body:
            out[position(out, stmt)] = replace(stmt, body=inner)
            changed = True
    return tuple(out) if changed else body


def fresh_name(wanted: str, taken: Container[str], separator: str = "") -> str:
    """`wanted`, or with a number behind it the first such name that is not taken.

    >>> fresh_name("x", ()), fresh_name("x", {"x", "x_2"}, "_")
    ('x', 'x_3')
    """
    name, n = wanted, 1
    while name in taken:
        n += 1
        name = f"{wanted}{separator}{n}"
    return name
