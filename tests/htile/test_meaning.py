"""The NumPy interpreter against float64 references, and what it says about elements that nobody wrote."""

from __future__ import annotations

import numpy as np
import pytest
from htile_programs import CASES, F16, F32, at, lit, op, softmax, tile

from neptune_lab.errors import TileError
from neptune_lab.htile import interpret, verify
from neptune_lab.htile.interpret import _Machine
from neptune_lab.htile.nodes import Arith, Cast, GridAxis, Int, Kernel, Name, Program, Reduce, Slice, Store, Tensor
from neptune_lab.htile.rounding import round_to_bfloat16
from neptune_lab.htile_passes import PASSES, apply


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name):
    case = CASES[name]()
    verify(case.program)
    found = interpret(case.program, case.inputs, dtype="float64")
    for output, expected in case.expected().items():
        np.testing.assert_allclose(found[output], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CASES)
def test_every_pass_keeps_the_meaning(name):
    case = CASES[name]()
    program = case.program
    for rewrite in PASSES.values():
        program = apply(rewrite, program).program
        verify(program)
        found = interpret(program, case.inputs, dtype="float64")
        for output, expected in case.expected().items():
            np.testing.assert_allclose(found[output], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_unchanged_input_is_the_same_object(name):
    program = CASES[name]().program
    for rewrite in PASSES.values():
        program = apply(rewrite, program).program
        assert apply(rewrite, program).program is program


def test_stated_dtypes_round():
    case = softmax(4, 8, dtype=F16)
    found = interpret(case.program, case.inputs)["out"]
    assert found.dtype == np.float16
    assert (found == case.expected()["out"]).mean() < 0.5


def test_bfloat16_rounds_to_nearest_even():
    x = np.asarray([1.0, 1.00390625, 1.01171875, 3.389e38, np.inf, np.nan, -1.0], np.float32)
    assert round_to_bfloat16(x)[:3].tolist() == [1.0, 1.0, 1.015625]
    assert np.isinf(round_to_bfloat16(x)[4])
    assert np.isnan(round_to_bfloat16(x)[5])


def test_an_unmasked_fold_over_lanes_past_the_end_shows():
    """On chip nothing is written past the end, so a fold that forgets its mask gives NaN."""
    i, j = tile("i0", 4, "i"), tile("i0", 8, "j")
    body = (
        Store("s1", at("t", j), at("x", j), "t"),
        Store("s2", at("y"), Reduce("sum", at("t", j), 0), "y"),
    )
    tensors = (Tensor("x", (6,), F32, "input"), Tensor("t", (6,), F32, "chip"), Tensor("y", (), F32, "output"))
    program = Program("p", tensors, ("x",), ("y",), (Kernel("k", "p", (GridAxis("i0", 1),), body),))
    verify(program)
    assert np.isnan(interpret(program, {"x": np.ones(6)})["y"])
    del i


def test_global_reads_past_the_end_are_zero_and_stores_are_dropped():
    i = tile("i0", 4, "i")
    store = Store("s", at("y", i), op("add", Cast(at("x", i), F32), lit(1.0)), "y")
    tensors = (Tensor("x", (6,), F16, "input"), Tensor("y", (10,), F32, "output"))
    program = Program("p", tensors, ("x",), ("y",), (Kernel("k", "p", (GridAxis("i0", 3),), (store,)),))
    assert list(interpret(program, {"x": np.ones(6)})["y"]) == [2.0] * 6 + [1.0] * 4


@pytest.mark.parametrize("shift", [-3, 0, 2, 5])
def test_a_tile_inside_is_read_and_stored_as_its_elements_are(shift, monkeypatch):
    """The tiles of `y[i, j] = x[i + shift, j] + 1`, some of which are partly or wholly outside, by both ways."""
    i, j = tile("i0", 4, "i"), Slice(Int(0), 3, "j")
    moved = Slice(Arith("+", Arith("*", Name("i0"), Int(4)), Int(shift)), 4, "i")
    store = Store("s", at("y", i, j), op("add", at("x", moved, j), lit(1.0)), "y")
    tensors = (Tensor("x", (10, 3), F32, "input"), Tensor("y", (10, 3), F32, "output"))
    program = Program("p", tensors, ("x",), ("y",), (Kernel("k", "p", (GridAxis("i0", 3),), (store,)),))
    x = np.arange(30.0).reshape(10, 3)
    whole = interpret(program, {"x": x})["y"]
    monkeypatch.setattr(_Machine, "whole", lambda *_: None)
    assert np.array_equal(whole, interpret(program, {"x": x})["y"])
    rows = [row + shift for row in range(10)]
    assert np.array_equal(whole, [x[row] + 1 if 0 <= row < 10 else np.ones(3) for row in rows])


def test_inputs_are_checked():
    with pytest.raises(TileError, match=r"input x has shape \(3,\); expected \(10, 77\)"):
        interpret(softmax().program, {"x": np.ones(3)})
