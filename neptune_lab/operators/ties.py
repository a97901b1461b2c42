"""Derivatives at points where an expression has none: max(x, y) and min(x, y) where both are equal, sqrt(0), and
maxima and minima of rows where several terms are equal to them.

PyTorch's answer depends on the function: at a tie, `torch.maximum` halves the cotangent, `relu` gives x nothing, and
`clamp` gives x all of it; at 0, `sqrt` has an infinite derivative, and `norm` 0.  The loop-scalar IR has one maximum
and one root, so `from_torch` notes the answer beside the program.  Of a row, `amax` shares the cotangent among equal
elements, and `max(dim)`, which returns a position too, gives it to the element at that position; where NaN is among
them, and where terms are filled up, functions differ further.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from neptune_lab.loop_ir.nodes import Const, Expr, Load
from neptune_lab.loop_ir.walks import transform

Ties: TypeAlias = Mapping[Expr, float]
"""By an expression max(x, y), min(x, y) or sqrt(x) without indices (`without_indices`), the part of the cotangent that
x gets at that point: 0, 1/2 or 1."""

HALVES_TIES = 0.5
"""What an expression has that is not listed."""

FIRST_OF_EQUALS: Expr = Load("", ())
"""The key of a stage that folds a maximum or minimum whose first equal term gets all of the cotangent; NaN counts as
equal.  Without it, equal terms share the cotangent, and with NaN among the terms each gets NaN."""

LAST_NAN: Expr = Load("last NaN", ())
"""The further key of one whose last NaN gets the cotangent."""

NAN_AMONG_EQUALS: Expr = Load("NaN", ())
"""The key of a stage whose equal terms share the cotangent, and with NaN among the terms those that are NaN."""

WITHOUT_FILLING: Expr = Load("filling", ())
"""The key of a stage whose terms are filled up with the identity, where a choice says so: what fills up has no part in
the cotangent where the extremum is infinite."""

OF_EXTREMA: frozenset[Expr] = frozenset({FIRST_OF_EQUALS, LAST_NAN, NAN_AMONG_EQUALS, WITHOUT_FILLING})


def without_indices(expr: Expr) -> Expr:
    """The expression with reads of whole tensors, since other loops may have other names.  NaN is equal to itself.

    >>> from neptune_lab.loop_ir.nodes import Op, Var
    >>> without_indices(Op("neg", (Load("x", (Var("i"),)),)))
    Op(name='neg', args=(Load(buffer='x', indices=()),))
    """

    def of(node: Expr) -> Expr:
        if isinstance(node, Const) and node.value != node.value:
            return Const(math.nan, node.dtype)
        return Load(node.buffer, ()) if isinstance(node, Load) else node

    return transform(expr, of)


def merged(given: Iterable[Ties]) -> dict[Expr, float]:
    """The ties of several stages; one half where they differ."""
    found: dict[Expr, float] = {}
    for ties in given:
        for key, part in ties.items():
            found[key] = part if found.get(key, part) == part else HALVES_TIES
    return found


__all__ = [
    "FIRST_OF_EQUALS",
    "HALVES_TIES",
    "LAST_NAN",
    "NAN_AMONG_EQUALS",
    "OF_EXTREMA",
    "WITHOUT_FILLING",
    "Ties",
    "merged",
    "without_indices",
]
