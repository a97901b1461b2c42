"""Transposes of reads: each iteration of a reader is counted for the element that it reads, once, and for no other."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from neptune_lab.loop_ir.nodes import Const, Expr, Op, Var
from neptune_lab.operators.reverse_mode.transpose import transposed

_OPERATIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "eq": lambda a, b: a == b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
}


def value(expr: Expr, at: dict[str, int]) -> int:
    match expr:
        case Const(number, _):
            return number
        case Var(name):
            return at[name]
        case Op(name, (a, b)):
            return int(_OPERATIONS[name](value(a, at), value(b, at)))
    raise AssertionError(expr)


def check(index: list[Expr], extents: dict[str, int], more: int = 0) -> None:
    """Compares with a loop over all iterations of the reader; the tensor has `more` elements behind those that are read
    along each dimension."""
    names = list(extents)
    every = [dict(zip(names, at, strict=True)) for at in product(*(range(n) for n in extents.values()))]
    read = Counter((*(value(e, at) for e in index), *at.values()) for at in every)
    lowest = [min(value(e, at) for at in every) for e in index]
    index = [e if low >= 0 else Op("add", (e, Const(-low))) for e, low in zip(index, lowest, strict=True)]
    read = Counter((tuple(value(e, at) for e in index), tuple(at.values())) for at in every)
    shape = [max(value(e, at) for at in every) + 1 + more for e in index]
    found = transposed(index, [(f"@{n}", extent) for n, extent in enumerate(shape)], extents)
    counted: Counter = Counter()
    for place in product(*(range(n) for n in shape)):
        for free in product(*(range(n) for _, n in found.free)):
            at = {f"@{n}": k for n, k in enumerate(place)}
            at |= {name: k for (name, _), k in zip(found.free, free, strict=True)}
            if all(value(condition, at) for condition in found.conditions):
                counted[place, tuple(value(found.values[name], at) for name in names)] += 1
    assert counted == read


i, j, k = map(Var, "ijk")
READS = {
    "permuted": [j, i],
    "one axis": [i],
    "diagonal": [i, i],
    "blocks": [Op("floordiv", (i, Const(3)))],
    "remainders": [Op("floormod", (i, Const(3)))],
    "remainders and blocks": [Op("floormod", (i, Const(3))), Op("floordiv", (i, Const(3)))],
    "digits of two bases": [Op("floordiv", (i, Const(3))), Op("floormod", (i, Const(2)))],
    "blocks and remainders": [Op("floordiv", (i, Const(3))), Op("floormod", (i, Const(3)))],
    "difference": [Op("sub", (i, j))],
    "sum of three": [Op("add", (Op("add", (i, j)), k))],
    "every second": [Op("mul", (i, Const(2)))],
    "scaled and shifted": [Op("add", (Op("mul", (i, Const(2))), j))],
    "twice": [Op("sub", (i, j)), j],
    "constant": [Const(0), i],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("extents", [{"i": 4, "j": 3, "k": 2}, {"i": 7, "j": 2, "k": 1}])
@pytest.mark.parametrize("more", [0, 2])
def test_each_iteration_counts_once_for_what_it_reads(name, extents, more):
    check(READS[name], extents, more)


def test_both_digits_of_a_row_are_solved_at_once():
    index = [Op("floordiv", (i, Const(4))), Op("floormod", (i, Const(4)))]
    for read in (index, index[::-1]):
        found = transposed(read, [("a", 3), ("b", 4)] if read is index else [("b", 4), ("a", 3)], {"i": 12})
        assert (found.free, found.conditions) == ([], [])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(40))
def test_random_reads(seed):
    rng = random.Random(seed)
    extents = {name: rng.randint(1, 5) for name in "ijk"[: rng.randint(1, 3)]}

    def index() -> Expr:
        var: Expr = Var(rng.choice(list(extents)))
        other: Expr = Var(rng.choice(list(extents)))
        size = Const(rng.randint(1, 4))
        return rng.choice(
            [
                var,
                Op("floordiv", (var, size)),
                Op("floormod", (var, size)),
                Op("add", (var, other)),
                Op("sub", (var, other)),
                Op("add", (Op("mul", (var, size)), other)),
                Op("floordiv", (Op("add", (var, other)), size)),
            ]
        )

    check([index() for _ in range(rng.randint(1, 3))], extents, rng.randint(0, 1))
