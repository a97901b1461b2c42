"""The reducers f of Eq. 6: their identity, how they combine, and what Eq. 4 requires of h for each."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from sympy import Add, Expr, Integer, Max, Min, Mul, S

from neptune_lab.repair.column import Column, maximum, minimum


@dataclass(frozen=True, slots=True)
class Reducer:
    """An associative f with its identity.

    `combine` builds f(x, y) as a SymPy expression, `folded` computes it at many points, and `homomorphism` is the word
    for an h that distributes over f (Eq. 4).

    >>> from sympy.abc import x, y
    >>> REDUCERS["sum"].combine(x, y), REDUCERS["max"].identity
    (x + y, -oo)
    """

    name: str
    identity: Expr
    combine: Callable[[Expr, Expr], Expr]
    folded: Callable[[Column, Column], Column]
    homomorphism: str


REDUCERS: dict[str, Reducer] = {
    "sum": Reducer("sum", Integer(0), lambda x, y: Add(x, y), operator.add, "additive"),
    "prod": Reducer("prod", Integer(1), lambda x, y: Mul(x, y), operator.mul, "multiplicative"),
    "max": Reducer("max", S.NegativeInfinity, lambda x, y: Max(x, y), maximum, "monotone"),
    "min": Reducer("min", S.Infinity, lambda x, y: Min(x, y), minimum, "monotone"),
    # Truth values are 0 and 1, of which `or` is the larger and `and` the smaller.
    "any": Reducer("any", Integer(0), lambda x, y: Max(x, y), maximum, "kept"),
    "all": Reducer("all", Integer(1), lambda x, y: Min(x, y), minimum, "kept"),
}
