"""Splits a term into a part of the inputs c and one of the producers r: A(c) + B(r), and A(c) * B(r).

Each rule is an identity on the stated domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import sympy as sp
from sympy import Abs, Add, Expr, Max, Min, Mul, Pow, S, Symbol

from neptune_lab.repair.simplify import as_polynomial

Split = tuple[Expr, Expr]


@dataclass(frozen=True, slots=True)
class Roles:
    """Which symbols are producers and which are inputs; any other symbol is a constant of the reduction."""

    producers: frozenset[Symbol]
    inputs: frozenset[Symbol]

    @classmethod
    def of(cls, producers: Iterable[Symbol], inputs: Iterable[Symbol]) -> Roles:
        """The roles of these symbols."""
        return cls(frozenset(producers), frozenset(inputs))

    def has_r(self, expr: sp.Basic) -> bool:
        """Whether an expression reads a producer."""
        return not self.producers.isdisjoint(cast("set[Symbol]", expr.free_symbols))

    def has_c(self, expr: sp.Basic) -> bool:
        """Whether an expression reads an input."""
        return not self.inputs.isdisjoint(cast("set[Symbol]", expr.free_symbols))


def args_of(expr: Expr) -> list[Expr]:
    """The operands of an expression."""
    return [cast(Expr, arg) for arg in expr.args]


def split_sum(expr: Expr, roles: Roles) -> Split | None:
    """expr = A(c) + B(r), or None.

    >>> c, d, r, s = sp.symbols("c d r s", real=True)
    >>> split_sum(2*(c - r) + d, Roles.of([r], [c, d]))
    (2*c + d, -2*r)
    >>> split_sum(Max(c - r, d - r), Roles.of([r], [c, d]))
    (Max(c, d), -r)
    >>> split_sum(c*r, Roles.of([r], [c]))
    """
    if not roles.has_r(expr):
        return expr, S.Zero
    if not roles.has_c(expr):
        return S.Zero, expr
    if isinstance(expr, Add):
        return _split_each(split_sum, expr, roles)
    if isinstance(expr, Mul):
        fixed = [arg for arg in args_of(expr) if not roles.has_r(arg) and not roles.has_c(arg)]
        rest = [arg for arg in args_of(expr) if arg not in fixed]
        part = split_sum(rest[0], roles) if fixed and len(rest) == 1 else None
        return None if part is None else (cast(Expr, Mul(*fixed, part[0])), cast(Expr, Mul(*fixed, part[1])))
    if isinstance(expr, sp.log):
        part = split_product(args_of(expr)[0], roles)
        if part and part[0].is_positive and part[1].is_positive:
            return sp.log(part[0]), sp.log(part[1])
    if isinstance(expr, (Max, Min)):
        splits = _all_split(split_sum, args_of(expr), roles)
        if splits is not None and len({b for _, b in splits}) == 1:
            return cast(Expr, expr.func(*(a for a, _ in splits))), splits[0][1]
    return None


def split_product(expr: Expr, roles: Roles) -> Split | None:
    """expr = A(c) * B(r), or None.

    >>> c, d, r = sp.symbols("c d r", real=True)
    >>> split_product(sp.exp(c - r) * d, Roles.of([r], [c, d]))
    (d*exp(c), exp(-r))
    >>> split_product((c / r)**2, Roles.of([r], [c]))
    (c**2, r**(-2))
    >>> split_product(c*r + d*r + r, Roles.of([r], [c, d]))
    (c + d + 1, r)
    >>> p = Symbol("p", positive=True)
    >>> split_product(Max(0, -c / p), Roles.of([p], [c]))
    (Max(0, -c), 1/p)
    """
    if not roles.has_r(expr):
        return expr, S.One
    if not roles.has_c(expr):
        return S.One, expr
    if isinstance(expr, Mul):
        return _split_each(split_product, expr, roles)
    if isinstance(expr, sp.exp):
        part = split_sum(args_of(expr)[0], roles)
        return None if part is None else (sp.exp(part[0]), sp.exp(part[1]))
    if isinstance(expr, Pow):
        return _split_power(cast(Expr, expr.base), cast(Expr, expr.exp), roles)
    if isinstance(expr, Abs):
        part = split_product(args_of(expr)[0], roles)
        return None if part is None else (cast(Expr, Abs(part[0])), cast(Expr, Abs(part[1])))
    if isinstance(expr, (Max, Min)):
        return _split_extremum(expr, roles)
    if isinstance(expr, Add):
        return _split_common_factor(expr, roles)
    return None


def _all_split(
    split: Callable[[Expr, Roles], Split | None], operands: Sequence[Expr], roles: Roles
) -> list[Split] | None:
    """The splits of all operands; None if one of them has none."""
    splits = [part for operand in operands if (part := split(operand, roles)) is not None]
    return splits if len(splits) == len(operands) else None


def _split_each(split: Callable[[Expr, Roles], Split | None], expr: Add | Mul, roles: Roles) -> Split | None:
    """The operation on the parts of c, and on the parts of r, of its operands; None if one of them has none."""
    splits = _all_split(split, args_of(cast(Expr, expr)), roles)
    if splits is None:
        return None
    return cast(Expr, expr.func(*(a for a, _ in splits))), cast(Expr, expr.func(*(b for _, b in splits)))


def _split_power(base: Expr, exponent: Expr, roles: Roles) -> Split | None:
    """(A*B)**n = A**n * B**n for whole n, or where A or B is not negative; k**(A + B) = k**A * k**B for k > 0."""
    if not roles.has_r(exponent) and not roles.has_c(exponent):
        part = split_product(base, roles)
        if part and (exponent.is_integer or part[0].is_nonnegative or part[1].is_nonnegative):
            return cast(Expr, part[0] ** exponent), cast(Expr, part[1] ** exponent)
    if base.is_positive and not roles.has_r(base) and not roles.has_c(base):
        part = split_sum(exponent, roles)
        if part:
            return cast(Expr, base ** part[0]), cast(Expr, base ** part[1])
    return None


def _split_extremum(expr: Expr, roles: Roles) -> Split | None:
    """max(A1*B, A2*B, 0) = max(A1, A2, 0) * B for B >= 0; for B <= 0 a max becomes a min."""
    operands = [arg for arg in args_of(expr) if arg != 0]
    splits = _all_split(split_product, operands, roles)
    if splits is None or len({b for _, b in splits}) != 1:
        return None
    common = splits[0][1]
    heads = [a for a, _ in splits] + ([S.Zero] if len(operands) < len(expr.args) else [])
    if common.is_nonnegative:
        return cast(Expr, expr.func(*heads)), common
    if common.is_nonpositive:
        swapped = Min if isinstance(expr, Max) else Max
        return cast(Expr, swapped(*heads)), common
    return None


def _split_common_factor(expr: Add, roles: Roles) -> Split | None:
    """A1*B + A2*B = (A1 + A2)*B and A*B1 + A*B2 = A*(B1 + B2), else a split of SymPy's factored form."""
    splits = _all_split(split_product, args_of(expr), roles)
    if splits is not None:
        if len({b for _, b in splits}) == 1:
            return cast(Expr, Add(*(a for a, _ in splits))), splits[0][1]
        if len({a for a, _ in splits}) == 1:
            return splits[0][0], cast(Expr, Add(*(b for _, b in splits)))
    factored = as_polynomial(sp.factor, expr)
    return split_product(factored, roles) if isinstance(factored, (Mul, Pow)) else None
