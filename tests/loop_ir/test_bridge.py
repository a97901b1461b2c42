"""Scalar expressions to SymPy and back: same numbers, and unequal reads never merge."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Var
from neptune_lab.loop_ir.sympy_bridge import read_term, write

I, J = Var("i"), Var("j")
X, Y, R = Load("x", (I, J)), Load("y", (I, J)), Load("r", (I,))
VALUES = {X: 0.75, Y: 1.5, R: 2.25}

PYTHON = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": max,
    "min": min,
    "pow": lambda a, b: a**b,
    "neg": lambda a: -a,
    "exp": math.exp,
    "exp2": lambda a: 2**a,
    "log": math.log,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "tanh": math.tanh,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "sin": math.sin,
    "cos": math.cos,
    "erf": math.erf,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
}


def evaluate(expr: Expr) -> float:
    match expr:
        case Const(value):
            return float(value)
        case Load():
            return VALUES[expr]
        case Cast(_, arg) | Op("guard", (arg, _, _)):
            return evaluate(arg)
        case Op(name, args):
            return float(PYTHON[name](*(evaluate(a) for a in args)))
    raise AssertionError(expr)


def round_trip(expr: Expr) -> Expr:
    reading = read_term(expr, {R: "r"})
    return write(reading.term, dict(reading.reads), "float64")


def _bigger(part: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return (
        st.builds(
            lambda n, a, b: Op(n, (a, b)), st.sampled_from(["add", "sub", "mul", "div", "max", "min"]), part, part
        )
        | st.builds(lambda n, a: Op(n, (a,)), st.sampled_from(["neg", "exp", "tanh", "abs", "sigmoid"]), part)
        | st.builds(lambda a: Cast("float32", a), part)
    )


LEAVES = st.sampled_from([X, Y, R, Const(2.0, "float32"), Const(-0.5, "float32"), Const(3, "float32")])


@given(st.recursive(LEAVES, _bigger, max_leaves=5))
def test_there_and_back_is_the_same_number(expr: Expr):
    try:
        expected = evaluate(expr)
    except (ZeroDivisionError, OverflowError):
        return
    if abs(expected) > 1e6:
        return
    again = round_trip(expr)
    try:
        found = evaluate(again)
    except OverflowError:
        return
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", [n for n, f in PYTHON.items() if f.__class__ is not type and n not in ("max", "min")])
def test_every_function(name: str):
    two = name in ("add", "sub", "mul", "div", "pow")
    expr = Op(name, (X, R) if two else (X,))
    assert evaluate(round_trip(expr)) == pytest.approx(evaluate(expr))


def test_reads_are_told_apart_by_place_not_by_name():
    there = Load("x", (J, I))
    reading = read_term(Op("sub", (X, there)), {})
    assert reading.term != 0
    assert [str(s) for s, _ in reading.reads] == ["x", "x_2"]
    assert [e for _, e in reading.reads] == [X, there]
    assert read_term(Op("sub", (X, X)), {}).term == 0


def test_an_input_called_like_a_producer_gets_another_symbol():
    reading = read_term(Op("mul", (Load("r", (J,)), R)), {R: "r"})
    assert sorted(str(s) for s, _ in reading.reads) == ["r", "r_2"]
    assert {str(s): e for s, e in reading.reads}["r"] == R


def test_conditions_on_inputs_are_one_opaque_input():
    masked = Op("select", (Op("lt", (I, J)), X, Const(float("-inf"), "float32")))
    reading = read_term(Op("exp", (Op("sub", (masked, R)),)), {R: "r"})
    assert {str(s): e for s, e in reading.reads} == {"input": masked, "r": R}


def test_guards_and_casts_are_seen_through():
    plain = read_term(Op("sub", (X, R)), {R: "r"}).term
    guarded = Op("sub", (Cast("float16", X), Op("guard", (R, Const(0.0, "float32"), Const(1.0, "float32")))))
    assert str(read_term(guarded, {R: "r"}).term) == str(plain)


@pytest.mark.parametrize(
    "expr",
    [Cast("int32", R), Op("floordiv", (X, R))],
)
def test_results_inside_what_is_not_arithmetic(expr: Expr):
    with pytest.raises(RepairError, match="uses a reduction result inside") as caught:
        read_term(expr, {R: "r"})
    assert caught.value.step == "read"
