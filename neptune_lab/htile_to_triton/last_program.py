"""Which two kernels can be one launch: the last program to finish among those of a row combines their results.

    kernel local, grid (js: 8, h: 4)        kernel local, grid (js: 8, h: 4)
        part[h, js] = ...                       part[h, js] = ...
    kernel combine, grid (h: 4)        ⇒        if 7 programs of this h have arrived before:
        out[h] = sum(part[h, 0:8])                  out[h] = sum(part[h, 0:8])

The programs that write what a program of the second kernel reads are a *group*.  Each adds one to the counter of its
group when it has stored its part; the one that finds all others there runs the second kernel's programs of the group.
Which program that is changes from call to call, what it computes does not: it adds the parts in the same order.

Formal statement.  Let `owner(x)` be the group of the programs of the first kernel that store element x.  The two are
joined only if (1) no element has two owners, (2) every element of the first kernel's tensors that a program of the
second reads has an owner, the group that runs this program, (3) each program of the second is run by exactly one group,
and (4) the second stores to no tensor that the first reads or stores to.  (1) to (3) are tested program by program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from neptune_lab.htile.affine import affine
from neptune_lab.htile.bounds import Interval, grid_env, interval, loop_interval
from neptune_lab.htile.nodes import Access, Arith, For, IndexExpr, Int, Kernel, Name, Program, Slice, Stmt, Store
from neptune_lab.htile.substitute import substitute
from neptune_lab.htile.walk import (
    evaluate,
    gathered_tensors,
    loop_bounds,
    names_of_index,
    reads,
    region,
    simplify,
    stores,
    written_tensors,
)

# The most programs of a kernel, and elements of a tensor, that are tested one by one.
MOST_PROGRAMS, MOST_ELEMENTS = 1 << 16, 1 << 26


@dataclass(frozen=True, slots=True)
class Joined:
    """Two kernels of one launch.

    Args:
        first, second: the kernels; the grid is that of `first`.
        group: the number of a program's group, in the variables of that grid.
        groups: the number of groups.
        arriving: programs of a group.
        body: what the last program of a group runs: the statements of `second` in loops over its programs.
    """

    first: Kernel
    second: Kernel
    group: IndexExpr
    groups: int
    arriving: int
    body: tuple[Stmt, ...]

    @property
    def whole(self) -> Kernel:
        """Both as one kernel, as far as its tensors and tiles go."""
        return replace(self.first, body=(*self.first.body, *self.body))


@dataclass(frozen=True, slots=True)
class _Range:
    """The values that a grid variable of the second kernel has in a group: from `start` to before `stop`."""

    start: IndexExpr
    stop: IndexExpr

    @property
    def only(self) -> bool:
        """Whether it is one value."""
        return simplify(Arith("+", self.start, Int(1))) == self.stop


class _Apart(Exception):
    """Why two kernels cannot be joined."""


def joined(program: Program, first: Kernel, second: Kernel) -> Joined | str:
    """`first` and `second` as one launch.

    Args:
        program: the program that has them, one after the other.

    Returns:
        How they are joined; or why they cannot be, as the end of a sentence about the two.
    """
    try:
        return _joined(program, first, second)
    except _Apart as reason:
        return str(reason)


def _joined(program: Program, first: Kernel, second: Kernel) -> Joined:
    if program.sizes:
        raise _Apart("have sizes that are known at the launch only")
    passed = _passed(program, first, second)
    ranges = {axis.var: _range(program, first, second, axis.var, axis.extent, passed) for axis in second.grid}
    named = frozenset().union(*(names_of_index(r.start) | names_of_index(r.stop) for r in ranges.values()))
    keys = [axis for axis in first.grid if axis.var in named]
    group: IndexExpr = Int(0)
    for axis in keys:
        group = Arith("+", Arith("*", group, Int(axis.extent)), Name(axis.var))
    arriving = math.prod(axis.extent for axis in first.grid if axis.var not in named)
    if arriving == 1:
        raise _Apart("have no programs to wait for: nothing is split")
    groups = math.prod(axis.extent for axis in keys)
    made = Joined(first, second, simplify(group), groups, arriving, _body(first, second, ranges))
    _check(program, made, ranges, passed)
    return made


def _passed(program: Program, first: Kernel, second: Kernel) -> frozenset[str]:
    """The tensors that the second kernel gets from the first."""
    chip = {t.name for t in program.tensors if t.space == "chip"}
    stored, again = written_tensors(first), written_tensors(second)
    passed = (stored - chip) & (_read(second) | _elementwise(second))
    if not passed:
        raise _Apart("pass no tensor on")
    if passed & _elementwise(second):
        raise _Apart(f"pass {min(passed & _elementwise(second))} on, which is read element by element")
    if clash := again & (stored | _read(first) | _elementwise(first)):
        raise _Apart(f"both use {min(clash)}, which the second stores to")
    return passed


def _read(kernel: Kernel) -> frozenset[str]:
    return frozenset(access.tensor for store in stores(kernel.body) for access in reads(store))


def _elementwise(kernel: Kernel) -> frozenset[str]:
    """Tensors that are read by computed indices, or that bound loops."""
    every = (name for store in stores(kernel.body) for name in gathered_tensors(store))
    return frozenset((*every, *(bound.tensor for bound in loop_bounds(kernel.body))))


def _range(program: Program, first: Kernel, second: Kernel, var: str, extent: int, passed: frozenset[str]) -> _Range:
    """The values of a grid variable of `second` whose programs read what one group of `first` has stored."""
    found: dict[tuple[IndexExpr, IndexExpr], None] = {}
    own = {axis.var for axis in first.grid}
    for access in (a for s in stores(second.body) for a in reads(s) if a.tensor in passed):
        for n, index in enumerate(region(access)):
            if var not in names_of_index(index):
                continue
            step = _step(index.start if isinstance(index, Slice) else index, var, second)
            if step is None:
                raise _Apart(f"pass {access.tensor} on, of whose dimension {n} the second reads no whole tiles")
            if step == 0:
                found[Int(0), Int(extent)] = None
                continue
            for store in stores(first.body):
                if store.target.tensor == access.tensor:
                    lo, hi = _stored(region(store.target)[n], program.tensor(access.tensor).shape[n], own)
                    stop = simplify(Arith("//", Arith("+", hi, Int(step - 1)), Int(step)))
                    found[simplify(Arith("//", lo, Int(step))), stop] = None
    if len(found) > 1:
        raise _Apart(f"pass tensors on whose parts along {var} differ")
    start, stop = next(iter(found), (Int(0), Int(extent)))
    if interval(stop, grid_env(first)).hi > extent:  # the last tile passes the end
        stop = simplify(Arith("min", stop, Int(extent)))
    return _Range(start, stop)


def _step(index: IndexExpr, var: str, kernel: Kernel) -> int | None:
    """How far a grid variable moves an index; 0 if another one counts the ranges of this one, as h0 does in
    `h0*16 + h1`; None if the index is no such number of digits."""
    form, extents = affine(index), {axis.var: axis.extent for axis in kernel.grid}
    steps = {term.name: step for term, step in form.terms if isinstance(term, Name) and term.name in extents}
    if form.constant or len(steps) != len(form.terms) or min(steps.values()) < 1:
        return None
    own = steps.pop(var)
    if any(step > own for step in steps.values()):
        return 0
    inside = sum(step * (extents[name] - 1) for name, step in steps.items())
    return own if inside < own else None


def _stored(index: IndexExpr | Slice, size: int, own: set[str]) -> tuple[IndexExpr, IndexExpr]:
    """The bounds of what a program stores along a dimension; all of it if a loop goes along it."""
    if names_of_index(index) - own:
        return Int(0), Int(size)
    if isinstance(index, Slice):
        return simplify(index.start), simplify(Arith("+", index.start, Int(index.extent)))
    return simplify(index), simplify(Arith("+", index, Int(1)))


def _body(first: Kernel, second: Kernel, ranges: Mapping[str, _Range]) -> tuple[Stmt, ...]:
    """The statements of `second`, its grid's variables replaced by their value, or by a loop over the values."""
    taken = {axis.var for axis in first.grid} | set(_variables(first.body))
    if inner := set(_variables(second.body)) & taken:
        raise _Apart(f"both have a loop {min(inner)}")
    taken |= set(_variables(second.body))
    names: dict[str, str] = {}
    for var in ranges:
        name = var
        while name in taken:
            name += "_last"
        taken.add(name)
        names[var] = name
    body = second.body
    for var, name in names.items():  # to names of their own first: values have the first kernel's names
        body = substitute(body, var, Name(name))
    for var, own in ranges.items():
        if own.only:
            body = substitute(body, names[var], own.start)
    for var, own in reversed([*ranges.items()]):
        if not own.only:
            body = (For(second.node_id, names[var], own.start, own.stop, body, second.name),)
    return body


