"""The range of an integer that is computed through floats holds for what float32 computes, on random expressions."""

from __future__ import annotations

import random

import numpy as np
import pytest

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op, Var
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.loop_to_repair.evaluate import compute

EXTENTS = {"i": 13, "j": 9}


def number(value: float) -> Const:
    return Const(value, "float32")


def drawn(rng: random.Random, depth: int) -> Expr:
    """A random float over the loops i and j."""
    if depth == 0:
        difference = Op("sub", (Var("i"), Var("j")))
        return Cast("float32", rng.choice([Var("i"), Var("j"), difference, Op("abs", (difference,))]))
    a = drawn(rng, depth - 1)
    constant = number(rng.choice([0.3, 0.5, 1.0, 7.0, 1e8, -2.5]))
    name = rng.choice(
        ["add", "sub", "mul", "div", "max", "min", "floor", "ceil", "log", "exp", "tanh", "select", "both"]
    )
    match name:
        case "log":
            return Op("log", (Op("max", (a, number(1.0))),))
        case "exp":
            return Op("exp", (Op("min", (a, number(4.0))),))
        case "floor" | "ceil" | "tanh":
            return Op(name, (a,))
        case "select":
            return Op("select", (Op("lt", (Var("i"), Var("j"))), a, constant))
        case "both":
            return Op(rng.choice(["add", "sub", "mul"]), (a, drawn(rng, depth - 1)))
    return Op(name, (a, constant))


@pytest.mark.parametrize("seed", range(40))
def test_random_floats_stay_within_their_range(seed: int):
    rng = random.Random(seed)
    i, j = (np.arange(n, dtype=np.int32) for n in EXTENTS.values())
    at: dict[Expr, np.ndarray] = {Var("i"): i[:, None], Var("j"): j[None, :]}
    known = 0
    for _ in range(30):
        value = drawn(rng, rng.randrange(1, 5))
        limits = bounds(Cast("int32", value), EXTENTS)
        if limits is None:
            continue
        known += 1
        found = np.trunc(compute(value, at, "float32").astype(np.float64))
        assert np.isfinite(found).all()
        assert limits[0] <= found.min(), value
        assert found.max() <= limits[1], value
    assert known > 10


def test_sums_that_lose_digits_are_not_taken_for_exact():
    """23 + 1e8 is a multiple of 8 in float32, so the difference may be 24."""
    value = Op("sub", (Op("add", (Cast("float32", Var("i")), number(1e8))), number(1e8)))
    limits = bounds(Cast("int32", value), {"i": 24})
    assert limits is not None
    assert limits[0] < 0
    assert limits[1] > 24


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        (Op("lt", (Var("i"), Var("j"))), (0, 1)),
        (Op("mul", (Cast("float32", Var("i")), number(0.25))), (0, 3)),
        (Op("div", (Cast("float32", Var("i")), number(3.0))), (0, 4)),
        (Op("div", (number(1.0), Cast("float32", Var("i")))), None),  # infinite at 0
        (Op("log", (Cast("float32", Var("i")),)), None),
        (Op("sqrt", (Cast("float32", Op("sub", (Var("i"), Var("j")))),)), None),  # NaN below 0
        (Op("exp", (Op("mul", (Cast("float32", Var("i")), number(100.0))),)), None),
        (Var("elsewhere"), None),
    ],
)
def test_what_is_known(value: Expr, limits: tuple[int, int] | None):
    assert bounds(Cast("int32", value), EXTENTS) == limits


def test_a_choice_is_bounded_by_its_condition_behind_a_conversion():
    distance = Op("abs", (Op("sub", (Var("i"), Var("j"))),))
    near = Op("select", (Op("lt", (distance, Const(4))), Cast("int64", distance), Const(7)))
    assert bounds(near, EXTENTS) == (0, 7)
    assert bounds(Cast("int8", Op("mul", (Var("i"), Const(100)))), EXTENTS) is None, "1200 wraps around in int8"
