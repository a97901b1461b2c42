"""For which iterations of a loop a formula is true on the whole tile, and for which it is false."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from neptune_lab.htile.affine import (
    Affine,
    affine,
    bound,
    expression,
    floor_divide,
    is_at_most,
    is_nonnegative,
    maximum,
    minimum,
)
from neptune_lab.htile.bounds import Env
from neptune_lab.htile.nodes import Arith, For, IndexExpr, Int, Name
from neptune_lab.htile.printer import index_text
from neptune_lab.htile.walk import names_of_index
from neptune_lab.htile_passes.partition_masked_loops.formula import Atom, Formula, Junction, Unknown


@dataclass(frozen=True, slots=True)
class IterationRange:
    """The iterations from `lo` up to but not including `hi`; none if `hi <= lo`."""

    lo: IndexExpr
    hi: IndexExpr

    def __str__(self) -> str:
        return f"{index_text(self.lo)} .. {index_text(self.hi)}"


@dataclass(frozen=True, slots=True)
class Span:
    """A loop for this analysis: its variable, its bounds, and the intervals of the variables around it."""

    var: str
    all: IterationRange
    env: Env

    @classmethod
    def of(cls, loop: For, env: Env) -> Span:
        """The span of `loop`, with its bounds in affine form."""
        every = IterationRange(expression(affine(loop.start)), expression(affine(loop.stop)))
        return cls(loop.var, every, env)

    @property
    def none(self) -> IterationRange:
        """No iteration."""
        return IterationRange(self.all.lo, self.all.lo)

    def is_empty(self, at: IterationRange) -> bool:
        """Whether `at` is proven to hold no iteration."""
        return is_at_most(at.hi, at.lo, self.env)

    def covers(self, outer: IterationRange, inner: IterationRange) -> bool:
        """Whether `outer` is proven to hold every iteration of `inner`."""
        if self.is_empty(inner):
            return True
        return is_at_most(outer.lo, inner.lo, self.env) and is_at_most(inner.hi, outer.hi, self.env)

    def meet(self, a: IterationRange, b: IterationRange) -> IterationRange:
        """The iterations in both."""
        return IterationRange(maximum(a.lo, b.lo, self.env), minimum(a.hi, b.hi, self.env))

    def hull(self, a: IterationRange, b: IterationRange) -> IterationRange:
        """A range that holds both."""
        if self.is_empty(a):
            return b
        if self.is_empty(b):
            return a
        return IterationRange(minimum(a.lo, b.lo, self.env), maximum(a.hi, b.hi, self.env))

    def inside_union(self, a: IterationRange, b: IterationRange) -> IterationRange:
        """A range each of whose iterations is in `a` or in `b`: their union if that is one range."""
        # Formal statement: a.lo <= b.hi and b.lo <= a.hi imply [min lo, max hi) = a or b, also where one is empty;
        # so does a common end.
        if self.covers(a, b):
            return a
        if self.covers(b, a):
            return b
        touch = is_at_most(a.lo, b.hi, self.env) and is_at_most(b.lo, a.hi, self.env)
        if touch or a.lo == b.lo or a.hi == b.hi:
            return IterationRange(minimum(a.lo, b.lo, self.env), maximum(a.hi, b.hi, self.env))
        return a


def everywhere(formula: Formula, span: Span) -> IterationRange:
    """Iterations for which `formula` is proven to be true at every lane; there may be more."""
    return _range_of(formula, span, is_hull=False)


def somewhere(formula: Formula, span: Span) -> IterationRange:
    """A range outside which `formula` is false at every lane."""
    return _range_of(formula, span, is_hull=True)


def _range_of(formula: Formula, span: Span, *, is_hull: bool) -> IterationRange:
    unknown = span.all if is_hull else span.none
    match formula:
        case Unknown():
            return unknown
        case Atom():
            solution = _solve(formula.greatest if is_hull else formula.least, span, is_hull=is_hull)
            return unknown if solution is None else solution
        case Junction(op=op, parts=parts):
            either = span.hull if is_hull else span.inside_union
            join, start = (span.meet, span.all) if op == "and" else (either, span.none)
            return reduce(join, (_range_of(part, span, is_hull=is_hull) for part in parts), start)


def depends_on(formula: Formula, var: str) -> bool:
    """Whether an atom of `formula` uses `var`."""
    match formula:
        case Atom(form=form):
            return any(var in names_of_index(atom) for atom, _ in form.terms)
        case Unknown():
            return False
        case Junction(parts=parts):
            return any(depends_on(part, var) for part in parts)


def has_quotient(formula: Formula, var: str) -> bool:
    """Whether an atom of `formula` has a quotient of what depends on `var`."""
    match formula:
        case Atom(form=form):
            return any(isinstance(atom, Arith) and var in names_of_index(atom) for atom, _ in form.terms)
        case Unknown():
            return False
        case Junction(parts=parts):
            return any(has_quotient(part, var) for part in parts)


def _solve(form: Affine, span: Span, *, is_hull: bool) -> IterationRange | None:
    """The iterations for which `form >= 0`, exactly; None if it is not affine in the loop's variable, nor a multiple of
    one quotient that is.

    Formal statement: for integers and k > 0, k * (n // d) + rest >= 0 is n >= -d * (rest // k), and
    -k * (n // d) + rest >= 0 is n <= d * (rest // k) + d - 1.
    """
    slope = form.coefficient(Name(span.var))
    rest = form.without(Name(span.var))
    match [(atom, k) for atom, k in rest.terms if span.var in names_of_index(atom)]:
        case []:
            pass
        case [(Arith(op="//", a=n, b=Int(value=d)) as quotient, k)] if not slope and d > 0:
            whole = floor_divide(rest.without(quotient), abs(k)) * d
            return _solve(whole + affine(n) if k > 0 else whole - affine(n) + (d - 1), span, is_hull=is_hull)
        case _:
            return None
    start, stop = span.all.lo, span.all.hi
    if slope > 0:
        return IterationRange(maximum(start, expression(-floor_divide(rest, slope)), span.env), stop)
    if slope < 0:
        return IterationRange(start, minimum(stop, expression(floor_divide(rest, -slope) + 1), span.env))
    if is_nonnegative(rest, span.env):
        return span.all
    if is_nonnegative(-rest - 1, span.env):
        return span.none
    # All iterations or none, depending on the variables around the loop: `holds` is 1 or 0.
    holds = affine(Arith("min", Arith("max", expression(rest + 1), Int(0)), Int(1)))
    most = max(0, bound(affine(stop) - affine(start), span.env).hi)
    hi = minimum(stop, expression(affine(start) + holds * most), span.env)
    # For a hull, an empty range starts after the last iteration, so that its hull with another range is the other.
    return IterationRange(expression(affine(start) + most - holds * most) if is_hull else start, hi)
