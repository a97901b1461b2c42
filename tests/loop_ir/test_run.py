"""Native runs, and when two programs count as equal."""

from __future__ import annotations

import pickle
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
import small_operators as small  # pyright: ignore[reportMissingImports]

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import nodes
from neptune_lab.loop_ir.nodes import Const, Load, Op, Var
from neptune_lab.loop_ir.reduction import match_reduction, reducer_of
from neptune_lab.loop_ir.run import compare, run
from neptune_lab.loop_ir.sign import is_nonnegative, may_be_infinite
from neptune_lab.loop_ir.tree import find_block, replace_block
from neptune_lab.operators import softmax

PROGRAM = softmax.figure1(2, 3, "float64").program


def test_every_buffer_comes_back():
    inp = np.array([[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]])
    values = run(PROGRAM, {"inp": inp})
    assert set(values) == {"inp", "xmax", "xexp", "xsum"}
    np.testing.assert_allclose(values["xexp"], np.exp(inp - inp.max(1, keepdims=True)))
    np.testing.assert_allclose(values["xsum"], values["xexp"].sum(1))


def test_inputs_are_checked():
    with pytest.raises(ScheduleError, match="no array was given for input 'inp'"):
        run(PROGRAM, {})
    with pytest.raises(ScheduleError, match=r"input 'inp' has shape \(3, 2\), expected \(2, 3\)"):
        run(PROGRAM, {"inp": np.zeros((3, 2))})


def test_what_nobody_wrote_is_nan():
    """A consumer that runs first reads NaN, not whatever was there."""
    first, *rest = PROGRAM.body
    values = run(replace(PROGRAM, body=(*rest, first)), {"inp": np.zeros((2, 3))})
    assert np.isnan(values["xsum"]).all()


