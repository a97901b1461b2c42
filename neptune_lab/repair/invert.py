"""Inverts t = g0(r, C) in C, one operation at a time (the inverse of Eq. 5; for vectors r, of Eq. 8).

Undoing operations from the outside is fast and tells the real branches apart; a general equation solver does neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, cast

import sympy as sp
from sympy import Abs, Add, Expr, Mul, Pow, S, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.render import Line, equation, text
from neptune_lab.repair.simplify import is_zero

_ONE_TO_ONE: dict[type, Callable[[Expr], Expr]] = {
    sp.exp: lambda v: sp.log(v),
    sp.log: lambda v: sp.exp(v),
    sp.tanh: lambda v: sp.atanh(v),
    sp.atanh: lambda v: sp.tanh(v),
    sp.sinh: lambda v: sp.asinh(v),
    sp.asinh: lambda v: sp.sinh(v),
    sp.atan: lambda v: sp.tan(v),
}

_LOSES: dict[type, str] = {
    sp.Max: "max forgets all but its largest argument",
    sp.Min: "min forgets all but its smallest argument",
    sp.sin: "sin takes every value infinitely often",
    sp.cos: "cos takes every value infinitely often",
    sp.cosh: "cosh takes values twice",
}


@dataclass(frozen=True, slots=True)
class Inverse:
    """C in terms of t and r; several branches if g0 takes a value more than once.

    Attributes:
        g0: the inverted expression.
        variable: C.
        t: the symbol of its value.
        branches: the solutions for C.
        lines: the equation after each operation that was undone (first branch).
    """

    g0: Expr
    variable: Symbol
    t: Symbol
    branches: tuple[Expr, ...]
    lines: tuple[Line, ...]

    title = "Invert: solve t = g0(r, C) for C"

    def replace(self, mapping: Mapping[Symbol, Symbol]) -> Inverse:
        """The same inverse over other symbols."""
        return Inverse(
            cast(Expr, self.g0.xreplace(dict(mapping))),
            self.variable,
            mapping.get(self.t, self.t),
            tuple(cast(Expr, branch.xreplace(dict(mapping))) for branch in self.branches),
            tuple(line.replace(mapping) for line in self.lines),
        )


def invert(g0: Expr, variable: Symbol, t: Expr) -> Inverse:
    """Solves t = g0 for `variable`.

    Raises:
        RepairError: step "invert": an operation of g0 has no known inverse.

    >>> r, C, t, eps = sp.symbols("r C t eps", real=True)
    >>> invert(sp.exp(C - r), C, t).branches
    (r + log(t),)
    >>> invert((C - r)**2, C, t).branches
    (r + sqrt(t), r - sqrt(t))
    >>> invert(C * r + C, C, t).branches
    (t/(r + 1),)
    >>> invert(sp.Max(C, r), C, t)
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: g0 = Max(C, r) cannot be inverted in C: max forgets all but its largest argument
      help: ...
    """
    values: list[Expr] = [t]
    expr = g0
    lines = [Line("start from", equation(t, g0))]
    while expr != variable:
        expr, values, note = _undo(expr, values, variable, g0)
        lines.append(Line(note, equation(expr, values[0])))
    branches = tuple(dict.fromkeys(values))
    lines += [Line("or, on the other branch", equation(variable, branch)) for branch in branches[1:]]
    return Inverse(g0, variable, cast(Symbol, t), branches, tuple(lines))


def _refuse(g0: Expr, variable: Symbol, why: str) -> NoReturn:
    raise RepairError(
        f"g0 = {text(g0)} cannot be inverted in {text(variable)}: {why}",
        step="invert",
        expression=text(g0),
        help=f"write g so that r reaches {text(variable)} through operations that can be undone: + - * /, exp, log, "
        "odd powers, and roots or even powers of what is known not to be negative",
    )


def _undo(expr: Expr, values: list[Expr], variable: Symbol, g0: Expr) -> tuple[Expr, list[Expr], str]:
    """Undoes the outermost operation: expr = value becomes inner = new value; the text names the operation."""
    holders = [cast(Expr, arg) for arg in expr.args if variable in arg.free_symbols]
    if len(holders) > 1:
        return _solve_ratio(expr, values, variable, g0)
    if not holders:
        _refuse(g0, variable, f"{text(expr)} does not depend on {text(variable)}")
    inner = holders[0]
    rest = [cast(Expr, arg) for arg in expr.args if variable not in arg.free_symbols]
    if isinstance(expr, Add):
        moved = cast(Expr, Add(*rest))
        return inner, [cast(Expr, value - moved) for value in values], "subtract"
    if isinstance(expr, Mul):
        factor = cast(Expr, Mul(*rest))
        return inner, [cast(Expr, value / factor) for value in values], "divide"
    if isinstance(expr, Pow):
        return _undo_power(inner, cast(Expr, rest[0]), expr, values, variable, g0)
    if isinstance(expr, Abs):
        return inner, _signed(inner, values), "undo abs"
    for kind, undo in _ONE_TO_ONE.items():
        if isinstance(expr, kind):
            return inner, [undo(value) for value in values], f"undo {kind.__name__}"
    _refuse(g0, variable, _LOSES.get(type(expr), f"{type(expr).__name__} has no known inverse"))


def _signed(inner: Expr, values: list[Expr]) -> list[Expr]:
    if inner.is_nonnegative:
        return values
    if inner.is_nonpositive:
        return [cast(Expr, -value) for value in values]
    return [*values, *(cast(Expr, -value) for value in values)]


def _undo_power(
    inner: Expr, other: Expr, expr: Pow, values: list[Expr], variable: Symbol, g0: Expr
) -> tuple[Expr, list[Expr], str]:
    if variable in expr.exp.free_symbols:
        if not other.is_positive:
            _refuse(g0, variable, f"the base {text(other)} of {text(expr)} is not known to be positive")
        return inner, [cast(Expr, sp.log(value) / sp.log(other)) for value in values], "take the logarithm"
    if not other.is_number:
        if not inner.is_positive:
            _refuse(g0, variable, f"the base {text(inner)} of {text(expr)} is not known to be positive")
        return inner, [cast(Expr, value ** (1 / other)) for value in values], "take the root"
    if other.is_integer and other.is_even:
        return inner, _signed(inner, [cast(Expr, value ** (1 / other)) for value in values]), "take the root"
    if other.is_integer and other not in (S.One, S.NegativeOne) and not inner.is_nonnegative:
        roots = [cast(Expr, sp.sign(value) * Abs(value) ** (1 / other)) for value in values]
        return inner, roots, "take the odd root"
    return inner, [cast(Expr, value ** (1 / other)) for value in values], "take the power"


def _solve_ratio(expr: Expr, values: list[Expr], variable: Symbol, g0: Expr) -> tuple[Expr, list[Expr], str]:
    """(a*C + b)/(d*C + e) = v gives C = (e*v - b)/(a - d*v); linear is d = 0, e = 1."""
    top, bottom = sp.fraction(sp.together(expr))
    parts = []
    for side in (sp.expand(top), sp.expand(bottom)):
        if not side.is_polynomial(variable):
            _refuse(g0, variable, f"{text(variable)} enters {text(expr)} in more than one place, not linearly")
        slope = sp.diff(side, variable)
        start = side.subs(variable, 0)
        if variable in slope.free_symbols or not is_zero(cast(Expr, side - slope * variable - start)):
            _refuse(g0, variable, f"{text(variable)} enters {text(expr)} in more than one place, not linearly")
        parts += [slope, start]
    a, b, d, e = parts
    if is_zero(cast(Expr, a * e - b * d)):
        _refuse(g0, variable, f"{text(expr)} does not depend on {text(variable)}")
    return variable, [cast(Expr, sp.factor((e * v - b) / (a - d * v))) for v in values], "solve the linear equation"
