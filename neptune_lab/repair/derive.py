"""h(t, r, r') = g0(r', g0^-1(r, t)): Eq. 5, and Eq. 8 for several producers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import sympy as sp
from sympy import Dummy, Expr, Function, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.render import Line, equation, text
from neptune_lab.repair.simplify import LARGE, is_zero, nicest, seems_zero

_DERIVED = "Derive: h(t, r, r') = g0(r', C) with the C just found (Eq. 5)"
_SUPPLIED = "Given: h(t, r, r') as the schedule has it"


@dataclass(frozen=True, slots=True)
class Derivation:
    """The repair function for one branch of the inverse.

    Attributes:
        h: over t, each r and each r'.
        factor: a(r, r') where h = a*t, else None.
        raw: h before simplification.
        inverse: C in terms of r and t; None for a user-supplied h.
    """

    h: Expr
    factor: Expr | None
    raw: Expr
    inverse: Expr | None
    t: Symbol
    previous: tuple[Symbol, ...]
    current: tuple[Symbol, ...]

    @property
    def title(self) -> str:
        """The title of the step."""
        return _SUPPLIED if self.inverse is None else _DERIVED

    @property
    def lines(self) -> tuple[Line, ...]:
        """The step line by line, for display."""
        call = Function("h")(self.t, *self.previous, *self.current)
        if self.inverse is None:
            lines = [Line("as given", equation(call, self.raw))]
            if self.raw != self.h:
                lines.append(Line("simplify", equation(call, self.h)))
            return (*lines, *self._factor_line)
        inserted = Function("g0")(*self.current, self.inverse)
        lines = [Line("insert", equation(call, inserted))]
        if self.raw != self.h:
            lines.append(Line("that is", equation(call, self.raw)))
        lines.append(Line("simplify" if self.raw != self.h else "that is", equation(call, self.h)))
        return (*lines, *self._factor_line)

    @property
    def _factor_line(self) -> tuple[Line, ...]:
        if self.factor is None:
            return ()
        return (Line("a factor times t", equation(Function("a")(*self.previous, *self.current), self.factor)),)

    def replace(self, mapping: Mapping[Symbol, Symbol]) -> Derivation:
        """The same derivation over other symbols."""

        def moved(expr: Expr) -> Expr:
            return cast(Expr, expr.xreplace(dict(mapping)))

        return Derivation(
            h=moved(self.h),
            factor=None if self.factor is None else moved(self.factor),
            raw=moved(self.raw),
            inverse=None if self.inverse is None else moved(self.inverse),
            t=mapping.get(self.t, self.t),
            previous=tuple(mapping.get(symbol, symbol) for symbol in self.previous),
            current=tuple(mapping.get(symbol, symbol) for symbol in self.current),
        )


def derive(g0: Expr, variable: Symbol, inverse: Expr, t: Symbol, current: Mapping[Symbol, Symbol]) -> Derivation:
    """Substitutes the inverse at r into g0 at r'.

    Args:
        g0: the term over r and C.
        variable: C.
        inverse: C over r and t.
        t: a value of the consuming reduction.
        current: each r -> its r'.

    Raises:
        RepairError: step "derive": g0 is not real at the inverse.

    >>> r, q, C, t, eps = sp.symbols("r r' C t eps", positive=True)
    >>> derive(sp.exp(C - r), C, r + sp.log(t), t, {r: q}).h
    t*exp(r - r')
    >>> derive(C / sp.sqrt(r + eps), C, t * sp.sqrt(r + eps), t, {r: q}).factor
    sqrt(eps + r)/sqrt(eps + r')
    >>> derive(C - r, C, t + r, t, {r: q}).h
    r - r' + t
    """
    try:
        raw = cast(Expr, g0.xreplace({**current, variable: inverse}))
        h = nicest(raw)
    except ValueError as error:  # max and min refuse to compare what is not real
        raise RepairError(
            f"g0 = {text(g0)} is not real at {text(variable)} = {text(inverse)}: {error}",
            step="derive",
            expression=text(g0),
            help="say what sign the inputs and producers have",
        ) from error
    return _with_factor(h, raw, inverse, t, current)


def as_derivation(h: Expr, t: Symbol, current: Mapping[Symbol, Symbol]) -> Derivation:
    """A user-supplied h in the form of a derived one; the arguments are those of `derive`.

    >>> r, q, t = sp.symbols("r r' t", real=True)
    >>> as_derivation(t * sp.exp(r) / sp.exp(q), t, {r: q}).factor
    exp(r - r')
    """
    return _with_factor(nicest(h), h, None, t, current)


def _with_factor(h: Expr, raw: Expr, inverse: Expr | None, t: Symbol, current: Mapping[Symbol, Symbol]) -> Derivation:
    factor = linear_factor(h, t)
    if factor is None and h.count_ops() <= LARGE and _seems_linear(h, t):
        # h behaves as if it were linear, so the slow simplifier is likely to succeed.
        slow = cast(Expr, sp.simplify(h))
        factor = linear_factor(slow, t)
        h = min(h, slow, key=lambda form: int(sp.count_ops(form)))
    if factor is not None:
        h = cast(Expr, factor * t)
    return Derivation(h, factor, raw, inverse, t, tuple(current), tuple(current.values()))


def _seems_linear(h: Expr, t: Symbol) -> bool:
    x, y = (Dummy("x", positive=True) for _ in range(2))
    both, *each = (cast(Expr, h.xreplace({t: value})) for value in (x + y, x, y))
    return seems_zero(cast(Expr, both - each[0] - each[1])) is True


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
