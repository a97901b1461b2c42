"""Which values an index takes over its loops, if it is a sum of multiples of loops such as `j0 * 4 + j1`.

Sorted by their steps, each loop must continue where the smaller ones end: with j1 in range(4), a step of 4 for j0 takes
every value once, a smaller step some values twice, and a larger step leaves gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neptune_lab.loop_ir.nodes import Const, Expr, Op, Var


@dataclass(frozen=True, slots=True)
class Reach:
    """Every integer from `low` to `high`, both included; `once`: each of them for one value of the loops only."""

    low: int
    high: int
    once: bool

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Sum:
    """`constant + sum of factor * variable`, without factors of 0, sorted by variable."""

    terms: tuple[tuple[str, int], ...]
    constant: int

    def factor(self, var: str) -> int:
        """The factor of `var`; 0 if it does not occur."""
        return next((k for name, k in self.terms if name == var), 0)

    def plus(self, other: Sum, times: int = 1) -> Sum:
        """self + times * other."""
        factors = dict(self.terms)
        for name, k in other.terms:
            factors[name] = factors.get(name, 0) + times * k
        terms = tuple(sorted((name, k) for name, k in factors.items() if k))
        return Sum(terms, self.constant + times * other.constant)


def as_sum(expr: Expr) -> Sum | None:
    """An index as a sum of multiples of variables; None if it does not have that form.

    >>> as_sum(Op("add", (Op("mul", (Var("j0"), Const(4))), Var("j1"))))
    Sum(terms=(('j0', 4), ('j1', 1)), constant=0)
    """
    match expr:
        case Const(int(value)):
            return Sum((), value)
        case Var(name):
            return Sum(((name, 1),), 0)
        case Op("add" | "sub" as name, (a, b)):
            x, y = as_sum(a), as_sum(b)
            return None if x is None or y is None else x.plus(y, 1 if name == "add" else -1)
        case Op("mul", (a, b)):
            x, y = as_sum(a), as_sum(b)
            if x is None or y is None or (x.terms and y.terms):
                return None
            value, factor = (x, y.constant) if not y.terms else (y, x.constant)
            return Sum((), 0).plus(value, factor)
        case Op("neg", (a,)):
            x = as_sum(a)
            return None if x is None else Sum((), 0).plus(x, -1)
    return None


def without_gaps(index: Sum, extents: Mapping[str, int]) -> Reach | None:
    """The range of a sum over loops `0 <= v < extents[v]`; None if it has gaps, or a loop has no known extent.

    >>> without_gaps(Sum((("j0", 4), ("j1", 1)), 0), {"j0": 3, "j1": 4})
    Reach(low=0, high=11, once=True)
    >>> without_gaps(Sum((("j0", 4), ("j1", 1)), 0), {"j0": 3, "j1": 3}) is None
    True
    """
    low = high = index.constant
    width, once = 1, True
    for step, name in sorted((abs(k), name) for name, k in index.terms):
        if name not in extents:
            return None
        size = extents[name]
        if size == 1:
            continue
        if step > width:
            return None
        once &= step == width
        width += step * (size - 1)
        if index.factor(name) > 0:
            high += step * (size - 1)
        else:
            low -= step * (size - 1)
    return Reach(low, high, once)


def upper_limit(predicate: Expr) -> tuple[Sum, int] | None:
    """(sum, limit) of a predicate `sum < limit` or `sum <= limit - 1`; None if it has another form."""
    match predicate:
        case Op("lt", (a, Const(int(limit)))):
            value = as_sum(a)
            return None if value is None else (value, limit)
        case Op("le", (a, Const(int(limit)))):
            value = as_sum(a)
            return None if value is None else (value, limit + 1)
    return None
