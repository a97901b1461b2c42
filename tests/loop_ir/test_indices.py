"""Index arithmetic: shorter, and still the same number everywhere."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Var
from neptune_lab.loop_ir.simplify import Bounds, bounds, simplify, without_choices
from neptune_lab.loop_ir.walks import walk
from neptune_lab.loop_schedule.affine import affine_terms

PYTHON = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "max": max,
    "min": min,
    "neg": lambda a: -a,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "not": lambda a: not a,
    "select": lambda c, a, b: a if c else b,
}
NAMES = ("a", "b", "c")
EXTENTS = st.fixed_dictionaries({name: st.integers(1, 5) for name in NAMES})
LEAVES = st.sampled_from([Var(n) for n in NAMES]) | st.integers(-4, 12).map(Const)


def _bigger(part: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def op(name: str, *args: Expr) -> Expr:
        return Op(name, args)

    positive = st.integers(1, 6).map(Const)
    return (
        st.builds(op, st.sampled_from(["add", "add", "sub", "max", "min"]), part, part)
        | st.builds(op, st.just("mul"), part, st.integers(-3, 6).map(Const))
        | st.builds(op, st.just("mul"), st.integers(-3, 6).map(Const), part)
        | st.builds(op, st.sampled_from(["floordiv", "floormod"]), part, positive)
        | st.builds(op, st.just("neg"), part)
    )


INDICES = st.recursive(LEAVES, _bigger, max_leaves=8)


@st.composite
def choices(draw: st.DrawFn) -> Expr:
    """A choice by a comparison or two, of what is compared as often as of anything else."""
    a, b = draw(INDICES), draw(INDICES)
    names = st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"])
    condition = Op(draw(names), (a, b))
    if draw(st.booleans()):
        condition = Op("and", (condition, Op(draw(names), (draw(INDICES), a))))
    if draw(st.booleans()):
        condition = Op("not", (condition,))
    shifts = st.integers(-9, 9).map(Const)
    near = [
        Op("add", (a, draw(shifts))),
        Op("sub", (draw(shifts), a)),
        Op("add", (Op("sub", (a, b)), draw(shifts))),
        Op("sub", (b, a)),
        draw(INDICES),
    ]
    return Op("select", (condition, draw(st.sampled_from(near)), draw(st.sampled_from(near))))


def evaluate(expr: Expr, env: dict[str, int]) -> int:
    match expr:
        case Const(value):
            return int(value)
        case Var(name):
            return env[name]
        case Op("and", (a, b)):
            return bool(evaluate(a, env)) and bool(evaluate(b, env))
        case Op(name, args):
            return PYTHON[name](*(evaluate(a, env) for a in args))
    raise AssertionError(expr)


def points(extents: dict[str, int]) -> list[dict[str, int]]:
    return [dict(zip(NAMES, v, strict=True)) for v in itertools.product(*(range(extents[n]) for n in NAMES))]


def size_without_brackets(expr: Expr) -> int:
    """Nodes of the expression with every constant factor taken into the sums: `(a + b) * 4` as a * 4 + b * 4."""
    match expr:
        case Op("mul", (a, Const())) | Op("mul", (Const(), a)):
            return size_of_multiple(a)
        case Op(_, args):
            return 1 + sum(map(size_without_brackets, args))
    return 1


def size_of_multiple(expr: Expr) -> int:
    match expr:
        case Op("add", (a, b)):
            return 1 + size_of_multiple(a) + size_of_multiple(b)
        case Op("mul", (a, Const())) | Op("mul", (Const(), a)):
            return size_of_multiple(a)
    return size_without_brackets(expr) + 2


@given(INDICES, EXTENTS)
@example(Op("mul", (Op("add", (Var("a"), Var("a"))), Const(-1))), {"a": 1, "b": 1, "c": 1})
def test_simplify_keeps_every_value_and_never_grows(expr: Expr, extents: dict[str, int]):
    short = simplify(expr, extents)
    # Factors are taken into sums, so that one place has one form; nothing else may grow.
    assert len(list(walk(short))) <= max(len(list(walk(expr))), size_without_brackets(expr))
    for env in points(extents):
        assert evaluate(short, env) == evaluate(expr, env)


@pytest.mark.nightly
@given(INDICES | choices(), EXTENTS)
def test_bounds_hold_everywhere(expr: Expr, extents: dict[str, int]):
    found = bounds(expr, extents)
    assert found is not None
    values = [evaluate(expr, env) for env in points(extents)]
    assert found[0] <= min(values)
    assert max(values) <= found[1]


def test_bounds_of_a_choice_between_limits():
    """An index of 64 bits in 32: what is outside of the limits is another value, which the bounds may rule out."""
    near = Op("sub", (Var("i"), Const(1)))
    within = Op("and", (Op("le", (Const(-100), near)), Op("le", (near, Const(100)))))
    choice = Op("select", (within, near, Const(999)))
    assert bounds(choice, {"i": 8}) == (-1, 6)
    assert without_choices(choice, {"i": 8}) == near
    assert bounds(choice, {"i": 200}) == (-1, 999)
    assert without_choices(choice, {"i": 200}) == choice
    half = Op(
        "select", (Op("and", (Op("le", (Const(3), Var("i"))), Op("lt", (Var("j"), Const(2))))), Var("i"), Const(3))
    )
    assert bounds(half, {"i": 8, "j": 2}) == (3, 7)
    assert bounds(half, {"i": 8, "j": 8}) == (3, 7)


def _logarithm(of: Expr) -> Expr:
    """A logarithm as an integer, which has no bounds where `of` may be 0 or less."""
    return Cast("int64", Op("mul", (Op("log", (Cast("float32", of),)), Const(4.0))))


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("limit", [-3, 0, 1, 4, 9, 30])
def test_a_side_has_the_bounds_of_its_condition(name: str, turned: bool, limit: int):
    """The buckets of T5: a logarithm of distances from 4 on, beside the distances below."""
    extents = {"i": 13, "j": 9}
    distance = Op("sub", (Var("i"), Var("j")))
    comparison = Op(name, (Const(limit), distance) if turned else (distance, Const(limit)))
    found = 0
    for sides in ((_logarithm(distance), Const(2)), (Const(2), _logarithm(distance))):
        limits = bounds(Op("select", (comparison, *sides)), extents)
        values = []
        for i, j in itertools.product(range(13), range(9)):
            d = i - j
            holds = PYTHON[name](limit, d) if turned else PYTHON[name](d, limit)
            side = sides[0] if holds else sides[1]
            values.append(2 if side == Const(2) else None if d <= 0 else int(math.log(d) * 4))
        if limits is not None:
            assert None not in values, "a logarithm without bounds"
            assert all(limits[0] <= value <= limits[1] for value in values if value is not None)
            found += 1
    above = {"lt": limit >= 1, "le": limit >= 0, "gt": limit >= 0, "ge": limit >= 1}
    if name in above and not turned and limit <= 9:
        assert found == above[name], "the one side of which all distances are above 0"


@pytest.mark.parametrize("converted", [False, True])
def test_nested_choices_are_bounded_once(monkeypatch: pytest.MonkeyPatch, converted: bool):
    """Each choice asks for the bounds of the one inside it in its conditions and in its value."""
    index: Expr = Var("i")
    for n in range(20):
        within = Op("and", (Op("le", (Const(-100 - n), index)), Op("le", (index, Const(100 + n)))))
        index = Op("select", (within, Cast("int64", index) if converted else index, Const(n)))
    calls, bounded = [], Bounds._bounded
    monkeypatch.setattr(Bounds, "_bounded", lambda self, expr: calls.append(expr) or bounded(self, expr))
    assert bounds(index, {"i": 300}) == (0, 100)
    assert len(calls) == len(set(calls)) < 300


def test_bounds_of_an_index_from_the_end():
    distance = Op("sub", (Var("j"), Var("i")))
    wrapped = Op("select", (Op("lt", (distance, Const(0))), Op("add", (distance, Const(16384))), distance))
    assert bounds(wrapped, {"i": 8192, "j": 8192}) == (0, 16383)
    other = Op("select", (Op("not", (Op("ge", (distance, Const(0))),)), Op("neg", (distance,)), distance))
    assert bounds(other, {"i": 8, "j": 4}) == (0, 7)
    never = Op("select", (Op("lt", (Var("i"), Const(0))), Const(99), Var("i")))
    assert bounds(never, {"i": 8}) == (0, 7)


@given(INDICES, st.sampled_from(NAMES))
def test_linear_is_a_times_the_variable_and_a_rest(expr: Expr, var: str):
    found = affine_terms(expr, var)
    if found is None:
        return
    a, rest = found
    assert Var(var) not in set(walk(rest))
    for env in points({"a": 3, "b": 3, "c": 3}):
        assert evaluate(expr, env) == a * env[var] + evaluate(rest, env)


def index(j0: str = "a", j1: str = "b", size: int = 4) -> Expr:
    return Op("add", (Op("mul", (Var(j0), Const(size))), Var(j1)))


def test_a_tiled_index_splits_again():
    extents = {"a": 8, "b": 4}
    assert simplify(Op("floordiv", (index(), Const(4))), extents) == Var("a")
    assert simplify(Op("floormod", (index(), Const(4))), extents) == Var("b")


def test_a_tile_that_is_too_wide_does_not():
    extents = {"a": 8, "b": 5}
    kept = Op("floordiv", (index(), Const(4)))
    assert simplify(kept, extents) == kept


def test_values_of_64_bits_that_an_index_reads_keep_their_width():
    negative = Op("mul", (Load("ids", (Op("add", (index(), Const(0))),)), Const(-1, "int64")))
    place = Cast("int32", Op("add", (negative, Const(4, "int64"))))
    short = Op("mul", (Load("ids", (index(),)), Const(-1, "int64")))
    assert simplify(place, {"a": 8, "b": 4}) == Cast("int32", Op("add", (short, Const(4, "int64"))))


def test_bounds_are_exact_where_every_variable_occurs_once():
    assert bounds(index(), {"a": 8, "b": 4}) == (0, 31)
    assert bounds(Op("floormod", (index(), Const(8))), {"a": 8, "b": 4}) == (0, 7)
    assert bounds(Op("sub", (Const(3), Var("b"))), {"b": 4}) == (0, 3)
    assert bounds(Var("unknown"), {}) is None
    for value in (0.5, float("inf"), 3.0):  # a float is no index: 0.5 is not 0
        assert bounds(Const(value, "float32"), {}) is None
