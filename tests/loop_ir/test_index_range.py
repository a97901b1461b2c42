"""The exact range of an index, beside the values at every position."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from neptune_lab.loop_ir import index_range
from neptune_lab.loop_ir.index_range import range_of
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op, Var

I, J = Var("i"), Var("j")
D = Op("sub", (I, J))
EXTENTS = {"i": 9, "j": 13}


def integer(name: str, of: Expr) -> Expr:
    return Cast("int32", Op(name, (Cast("float32", of),)))


def near(at: Expr, limit: int) -> Expr:
    return Op("lt", (at, Const(limit)))


CASES: dict[str, tuple[Expr, tuple[Expr, ...], Callable[[int, int], int | None]]] = {
    "a difference": (D, (), lambda i, j: i - j),
    "the other difference": (Op("add", (Op("sub", (J, I)), D)), (), lambda i, j: 0),
    "a root": (integer("sqrt", Op("abs", (D,))), (), lambda i, j: math.isqrt(abs(i - j))),
    "where a difference is small": (Op("mul", (D, D)), (near(D, 3),), lambda i, j: (i - j) ** 2 if i - j < 3 else None),
    "where the first is less": (D, (Op("lt", (J, I)),), lambda i, j: i - j if j < i else None),
    "a variable beside": (Op("add", (D, I)), (), lambda i, j: 2 * i - j),
    "a condition on one": (D, (near(I, 4),), lambda i, j: i - j if i < 4 else None),
    "a logarithm": (
        Op("select", (near(D, 1), Const(0), integer("log", D))),
        (),
        lambda i, j: 0 if i - j < 1 else int(math.log(i - j)),
    ),
    "a comparison": (Op("mul", (Cast("int32", near(D, 2)), D)), (), lambda i, j: (i - j < 2) * (i - j)),
    "never": (D, (near(D, -90),), lambda i, j: None),
}


@pytest.mark.parametrize("name", CASES)
def test_ranges_are_exact(name: str):
    index, conditions, value = CASES[name]
    values = [v for i in range(9) for j in range(13) if (v := value(i, j)) is not None]
    assert range_of(index, conditions, EXTENTS) == ((min(values), max(values)) if values else None)


def test_differences_are_enumerated_in_place_of_pairs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index_range, "LIMIT", 30)
    index = integer("sqrt", Op("abs", (D,)))
    assert range_of(index, (Op("ge", (I, J)),), {"i": 10, "j": 11}) == (0, 3)
    assert range_of(index, (near(I, 4),), {"i": 10, "j": 11}) is None, "too many pairs"
    assert range_of(index, (), {"i": 10}) is None, "a variable without an extent"