def _variables(body: tuple[Stmt, ...]) -> Iterator[str]:
    for stmt in body:
        if isinstance(stmt, For):
            yield stmt.var
            yield from _variables(stmt.body)


def _check(program: Program, made: Joined, ranges: Mapping[str, _Range], passed: frozenset[str]) -> None:
    """Tests (1) to (3) of the formal statement."""
    largest = max(math.prod(program.tensor(name).shape) for name in passed)
    programs = [math.prod(axis.extent for axis in kernel.grid) for kernel in (made.first, made.second)]
    if max(programs) > MOST_PROGRAMS or largest > MOST_ELEMENTS:
        raise _Apart(f"have more than {MOST_PROGRAMS} programs, or pass on more than {MOST_ELEMENTS} elements")
    owners = {name: np.full(program.tensor(name).shape, -1, np.int32) for name in passed}
    one_of: dict[int, dict[str, int]] = {}
    for env in _programs(made.first):
        group = evaluate(made.group, env)
        one_of.setdefault(group, env)
        for access in _accesses(made.first.body, passed, stored=True):
            owned = owners[access.access.tensor][access.box(program, env)]
            if ((owned != -1) & (owned != group)).any():
                raise _Apart(f"pass {access.access.tensor} on, of which programs of two groups store one element")
            owned[...] = group
    runs = np.zeros([axis.extent for axis in made.second.grid], np.int32)
    for group, env in one_of.items():
        values = [range(evaluate(r.start, env), evaluate(r.stop, env)) for r in ranges.values()]
        for place in product(*values):
            if any(not 0 <= at < n for at, n in zip(place, runs.shape, strict=True)):
                raise _Apart("have grids that do not match")
            runs[place] += 1
            at = dict(zip(ranges, place, strict=True))
            for access in _accesses(made.second.body, passed, stored=False):
                if (owners[access.access.tensor][access.box(program, at)] != group).any():
                    raise _Apart(f"pass {access.access.tensor} on, of which a program reads what other groups store")
    if (runs != 1).any():
        raise _Apart("have grids that do not match")


