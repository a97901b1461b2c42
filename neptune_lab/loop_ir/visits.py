"""Which points of its iterations a block visits, under the loops around it and its predicates, and how often.

Iterations that share no loop and no predicate are independent, so each group of connected ones is looked at alone: an
index that is a sum of loops by its steps (`reach`), any other group point by point.  Loops that were fused are taken
apart into digits first (`ij // 8` and `ij % 8` are two loops), so that few groups need their points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from neptune_lab.loop_ir.nodes import Const, Expr, Iter, Loop, Op, Var, children, rebuild, substitute, variables, walk
from neptune_lab.loop_ir.reach import as_sum, upper_limit, without_gaps
from neptune_lab.loop_ir.simplify import bounds, simplify
from neptune_lab.scalar_ops import NUMPY, OPERATIONS

# The most points of one group that are looked at.
LIMIT = 1 << 21

Points: TypeAlias = npt.NDArray[np.int64]
Extents: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class VisitGroup:
    """Connected iterations and what is visited of them.

    Args:
        iters: their names.
        loops: the loops of extent 2 and more that they and their predicates run along, fused ones whole.
        ranges: the least and the greatest value of each.
        points: the distinct points that are visited, one row each; None where it is all of the range of a single one.
        once: each point is visited by one value of the loops only.
    """

    iters: tuple[str, ...]
    loops: frozenset[str]
    ranges: tuple[tuple[int, int], ...]
    points: Points | None
    once: bool

    @property
    def count(self) -> int:
        """How many distinct points are visited."""
        if self.points is not None:
            return len(self.points)
        return prod(high - low + 1 for low, high in self.ranges)

    def counts(self, names: Iterable[str]) -> tuple[int, int, int]:
        """(how many distinct points of the iterations `names`, the fewest and the most points of the others at one)."""
        at = [n for n, name in enumerate(self.iters) if name in set(names)]
        if self.points is None or not at:
            return (1, self.count, self.count) if not at else (self.count, 1, 1)
        _, found = np.unique(_codes(self.points[:, at]), return_counts=True)
        return len(found), int(found.min()), int(found.max())


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """What a block visits.

    Args:
        groups: of its iterations; None where a group has too many points, or an index is not arithmetic of loops.
        idle: loops of extent 2 and more that no iteration runs along: the block does the same again.
        unknown: the iterations that could not be judged.
    """

    groups: tuple[VisitGroup, ...]
    idle: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    def group(self, name: str) -> VisitGroup | None:
        """The group of an iteration."""
        return next((g for g in self.groups if name in g.iters), None)

    def range(self, name: str) -> tuple[int, int] | None:
        """Least and greatest value of an iteration; None where unknown."""
        group = self.group(name)
        return None if group is None else group.ranges[group.iters.index(name)]


def extents_of(loops: Iterable[Loop]) -> Extents:
    """Names and extents of loops, outermost first."""
    return tuple((loop.var, loop.extent) for loop in loops)


@lru_cache(maxsize=4096)
def visits(iters: tuple[Iter, ...], predicates: tuple[Expr, ...], loops: Extents) -> Visits:
    """What a block with these iterations and predicates visits under these loops."""
    wide = {var: extent for var, extent in loops if extent > 1}
    unit: dict[str, Expr] = {var: Const(0) for var, extent in loops if extent == 1}
    bindings = [simplify(substitute(it.binding, unit), wide) for it in iters]
    kept = [simplify(substitute(p, unit), wide) for p in predicates]
    kept = [p for p in kept if not always(p, wide)]
    digits, sizes = digits_of([*bindings, *kept], wide)
    bindings = [simplify(in_digits(b, digits), sizes) for b in bindings]
    kept = [simplify(in_digits(p, digits), sizes) for p in kept]
    home = {digit: var for var, parts in digits.items() for digit, _, _ in parts}

    groups: list[VisitGroup] = []
    unknown: list[str] = []
    used: set[str] = set()
    for members, bounds_, names in connected(bindings, kept):
        own = {name: sizes[name] for name in names if name in sizes}
        if not members:
            continue
        around = frozenset(home.get(name, name) for name in own)
        found = _group([iters[n].name for n in members], [bindings[n] for n in members], bounds_, own, around)
        if found is None:
            unknown += [iters[n].name for n in members]
        else:
            groups.append(found)
        used |= around
    return Visits(tuple(groups), tuple(var for var in wide if var not in used), tuple(unknown))


def always(predicate: Expr, extents: Mapping[str, int]) -> bool:
    """Whether `a < limit` or `a <= limit` holds for all values of the loops."""
    match predicate:
        case Const(value):
            return bool(value)
        case Op("lt" | "le" as name, (a, Const(int(limit)))):
            found = bounds(a, extents)
            return found is not None and found[1] < limit + (name == "le")
    return False


def connected(values: list[Expr], predicates: list[Expr]) -> list[tuple[list[int], list[Expr], list[str]]]:
    """Groups of values and predicates that share variables: (numbers of values, predicates, variables), in order."""
    groups: list[tuple[list[int], list[Expr], list[str]]] = []
    for number, (expr, is_value) in enumerate([(v, True) for v in values] + [(p, False) for p in predicates]):
        names = sorted(variables(expr))
        mine: tuple[list[int], list[Expr], list[str]] = (
            [number] if is_value else [],
            [] if is_value else [expr],
            names,
        )
        apart = []
        for group in groups:
            if set(group[2]) & set(names):
                mine = (
                    sorted(group[0] + mine[0]),
                    group[1] + mine[1],
                    group[2] + [n for n in mine[2] if n not in group[2]],
                )
            else:
                apart.append(group)
        groups = [*apart, mine]
    return groups


def _group(
    names: list[str], values: list[Expr], predicates: list[Expr], sizes: dict[str, int], loops: frozenset[str]
) -> VisitGroup | None:
    if len(values) == 1 and (found := _line(values[0], predicates, sizes)) is not None:
        return VisitGroup(tuple(names), loops, (found,), None, True)
    table = points(values, predicates, sizes)
    if table is None:
        return None
    if not len(table):
        return VisitGroup(tuple(names), loops, tuple((0, -1) for _ in names), table, True)
    _, first = np.unique(_codes(table), return_index=True)
    distinct = table[first]
    ranges = tuple((int(a), int(b)) for a, b in zip(distinct.min(axis=0), distinct.max(axis=0), strict=True))
    return VisitGroup(tuple(names), loops, ranges, distinct, len(distinct) == len(table))


def _codes(table: Points) -> Points:
    """One number per row, equal where the rows are, which are sorted as fast as numbers are."""
    if not len(table):
        return np.zeros(0, np.int64)
    spans = [int(n) for n in table.max(axis=0) - table.min(axis=0) + 1]
    if prod(spans) >= 1 << 62:
        return np.unique(table, axis=0, return_inverse=True)[1]
    steps = np.array([prod(spans[n + 1 :]) for n in range(len(spans))], np.int64)
    return (table - table.min(axis=0)) @ steps


def _line(value: Expr, predicates: list[Expr], sizes: dict[str, int]) -> tuple[int, int] | None:
    """The range of a sum of loops that visits each value once, where every predicate bounds just this sum."""
    form = as_sum(value)
    found = None if form is None else without_gaps(form, sizes)
    if form is None or found is None or not found.once or {name for name, _ in form.terms} != set(sizes):
        return None
    high = found.high
    for predicate in predicates:
        limit = upper_limit(predicate)
        if limit is None:
            return None
        apart = limit[0].plus(form, -1)
        if apart.terms:
            return None
        high = min(high, limit[1] - 1 - apart.constant)
    return (found.low, high) if found.low <= high else None


def points(values: list[Expr], predicates: list[Expr], sizes: Mapping[str, int]) -> Points | None:
    """One row of values for each point of the loops where the predicates hold; None where there are too many, or where
    an expression is not arithmetic of loops."""
    names = list(sizes)
    if prod(sizes.values()) > LIMIT:
        return None
    shape = tuple(sizes[name] for name in names)
    env: dict[str, Points] = {}
    for axis, name in enumerate(names):
        env[name] = np.arange(shape[axis]).reshape([-1 if n == axis else 1 for n in range(len(names))])
    try:
        mask = np.ones(shape, bool)
        for predicate in predicates:
            mask = mask & evaluate(predicate, env)
        columns = [np.broadcast_to(evaluate(value, env), shape)[mask] for value in values]
    except (KeyError, ZeroDivisionError):
        return None
    return np.stack(columns, axis=1) if columns else np.zeros((int(mask.sum()), 0), np.int64)


def evaluate(expr: Expr, env: Mapping[str, Points]) -> Points:
    """An index or a condition over arrays of its variables; KeyError for what is not arithmetic of them.

    Functions of floats are left out: kernels round their results to float32.
    """
    match expr:
        case Const(value):
            return np.asarray(value)
        case Var(name):
            return env[name]
        case Op(name, args) if OPERATIONS[name].kind != "float":
            return NUMPY[name](*(evaluate(a, env) for a in args))
    raise KeyError(type(expr).__name__)


# -- fused loops ---------------------------------------------------------------------------------------------

# Digits of a loop: name, step and size of each, the smallest step first.
Parts: TypeAlias = tuple[tuple[str, int, int], ...]


def digits_of(exprs: list[Expr], extents: Mapping[str, int]) -> tuple[dict[str, Parts], dict[str, int]]:
    """The loops that are only divided by sizes that divide each other, as digits; and the sizes of all loops then.

    `ij // 8` and `ij % 8` of a loop of 32: the digits are 8 of step 1 and 4 of step 8.
    """
    cuts: dict[str, set[int]] = {}
    for expr in exprs:
        for node in walk(expr):
            match node:
                case Op("floordiv", (Var(name), Const(int(size)))) | Op("floormod", (Var(name), Const(int(size)))):
                    cuts.setdefault(name, set()).add(size)
                case Op("floormod", (Op("floordiv", (Var(name), Const(int(a)))), Const(int(b)))):
                    cuts.setdefault(name, set()).update((a, a * b))
    found: dict[str, Parts] = {}
    sizes = dict(extents)
    for name, wanted in cuts.items():
        if name not in extents:
            continue
        extent = extents[name]
        steps = [1, *sorted(s for s in wanted if 1 < s < extent), extent]
        if any(s <= 0 for s in wanted) or any(b % a for a, b in pairwise(steps)):
            continue
        parts = tuple((f"{name}@{a}", a, b // a) for a, b in pairwise(steps) if b > a)
        found[name] = parts
        del sizes[name]
        sizes.update((digit, size) for digit, _, size in parts)
    return found, sizes


def steps_along(expr: Expr, loops: Extents) -> list[tuple[str, int]] | None:
    """The steps that an index takes along the loops, outermost first, a fused loop digit by digit; None where it is no
    sum of loops and digits.

    >>> steps_along(Op("floormod", (Var("ij"), Const(8))), (("k", 4), ("ij", 32)))
    [('ij', 1)]
    """
    wide = {var: extent for var, extent in loops if extent > 1}
    value = simplify(substitute(expr, {var: Const(0) for var, extent in loops if extent == 1}), wide)
    digits, sizes = digits_of([value], wide)
    form = as_sum(simplify(in_digits(value, digits), sizes))
    if form is None:
        return None
    found = []
    for var in wide:
        for name in [d for d, _, _ in reversed(digits[var])] if var in digits else [var]:
            if factor := form.factor(name):
                found.append((var, factor))
    return found


def in_digits(expr: Expr, digits: Mapping[str, Parts]) -> Expr:
    match expr:
        case Op("floormod", (Op("floordiv", (Var(name), Const(int(a)))), Const(int(b)))) if name in digits:
            return _sum((d, s // a) for d, s, _ in digits[name] if a <= s < a * b)
        case Op("floordiv", (Var(name), Const(int(size)))) if name in digits:
            return _sum((d, s // size) for d, s, _ in digits[name] if s >= size)
        case Op("floormod", (Var(name), Const(int(size)))) if name in digits:
            return _sum((d, s) for d, s, _ in digits[name] if s < size)
        case Var(name) if name in digits:
            return _sum((d, s) for d, s, _ in digits[name])
    return rebuild(expr, tuple(in_digits(c, digits) for c in children(expr)))


def _sum(terms: Iterable[tuple[str, int]]) -> Expr:
    result: Expr | None = None
    for name, step in terms:
        term: Expr = Var(name) if step == 1 else Op("mul", (Var(name), Const(step)))
        result = term if result is None else Op("add", (term, result))
    return Const(0) if result is None else result
