"""The iteration domain of a block: which values its iteration variables take, under its loops and predicates, and how
often.

Iteration variables that share no loop and no predicate are independent, so each group of connected ones is analysed
separately: one variable that is a sum of loops by its steps (`reach`), any other group by enumerating its points.
Fused loops are first split into digits (`ij // 8` and `ij % 8` are two loops), so that few groups are enumerated.
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

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Iter, Loop, Op, Var, children, rebuild
from neptune_lab.loop_ir.reach import as_sum, upper_limit, without_gaps
from neptune_lab.loop_ir.simplify import bounds, simplify
from neptune_lab.loop_ir.walks import substitute, variables, walk
from neptune_lab.scalar_ops import NUMPY, OPERATIONS

# The most points of one group that are enumerated.
LIMIT = 1 << 21

Points: TypeAlias = npt.NDArray[np.int64]
Extents: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class DomainGroup:
    """The domain of connected iteration variables.

    Args:
        iters: the names of the variables.
        loops: the loops of extent 2 and more in their bindings and predicates; a fused loop counts as one.
        ranges: the least and the greatest value of each variable.
        points: the distinct points, int64[points, variables]; None: all values in the range of a single variable.
        once: each point occurs for one value of the loops only.
    """

    iters: tuple[str, ...]
    loops: frozenset[str]
    ranges: tuple[tuple[int, int], ...]
    points: Points | None
    once: bool

    @property
    def count(self) -> int:
        """How many distinct points there are."""
        if self.points is not None:
            return len(self.points)
        return prod(high - low + 1 for low, high in self.ranges)

    def counts(self, names: Iterable[str]) -> tuple[int, int, int]:
        """How many distinct points the variables `names` have; the fewest and the most points of the others at one."""
        at = [n for n, name in enumerate(self.iters) if name in set(names)]
        if self.points is None or not at:
            return (1, self.count, self.count) if not at else (self.count, 1, 1)
        _, counts = np.unique(_codes(self.points[:, at]), return_counts=True)
        return len(counts), int(counts.min()), int(counts.max())


@dataclass(frozen=True, slots=True, eq=False)
class IterationDomain:
    """The domain of all iteration variables of a block.

    Args:
        groups: the connected variables whose domain is known.
        repeating: loops of extent 2 and more on which no variable depends: they repeat the block.
        unknown: the other variables: a group has too many points, or a binding is not arithmetic of loops.
    """

    groups: tuple[DomainGroup, ...]
    repeating: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    def group(self, name: str) -> DomainGroup | None:
        """The group of a variable; None if its domain is unknown."""
        return next((g for g in self.groups if name in g.iters), None)

    def range(self, name: str) -> tuple[int, int] | None:
        """Least and greatest value of a variable; None if unknown."""
        group = self.group(name)
        return None if group is None else group.ranges[group.iters.index(name)]


def extents_of(loops: Iterable[Loop]) -> Extents:
    """Names and extents of loops, outermost first."""
    return tuple((loop.var, loop.extent) for loop in loops)


@lru_cache(maxsize=4096)
def iteration_domain(iters: tuple[Iter, ...], predicates: tuple[Expr, ...], loops: Extents) -> IterationDomain:
    """The domain of a block with these iteration variables and predicates.

    Args:
        iters: the variables, bound to expressions over the loops.
        predicates: conditions over the loops under which the block runs.
        loops: names and extents of the loops around it, outermost first.
    """
    wide = {var: extent for var, extent in loops if extent > 1}
    unit: dict[str, Expr] = {var: Const(0) for var, extent in loops if extent == 1}
    bindings = [simplify(substitute(it.binding, unit), wide) for it in iters]
    kept = [simplify(substitute(p, unit), wide) for p in predicates]
    kept = [p for p in kept if not always(p, wide)]
    digits, sizes = digits_of([*bindings, *kept], wide)
    bindings = [simplify(in_digits(b, digits), sizes) for b in bindings]
    kept = [simplify(in_digits(p, digits), sizes) for p in kept]
    home = {digit: var for var, parts in digits.items() for digit, _, _ in parts}

    groups: list[DomainGroup] = []
    unknown: list[str] = []
    used: set[str] = set()
    for members, bounds_, names in connected(bindings, kept):
        own = {name: sizes[name] for name in names if name in sizes}
        if not members:
            continue
        around = frozenset(home.get(name, name) for name in own)
        members_names = [iters[n].name for n in members]
        group = _group(members_names, [bindings[n] for n in members], bounds_, own, around)
        if group is None:
            unknown += members_names
        else:
            groups.append(group)
        used |= around
    return IterationDomain(tuple(groups), tuple(var for var in wide if var not in used), tuple(unknown))


def always(predicate: Expr, extents: Mapping[str, int]) -> bool:
    """Whether a predicate is `a < limit` or `a <= limit` and holds for all values of the loops."""
    match predicate:
        case Const(value):
            return bool(value)
        case Op("lt" | "le" as name, (a, Const(int(limit)))):
            limits = bounds(a, extents)
            return limits is not None and limits[1] < limit + (name == "le")
    return False


def connected(values: list[Expr], predicates: list[Expr]) -> list[tuple[list[int], list[Expr], list[str]]]:
    """Groups of values and predicates that share variables: (positions of values, predicates, variables), in order."""
    groups: list[tuple[list[int], list[Expr], list[str]]] = []
    for number, (expr, is_value) in enumerate([(v, True) for v in values] + [(p, False) for p in predicates]):
        names = sorted(variables(expr))
        mine: tuple[list[int], list[Expr], list[str]] = (
            [number] if is_value else [],
            [] if is_value else [expr],
            names,
        )
        separate = []
        for group in groups:
            if set(group[2]) & set(names):
                mine = (
                    sorted(group[0] + mine[0]),
                    group[1] + mine[1],
                    group[2] + [n for n in mine[2] if n not in group[2]],
                )
            else:
                separate.append(group)
        groups = [*separate, mine]
    return groups


def _group(
    names: list[str], values: list[Expr], predicates: list[Expr], sizes: dict[str, int], loops: frozenset[str]
) -> DomainGroup | None:
    if len(values) == 1 and (limits := _range_without_gaps(values[0], predicates, sizes)) is not None:
        return DomainGroup(tuple(names), loops, (limits,), None, True)
    table = points(values, predicates, sizes)
    if table is None:
        return None
    if not len(table):
        return DomainGroup(tuple(names), loops, tuple((0, -1) for _ in names), table, True)
    _, first = np.unique(_codes(table), return_index=True)
    distinct = table[first]
    ranges = tuple((int(a), int(b)) for a, b in zip(distinct.min(axis=0), distinct.max(axis=0), strict=True))
    return DomainGroup(tuple(names), loops, ranges, distinct, len(distinct) == len(table))


def _codes(table: Points) -> Points:
    """One number per row, equal only for equal rows: numbers are sorted faster than rows."""
    if not len(table):
        return np.zeros(0, np.int64)
    spans = [int(n) for n in table.max(axis=0) - table.min(axis=0) + 1]
    if prod(spans) >= 1 << 62:
        return np.unique(table, axis=0, return_inverse=True)[1]
    steps = np.array([prod(spans[n + 1 :]) for n in range(len(spans))], np.int64)
    return (table - table.min(axis=0)) @ steps


def _range_without_gaps(value: Expr, predicates: list[Expr], sizes: dict[str, int]) -> tuple[int, int] | None:
    """The range of a sum of loops that takes each value once; None if it is none, or if a predicate bounds anything but
    this sum."""
    form = as_sum(value)
    reach = None if form is None else without_gaps(form, sizes)
    if form is None or reach is None or not reach.once or {name for name, _ in form.terms} != set(sizes):
        return None
    high = reach.high
    for predicate in predicates:
        limit = upper_limit(predicate)
        if limit is None:
            return None
        difference = limit[0].plus(form, -1)
        if difference.terms:
            return None
        high = min(high, limit[1] - 1 - difference.constant)
    return (reach.low, high) if reach.low <= high else None


def points(values: list[Expr], predicates: list[Expr], sizes: Mapping[str, int]) -> Points | None:
    """The values at each point of the loops at which the predicates hold.

    Args:
        values: index expressions over the loops.
        predicates: conditions over the loops.
        sizes: the extents of the loops.

    Returns:
        int64[points, values]; None if there are more than `LIMIT` points, or an expression is not arithmetic of loops.
    """
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
    """An index or a condition over arrays of its variables.

    Functions of floats are left out: kernels round their results to float32.

    Raises:
        KeyError: a variable without an array, or an operation that is not arithmetic of integers.
    """
    match expr:
        case Const(value):
            return np.asarray(value)
        case Var(name):
            return env[name]
        case Op(name, args) if OPERATIONS[name].kind != "float":
            return NUMPY[name](*(evaluate(a, env) for a in args))
        case Cast("int32" | "int64", arg):  # of an integer or a condition
            return evaluate(arg, env).astype(np.int64)
    raise KeyError(type(expr).__name__)


# -- fused loops ---------------------------------------------------------------------------------------------

# Digits of a loop: name, step and size of each, the smallest step first.
Digits: TypeAlias = tuple[tuple[str, int, int], ...]


def digits_of(exprs: list[Expr], extents: Mapping[str, int]) -> tuple[dict[str, Digits], dict[str, int]]:
    """Splits each loop that is divided by sizes which divide each other; also returns the extents of the new loops.

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
    digits: dict[str, Digits] = {}
    sizes = dict(extents)
    for name, wanted in cuts.items():
        if name not in extents:
            continue
        extent = extents[name]
        steps = [1, *sorted(s for s in wanted if 1 < s < extent), extent]
        if any(s <= 0 for s in wanted) or any(b % a for a, b in pairwise(steps)):
            continue
        parts = tuple((f"{name}@{a}", a, b // a) for a, b in pairwise(steps) if b > a)
        digits[name] = parts
        del sizes[name]
        sizes.update((digit, size) for digit, _, size in parts)
    return digits, sizes


def steps_along(expr: Expr, loops: Extents) -> list[tuple[str, int]] | None:
    """The steps that an index takes along the loops, outermost first, a fused loop digit by digit; None if the index is
    not a sum of loops and digits.

    >>> steps_along(Op("floormod", (Var("ij"), Const(8))), (("k", 4), ("ij", 32)))
    [('ij', 1)]
    """
    wide = {var: extent for var, extent in loops if extent > 1}
    value = simplify(substitute(expr, {var: Const(0) for var, extent in loops if extent == 1}), wide)
    digits, sizes = digits_of([value], wide)
    form = as_sum(simplify(in_digits(value, digits), sizes))
    if form is None:
        return None
    steps = []
    for var in wide:
        for name in [d for d, _, _ in reversed(digits[var])] if var in digits else [var]:
            if factor := form.factor(name):
                steps.append((var, factor))
    return steps


def in_digits(expr: Expr, digits: Mapping[str, Digits]) -> Expr:
    """`expr` over the digits of split loops instead of the loops themselves."""
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
