"""Runs in plain Python: no access leaves its buffer, whether its index is checked as it is written or as it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tvm import te

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, Program, Var
from neptune_lab.loop_ir.run import run
from neptune_lab.loop_ir.run_in_python import python_source, run_in_python
from neptune_lab.loop_ir.tree import find_block, replace_block
from neptune_lab.operators import custom, softmax

FIGURE = softmax.figure1(2, 3, "float64").program
# Without the sums: what is read where shows in the exponentials.
PROGRAM = replace(FIGURE, params=("inp", "xexp"), outputs=("xexp",), body=FIGURE.body[:2])
INPUTS = {"inp": np.array([[1.0, 3.0, 2.0], [0.0, 5.0, 0.0]])}


def reading(column: Expr, predicates: tuple[Expr, ...] = ()) -> Program:
    """PROGRAM, whose exponentials are those of `inp[i, column]`."""
    _, block, _ = find_block(PROGRAM, "s_exp")
    row = block.body.indices[0]
    body = replace(block.body, value=Op("exp", (Load("inp", (row, column)),)))
    return replace_block(PROGRAM, "s_exp", replace(block, body=body, predicates=predicates))


def column() -> Var:
    _, block, _ = find_block(PROGRAM, "s_exp")
    found = block.body.indices[1]
    assert isinstance(found, Var)
    return found


def test_indices_that_are_known_to_be_inside_are_not_checked_as_they_run():
    assert "inside(" not in python_source(PROGRAM)
    last = Op("sub", (Const(2), column()))
    assert "inside(" not in python_source(reading(last))
    np.testing.assert_allclose(run_in_python(reading(last), INPUTS)["xexp"], np.exp(INPUTS["inp"][:, ::-1]))


@pytest.mark.parametrize(("name", "by", "at"), [("add", 1, 3), ("sub", 1, -1)])
def test_an_index_outside_is_an_error(name: str, by: int, at: int):
    """-1 too, which Python would read from the end."""
    with pytest.raises(ScheduleError, match=rf"block 's_exp' leaves a buffer: 'inp' at {at}, on an axis of 3 elements"):
        run_in_python(reading(Op(name, (column(), Const(by)))), INPUTS)


def test_a_predicate_keeps_an_index_inside():
    """The bounds of the index without it are wider than the buffer, so it is checked as it runs."""
    _, block, _ = find_block(PROGRAM, "s_exp")
    loop = next(it.binding for it in block.iters if it.name == column().name)
    program = reading(Op("add", (column(), Const(1))), (Op("lt", (loop, Const(2))),))
    assert "inside(" in python_source(program)
    found = run_in_python(program, INPUTS)["xexp"]
    np.testing.assert_allclose(found[:, :2], np.exp(INPUTS["inp"][:, 1:]))
    assert np.isnan(found[:, 2]).all()


def test_integers_wrap_around_as_in_native_runs():
    x = te.placeholder((2, 9), "int8", name="x")
    j, k = te.reduce_axis((0, 9), name="j"), te.reduce_axis((0, 9), name="k")
    total = te.compute((2,), lambda i: te.sum(x[i, j], axis=j), name="total")
    far = te.compute((2,), lambda i: te.sum((x[i, k] - total[i]).astype("float32") * 0.5, axis=k), name="far")
    program = custom("bytes", [x], [far]).program
    values = np.random.default_rng(0).integers(-128, 128, (2, 9)).astype(np.int8)
    differences = values - values.sum(1, keepdims=True, dtype=np.int8)
    expected = differences.sum(1, dtype=np.float64) * 0.5
    assert not np.array_equal(expected, (values - values.sum(1, keepdims=True)).sum(1) * 0.5)
    np.testing.assert_array_equal(run_in_python(program, {"x": values})["far"], expected)
    np.testing.assert_array_equal(run(program, {"x": values})["far"], expected)
