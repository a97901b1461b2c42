"""The scalar operations in SymPy, and the facts about them that the algebra uses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import sympy as sp
from sympy import Expr, Rational

from neptune_lab.scalar_ops import OPERATIONS, Functions, ScalarOp, operations_in, python_operator, rows


def _of_sympy(row: ScalarOp) -> Callable[..., Any] | None:
    return getattr(sp, row.sympy) if row.sympy else python_operator(row)


SYMPY = Functions(_of_sympy, constant=lambda value: Rational(str(value)))
"""The scalar operations in SymPy."""


def is_arithmetic(row: ScalarOp) -> bool:
    """Whether SymPy has the operation, or it is composed of arithmetic operations that SymPy has.

    >>> is_arithmetic(OPERATIONS["rsqrt"]), is_arithmetic(OPERATIONS["guard"])
    (True, False)
    """
    if row.kind not in ("number", "float"):
        return False
    if row.formula is None or row.sympy or row.python:
        return bool(row.sympy or row.python)
    return all(is_arithmetic(OPERATIONS[name]) for name in operations_in(row.formula))


def operation_of(kind: type) -> ScalarOp | None:
    """The operation that a SymPy class represents; None if there is none.

    >>> operation_of(sp.tanh).name, operation_of(sp.gamma)
    ('tanh', None)
    """
    return next((row for row in rows("loop") if row.sympy and getattr(sp, row.sympy) is kind), None)


def start_of(row: ScalarOp) -> Expr | None:
    """The start of the operation's domain; None if it contains every real number.

    >>> start_of(operation_of(sp.log)), start_of(operation_of(sp.tanh))
    (0, None)
    """
    return None if row.start == -math.inf else cast(Expr, sp.nsimplify(row.start, rational=True))


def pole(row: ScalarOp) -> Expr | None:
    """The point at which the function is infinite: the start of its domain, unless its least value is finite; or None.

    >>> pole(operation_of(sp.log)), pole(operation_of(sp.tanh))
    (0, None)
    """
    return None if row.rising and math.isfinite(row.within[0]) else start_of(row)


def kinks() -> tuple[type, ...]:
    """Classes of functions with a kink or a step: those that pick or round, which rounding itself leaves exact."""
    exact = (row for row in rows("loop") if row.sympy and row.exact and row.kind in ("number", "float"))
    return (sp.sign, *(getattr(sp, row.sympy) for row in exact))
