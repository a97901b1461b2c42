"""h(t, r, r') = g0(r', g0^-1(r, t)): Eq. 5, and Eq. 8 for several producers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import sympy as sp
from sympy import Expr, Function, Symbol

from neptune_lab.repair.render import Line
from neptune_lab.repair.simplify import is_zero, nicest


@dataclass(frozen=True, slots=True)
class Derivation:
    """The repair function of one branch of the inverse.

    Attributes:
        h: over t, each r and each r'. factor: a(r, r') where h = a*t, else None.
        raw: h before simplification. inverse: C in terms of r and t.
    """

    h: Expr
    factor: Expr | None
    raw: Expr
    inverse: Expr
    t: Symbol
    previous: tuple[Symbol, ...]
    current: tuple[Symbol, ...]

    title = "Derive: h(t, r, r') = g0(r', C) with the C just found (Eq. 5)"

    @property
    def lines(self) -> tuple[Line, ...]:
        call = Function("h")(self.t, *self.previous, *self.current)
        inserted = Function("g0")(*self.current, self.inverse)
        lines = [Line("insert", sp.Eq(call, inserted, evaluate=False))]
        if self.raw != self.h:
            lines.append(Line("that is", sp.Eq(call, self.raw, evaluate=False)))
        lines.append(Line("simplify" if self.raw != self.h else "that is", sp.Eq(call, self.h, evaluate=False)))
        if self.factor is not None:
            lines.append(Line("a factor times t", sp.Eq(Function("a")(*self.previous, *self.current), self.factor, evaluate=False)))
        return tuple(lines)


def derive(g0: Expr, variable: Symbol, inverse: Expr, t: Symbol, current: Mapping[Symbol, Symbol]) -> Derivation:
    """Put the inverse at r into g0 at r'.

    >>> r, q, C, t, eps = sp.symbols("r r' C t eps", positive=True)
    >>> derive(sp.exp(C - r), C, r + sp.log(t), t, {r: q}).h
    t*exp(r - r')
    >>> derive(C / sp.sqrt(r + eps), C, t * sp.sqrt(r + eps), t, {r: q}).factor
    sqrt(eps + r)/sqrt(eps + r')
    >>> derive(C - r, C, t + r, t, {r: q}).h
    r - r' + t
    """
    raw = cast(Expr, g0.xreplace({**current, variable: inverse}))
    h = nicest(raw)
    factor = linear_factor(h, t)
    if factor is None and not h.is_polynomial(t):
        # Only here is the slow simplifier worth its time: it may still show that h is linear.
        slow = cast(Expr, sp.simplify(h))
        factor = linear_factor(slow, t)
        h = min(h, slow, key=lambda form: int(sp.count_ops(form)))
    if factor is not None:
        h = cast(Expr, factor * t)
    return Derivation(h, factor, raw, inverse, t, tuple(current), tuple(current.values()))


def linear_factor(h: Expr, t: Symbol) -> Expr | None:
    """a where h = a*t, else None.

    >>> t, r = sp.symbols("t r")
    >>> linear_factor(t*r**2, t), linear_factor(t + r, t)
    (r**2, None)
    """
    slope = cast(Expr, sp.diff(h, t))
    if t in slope.free_symbols:
        return None
    slope = nicest(slope)
    return slope if is_zero(cast(Expr, h - slope * t)) else None
