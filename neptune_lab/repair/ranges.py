"""Proves that a repair's factor is at most 1, from the direction in which each producer changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from sympy import Dummy, Expr

from neptune_lab.repair.prove import direction
from neptune_lab.repair.render import text
from neptune_lab.repair.term import RepairTerm


def at_most_one(term: RepairTerm, ways: Mapping[str, int]) -> str | None:
    """A proof that the factor a(r, r') of h = a*t never exceeds 1 while a loop runs.

    a(r, r) = 1, because h(t, r, r) = t; so it is enough that a does not increase as r' moves away from r.

    Args:
        term: the repair term.
        ways: producer -> 1 if it only increases as a loop runs (a maximum, a sum of nonnegative terms), -1 if it only
            decreases (a minimum); others are left out.

    Returns:
        The reason, as a sentence; None if it is not proved.

    >>> from neptune_lab.repair import solve
    >>> at_most_one(solve("sum", "exp(c - r)", ["r"]), {"r": 1})
    "the factor exp(r - r') is at most 1: r only rises, and the factor falls with it"
    >>> at_most_one(solve("sum", "exp(c + r)", ["r"]), {"r": 1}) is None
    True
    """
    if term.factor is None or set(ways) != set(term.producers):
        return None
    # A guard covers 0, so nonnegative values are positive here.
    kept = {
        symbol: Dummy(symbol.name, positive=True)
        for symbol in (*term.previous.values(), *term.current.values())
        if symbol.is_nonnegative
    }
    factor = cast(Expr, term.factor.xreplace(kept))
    for name, way in ways.items():
        current = term.current[name]
        if direction(factor, kept.get(current, current)) not in (0, -way):
            return None
    moves = " and ".join(f"{name} only {'rises' if way > 0 else 'falls'}" for name, way in ways.items())
    falls = "falls with it" if all(way > 0 for way in ways.values()) else "falls on the way"
    return f"the factor {text(term.factor)} is at most 1: {moves}, and the factor {falls}"