def _programs(kernel: Kernel) -> Iterator[dict[str, int]]:
    names = [axis.var for axis in kernel.grid]
    for place in product(*(range(axis.extent) for axis in kernel.grid)):
        yield dict(zip(names, place, strict=True))


@dataclass(frozen=True, slots=True)
class _Placed:
    """An access, and the loops around it."""

    access: Access
    loops: tuple[For, ...]

    def box(self, program: Program, env: Mapping[str, int]) -> tuple[slice, ...]:
        """The least box that holds every element that it selects in a program, inside the tensor."""
        bounds = {name: Interval(value, value) for name, value in env.items()}
        for loop in self.loops:
            bounds[loop.var] = loop_interval(loop, bounds)
        sides = []
        for index, size in zip(region(self.access), program.tensor(self.access.tensor).shape, strict=True):
            found = interval(index.start if isinstance(index, Slice) else index, bounds)
            extent = index.extent if isinstance(index, Slice) else 1
            sides.append(slice(max(0, found.lo), max(0, min(size, found.hi + extent))))
        return tuple(sides)


def _accesses(
    body: tuple[Stmt, ...], tensors: frozenset[str], *, stored: bool, loops: tuple[For, ...] = ()
) -> Iterator[_Placed]:
    """The stores to `tensors`, or the reads of them."""
    for stmt in body:
        if isinstance(stmt, Store):
            every = (stmt.target,) if stored else reads(stmt)
            yield from (_Placed(access, loops) for access in every if access.tensor in tensors)
        else:
            yield from _accesses(stmt.body, tensors, stored=stored, loops=(*loops, stmt))


__all__ = ["Joined", "joined"]
