"""Scalar expressions to SymPy and back: same numbers, and unequal reads never merge."""

from __future__ import annotations

import math

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Var
from neptune_lab.loop_ir.walks import walk
from neptune_lab.loop_to_repair.lower import lower
from neptune_lab.loop_to_repair.read import read_term

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
    return lower(reading.term, dict(reading.reads), "float64")


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


@pytest.mark.parametrize(("power", "name"), [(2, "mul"), (3, "mul"), (4, "mul"), (7, "pow")])
def test_small_powers_are_products(power: int, name: str):
    """TVM warns of pow with a power of 3 and more, and a negative base has no real power there."""
    x, r = sympy.symbols("x r", real=True)
    values: dict[sympy.Symbol, Expr] = {x: X, r: R}
    for e in (x**power, (x / r) ** power, x * r**power):
        written = lower(e, values, "float32")
        assert evaluate(written) == pytest.approx(float(e.subs({x: VALUES[X], r: VALUES[R]})))
        names = {node.name for node in walk(written) if isinstance(node, Op)} - {"div"}
        assert names == ({name} | ({"mul"} if e == x * r**power else set()))


def test_a_position_has_its_loop_s_name():
    """In a refusal, `j - mean` says more than `input - mean`; a tensor of the same name stays another symbol."""
    away = Op("sub", (Cast("float32", Op("add", (Op("mul", (Var("j0"), Const(64, "int32"))), Var("j1")))), R))
    assert str(read_term(away, {R: "r"}).term) == "64*j0 + j1 - r"
    both = read_term(Op("add", (Cast("float32", J), Op("mul", (Load("j", (I,)), R)))), {R: "r"})
    assert {s.name: e for s, e in both.reads} == {"j": J, "j_2": Load("j", (I,)), "r": R}
    quotient = read_term(Op("mul", (Cast("float32", Op("floordiv", (J, Const(4, "int32")))), R)), {R: "r"})
    assert [s.name for s, _ in quotient.reads] == ["input", "r"], "what is not arithmetic has no name of its own"
