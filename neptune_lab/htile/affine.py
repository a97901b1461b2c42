"""Affine forms of index expressions, and a small prover of inequalities between them.

A form is `constant + sum of coefficient * atom`; an atom is a variable or an expression that is not affine (a floor
division, a remainder, a minimum, a maximum, a product of variables).  Loop bounds are compared as forms, so that equal
terms cancel: `i0 <= i0+1` needs no interval of `i0`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal as Lit
from typing import assert_never

from neptune_lab.htile.bounds import Env, Interval, interval
from neptune_lab.htile.nodes import Arith, IndexExpr, Int, Name


@dataclass(frozen=True, slots=True)
class Affine:
    """`constant + sum of coefficient * atom`; no coefficient is 0, no atom occurs twice."""

    terms: tuple[tuple[IndexExpr, int], ...]
    constant: int

    def coefficient(self, atom: IndexExpr) -> int:
        """The coefficient of `atom`; 0 if it does not occur."""
        return next((k for a, k in self.terms if a == atom), 0)

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        return _form([*self.terms, *other.terms], self.constant + other.constant)

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (-other)

    def __mul__(self, factor: int) -> Affine:
        return _form([(a, k * factor) for a, k in self.terms], self.constant * factor)

    def __neg__(self) -> Affine:
        return self * -1

    def without(self, atom: IndexExpr) -> Affine:
        """The form without the term of `atom`."""
        return Affine(tuple((a, k) for a, k in self.terms if a != atom), self.constant)


def _form(terms: Iterable[tuple[IndexExpr, int]], constant: int) -> Affine:
    total: dict[IndexExpr, int] = {}
    for atom, k in terms:
        total[atom] = total.get(atom, 0) + k
    return Affine(tuple((atom, k) for atom, k in total.items() if k), constant)


def affine(expr: IndexExpr) -> Affine:
    """The affine form of an index expression.

    >>> affine(Arith("+", Arith("*", Arith("+", Name("i"), Int(1)), Int(4)), Name("j")))
    Affine(terms=((Name(name='i'), 4), (Name(name='j'), 1)), constant=4)
    """
    match expr:
        case Int(value=value):
            return Affine((), value)
        case Name():
            return Affine(((expr, 1),), 0)
        case Arith(op="+", a=a, b=b):
            return affine(a) + affine(b)
        case Arith(op="-", a=a, b=b):
            return affine(a) - affine(b)
        case Arith(op=op, a=a, b=b):
            x, y = affine(a), affine(b)
            if op == "*" and not (x.terms and y.terms):
                return x * y.constant if x.terms else y * x.constant
            if op == "//" and not y.terms and y.constant > 0:
                return floor_divide(x, y.constant)
            return Affine(((Arith(op, expression(x), expression(y)), 1),), 0)
        case _:
            assert_never(expr)


def expression(form: Affine) -> IndexExpr:
    """The index expression of a form: positive terms first, the constant last.

    >>> expression(affine(Arith("-", Int(3), Name("j"))))
    Arith(op='-', a=Int(value=3), b=Name(name='j'))
    """
    out: IndexExpr | None = None
    for atom, k in sorted(form.terms, key=lambda term: term[1] < 0):
        term = atom if abs(k) == 1 else Arith("*", atom, Int(abs(k)))
        if out is None:
            out = term if k > 0 else Arith("-", Int(form.constant), term)
        else:
            out = Arith("+" if k > 0 else "-", out, term)
    if out is None or all(k < 0 for _, k in form.terms):
        return out or Int(form.constant)  # the constant comes first
    if form.constant:
        out = Arith("+" if form.constant > 0 else "-", out, Int(abs(form.constant)))
    return out


def floor_divide(form: Affine, divisor: int) -> Affine:
    """`form // divisor`, for a positive divisor; terms that it divides are taken out of the division.

    >>> floor_divide(affine(Arith("+", Arith("*", Name("i"), Int(8)), Int(11))), 4)
    Affine(terms=((Name(name='i'), 2),), constant=2)
    """
    whole = [(atom, k // divisor) for atom, k in form.terms if k % divisor == 0]
    rest = Affine(tuple((atom, k) for atom, k in form.terms if k % divisor), form.constant % divisor)
    if rest.terms:
        whole.append((Arith("//", expression(rest), Int(divisor)), 1))
    return _form(whole, form.constant // divisor)


def bound(form: Affine, env: Env) -> Interval:
    """An interval that holds every value of `form`."""
    lo = hi = form.constant
    for atom, k in form.terms:
        at = interval(atom, env)
        lo, hi = lo + min(k * at.lo, k * at.hi), hi + max(k * at.lo, k * at.hi)
    return Interval(lo, hi)


def is_nonnegative(form: Affine, env: Env) -> bool:
    """Whether `form >= 0` is proven for all values of the variables; False if it is not known.

    By intervals, then by cases of a minimum or maximum, then without floor divisions: for integers, n // d >= m is
    n >= d * m, and n // d <= m is n <= d * m + d - 1.
    """
    if bound(form, env).lo >= 0:
        return True
    # Atoms for which both cases must hold come first: the rest of the proof may then differ between the cases.
    for both in (True, False):
        for atom, k in form.terms:
            if isinstance(atom, Arith) and atom.op in ("min", "max") and ((atom.op == "min") == (k > 0)) == both:
                rest = form.without(atom)
                cases = (is_nonnegative(rest + affine(case) * k, env) for case in (atom.a, atom.b))
                return all(cases) if both else any(cases)
    for atom, k in form.terms:
        match atom:
            case Arith(op="//", a=n, b=Int(value=divisor)) if divisor > 0 and abs(k) == 1:
                rest = form.without(atom) * divisor
                return is_nonnegative(rest + affine(n) if k > 0 else rest - affine(n) + (divisor - 1), env)
    return False


def is_at_most(a: IndexExpr, b: IndexExpr, env: Env) -> bool:
    """Whether `a <= b` is proven."""
    return is_nonnegative(affine(b) - affine(a), env)


def minimum(a: IndexExpr, b: IndexExpr, env: Env) -> IndexExpr:
    """`min(a, b)` without operands that are proven to be no smaller than another; `a` if both are equal."""
    return _extremum("min", a, b, env)


def maximum(a: IndexExpr, b: IndexExpr, env: Env) -> IndexExpr:
    """`max(a, b)` without operands that are proven to be no greater than another; `a` if both are equal."""
    return _extremum("max", a, b, env)


def _extremum(op: Lit["min", "max"], a: IndexExpr, b: IndexExpr, env: Env) -> IndexExpr:
    def wins(x: IndexExpr, y: IndexExpr) -> bool:
        return is_at_most(x, y, env) if op == "min" else is_at_most(y, x, env)

    kept: list[IndexExpr] = []
    for expr in (*_operands(op, a), *_operands(op, b)):
        if not any(wins(other, expr) for other in kept):
            kept = [other for other in kept if not wins(expr, other)] + [expr]
    out = kept[0]
    for expr in kept[1:]:
        out = Arith(op, out, expr)
    return out


def _operands(op: str, expr: IndexExpr) -> tuple[IndexExpr, ...]:
    if isinstance(expr, Arith) and expr.op == op:
        return (*_operands(op, expr.a), *_operands(op, expr.b))
    return (expr,)