_X, _HALF = Load("inp", (Var("i"), Var("j"))), Op("div", (Load("inp", (Var("i"), Var("j"))), Const(2.0, "float32")))
_ONE, _LARGE, _ZERO = (Const(value, "float32") for value in (1.0, 1e30, 0.0))
# What TVM simplifies over the reals: a function of x, and its values at 1, infinity and NaN.
AS_WRITTEN = {
    "x - x": (Op("sub", (_X, _X)), [0, nan, nan]),
    "1 / (x - x)": (Op("div", (_ONE, Op("sub", (_X, _X)))), [inf, nan, nan]),
    "0 * x": (Op("mul", (_ZERO, _X)), [0, nan, nan]),
    "(x + 1e30) - 1e30": (Op("sub", (Op("add", (_X, _LARGE)), _LARGE)), [0, inf, nan]),
    "max(x, 1)": (Op("max", (_X, _ONE)), [1, inf, nan]),
    "max(1, x)": (Op("max", (_ONE, _X)), [1, inf, nan]),
    "min(x, 1)": (Op("min", (_X, _ONE)), [1, 1, nan]),
    "min(1, x)": (Op("min", (_ONE, _X)), [1, 1, nan]),
    "(x - x/2) + x/2": (Op("add", (Op("sub", (_X, _HALF)), _HALF)), [1, nan, nan]),
    "x == x": (Op("select", (Op("eq", (_X, _X)), _ONE, _ZERO)), [1, 1, 0]),
    "x - x == 0": (Op("select", (Op("eq", (Op("sub", (_X, _X)), _ZERO)), _ONE, _ZERO)), [1, 0, 0]),
    "not x < 1": (Op("select", (Op("not", (Op("lt", (_X, _ONE)),)), _ONE, _ZERO)), [1, 1, 1]),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", AS_WRITTEN)
def test_floats_are_computed_as_written(name: str):
    value, expected = AS_WRITTEN[name]
    program = softmax.figure1(1, 3, "float32").program
    _, block, _ = find_block(program, "s_exp")
    changed = replace_block(program, "s_exp", replace(block, body=replace(block.body, value=value)))
    np.testing.assert_array_equal(run(changed, {"inp": np.array([[1, inf, nan]])})["xexp"], [expected])


def with_output(value) -> object:
    """PROGRAM, its sums replaced by `value` at the last step."""
    _, block, _ = find_block(PROGRAM, "s_sum")
    return replace_block(PROGRAM, "s_sum", replace(block, body=replace(block.body, value=value), init=None))


@pytest.mark.parametrize(
    ("ours", "theirs", "equal"),
    [
        (1.0, 1.0, True),
        (1.0 + 1e-12, 1.0, True),
        (1.0 + 1e-6, 1.0, False),
        (float("nan"), float("nan"), True),
        (float("inf"), float("inf"), True),
        (float("inf"), float("-inf"), False),
        (float("nan"), float("inf"), False),
        (float("nan"), 1.0, False),
        (0.0, 0.0, True),
        (1e-3, 0.0, False),
    ],
)
def test_when_programs_are_equal(ours: float, theirs: float, equal: bool):
    inputs = {"inp": np.zeros((2, 3))}
    a, b = (with_output(Const(v, "float64")) for v in (ours, theirs))
    assert bool(compare(a, b, inputs)) is equal  # type: ignore[arg-type]


def test_nodes_that_were_found_equal_are_compared_once(monkeypatch: pytest.MonkeyPatch):
    def made(zero: float) -> Op:
        return Op("add", (Op("exp", (Load("inp", (Var("i"), Var("j"))),)), Const(zero, "float64")))

    one, other, third, negative = made(0.0), made(0.0), made(0.0), made(-0.0)
    assert one == other
    assert other == third
    assert negative not in (one, other, third)
    with monkeypatch.context() as patched:
        patched.setattr(nodes, "children", lambda expr: pytest.fail("compared again"))
        assert one == other
        assert third == one
    assert pickle.loads(pickle.dumps(one)) == third


def test_reductions_are_read_off_blocks():
    _, block, _ = find_block(PROGRAM, "s_max")
    found = match_reduction(block)
    assert (found.reducer, found.identity.value) == ("max", float("-inf"))
    assert found.term == Load("inp", (Var("i"), Var("j")))
    swapped = replace(block, body=replace(block.body, value=Op("max", (found.term, found.carried))))
    assert match_reduction(swapped) == found
    assert reducer_of(find_block(PROGRAM, "s_exp")[1]) is None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda b: replace(b, init=None), "has no constant start value"),
        (lambda b: replace(b, body=replace(b.body, value=Const(0.0, "float64"))), "does not have the form"),
        (
            lambda b: replace(b, body=replace(b.body, value=Op("max", (b.body.value, b.body.value)))),
            "does not have the form",
        ),
    ],
)
def test_what_is_no_reduction(change, match: str):
    with pytest.raises(ScheduleError, match=match) as caught:
        match_reduction(change(find_block(PROGRAM, "s_max")[1]))
    assert caught.value.help


def test_signs_come_from_the_program():
    """Also of a repaired reduction, whose left operand is no longer itself alone."""
    sch = small.schedule(small.weighted())
    for repaired in (False, True):
        if repaired:
            sch.rolling_update("s", "r.j")
        assert is_nonnegative(sch.program, Load("s", ()))
        assert not is_nonnegative(sch.program, Load("r", ()))
    squares = small.operator(small.rms_max()).program
    assert is_nonnegative(squares, Load("r", ()))
    assert is_nonnegative(small.operator(small.l2_norm()).program, Load("r", ()))


def test_only_a_range_with_an_end_rules_out_an_infinity():
    """An input may hold -inf (a bias that masks), and so may what is read of it."""
    plain = small.operator(small.l2_norm()).program
    assert not may_be_infinite(plain, Load("r", ()), -1)
    masked = Op("select", (Op("lt", (Var("i"), Var("j"))), Load("x", ()), Const(float("-inf"), "float32")))
    assert may_be_infinite(plain, masked, -1)
    assert may_be_infinite(plain, masked, 1)
    assert may_be_infinite(plain, Load("x", ()), -1)
    assert not may_be_infinite(plain, Op("tanh", (Load("x", ()),)), -1)
    assert not may_be_infinite(plain, Op("exp", (Load("x", ()),)), -1)
    assert may_be_infinite(plain, Op("div", (Load("x", ()), Load("x", ()))), 1)
