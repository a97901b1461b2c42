"""Rows that a program cannot hold are reduced lane by lane, and the lanes once behind the row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_texts import after, read

from neptune_lab.htile import from_text, interpret, to_text, verify
from neptune_lab.htile.nodes import Program
from neptune_lab.htile_passes import apply, reduce_in_lanes, rows_of_lanes, run

DECLARED = """
program p(x, w) -> y, z
  input   x  float32[i: 5, j: 600]
  input   w  float32[i: 5, j: 600]
  output  y  float32[i: 5, j: 600]
  output  z  float32[i: 5]
  chip    s  float32[i: 5]
  chip    t  float32[i: 5]
  chip    u  float32[i: 5, j: 600]
"""
SOFTMAX = (
    "s[i] = reduce(max, x[i, 0:600], dim=0)",
    "t[i] = reduce(sum, exp(x[i, 0:600] - s[i]), dim=0)",
    "y[i, 0:600] = exp(x[i, 0:600] - s[i]) / t[i]",
    "z[i] = t[i]",
)


@pytest.fixture(autouse=True)
def _short_rows(monkeypatch: pytest.MonkeyPatch):
    """A lane holds a few elements, and an iteration has two pieces."""
    for name in ("MOST_OF_THREAD", "MOST_READ_ONCE"):
        monkeypatch.setattr(rows_of_lanes, name, 8)
    monkeypatch.setattr(rows_of_lanes, "PIECES", 2)
    monkeypatch.setattr(rows_of_lanes, "OF_FEW_WARPS", 2)


def kernel(*lines: str, warps: int = 1) -> str:
    return f"\n    kernel p  grid (i: 5)  num_warps={warps}\n        " + "\n        ".join(lines) + "\n"


def in_lanes(program: Program) -> Program:
    found = apply(reduce_in_lanes.reduce_in_lanes, program).program
    assert found is not program
    verify(found)
    assert from_text(to_text(found)) == found
    return found


def test_a_maximum_and_a_sum_for_each_lane(golden: Callable[[str, str], None]):
    golden("reduce_in_lanes.txt", after(reduce_in_lanes.reduce_in_lanes, DECLARED, kernel(*SOFTMAX)))


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("y[i, 0:600] = x[i, 0:600]", "z[i] = 1.0"), id="nothing is reduced"),
        pytest.param((SOFTMAX[0], "y[i, 0:600] = x[i, 1:601] - s[i]", "z[i] = s[i]"), id="another slice"),
        pytest.param(
            (SOFTMAX[0], "u[i, 0:600] = x[i, 0:600]", "y[i, 0:600] = u[i, 0:600] - s[i]", "z[i] = s[i]"),
            id="a row that is held",
        ),
        pytest.param((SOFTMAX[0], "y[i, 0:600] = x[i, 0:600]", "z[i] = s[i] + y[i, 3]"), id="what it stores is read"),
        pytest.param(
            (SOFTMAX[0], "t[i] = reduce(sum, x[i, 0:600] * s[i], dim=0)", *SOFTMAX[2:]), id="a sum that waits"
        ),
        pytest.param(
            (SOFTMAX[0].replace("max", "min"), *SOFTMAX[1:]), id="exponentials about another number than the largest"
        ),
        pytest.param(
            (
                "s[i] = reduce(sum, x[i, 0:600], dim=0)",
                "t[i] = reduce(sum, (x[i, 0:600] - s[i]) * (x[i, 0:600] - s[i]), dim=0)",
                *SOFTMAX[2:],
            ),
            id="squares about a sum",
        ),
        pytest.param(
            ("s[i] = 0.0", "for j0 in range(2):", f"    {SOFTMAX[0]}", "y[i, 0:600] = x[i, 0:600]", "z[i] = s[i]"),
            id="a loop",
        ),
    ],
)
def test_left_as_it_is(lines: tuple[str, ...]):
    program = read(DECLARED, kernel(*lines))
    assert apply(reduce_in_lanes.reduce_in_lanes, program).program is program


def test_a_row_whose_elements_are_all_gathered_stays():
    declared = "\nprogram p(x) -> z\n  input   x  float32[i: 5, j: 600]\n  output  z  float32[i: 5]\n"
    tiles = read(declared, kernel("z[i] = reduce(sum, gather(x, i, 599 - iota[0:600]), dim=0)"))
    assert apply(reduce_in_lanes.reduce_in_lanes, tiles).program is tiles


def test_a_row_that_a_program_holds_stays():
    program = read(DECLARED, kernel(*SOFTMAX, warps=4))
    assert apply(reduce_in_lanes.reduce_in_lanes, program).program is program


FOLDS = ("sum", "max", "min", "prod")


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(FOLDS), st.sampled_from(["float16", "float32"]), st.integers(1040, 2600), st.sampled_from([1, 2]),
    st.integers(0, 1 << 30),
)  # fmt: skip
def test_the_meaning_stays(fold: str, dtype: str, extent: int, warps: int, seed: int):
    """Rows of any length, wherever they begin; several reductions in one expression, some about the largest element,
    numbers that wait for nothing, and rows that are written."""
    declared = DECLARED.replace("600", str(extent)).replace("x  float32", f"x  {dtype}")
    row, position = f"float32(x[i, 0:{extent}])", f"float32(iota[0:{extent}])"
    lines = (
        "t[i] = float32(x[i, 3]) * 2.0",
        f"s[i] = reduce(max, {row}, dim=0)",
        f"z[i] = reduce(sum, exp({row} - s[i]), dim=0) * t[i] + reduce({fold}, {row} * {position} + t[i], dim=0)",
        f"y[i, 0:{extent}] = ({row} - s[i]) * {position} + w[i, 0:{extent}]",
    )
    program = read(declared, kernel(*lines, warps=warps))
    made = in_lanes(program)
    x = np.random.default_rng(seed).standard_normal((5, extent)).astype(dtype)
    x = x if fold != "prod" else np.sign(x) / np.arange(1, extent + 1)
    found, lowered, wanted = (
        interpret(p, {"x": x, "w": x[::-1]}, dtype="float64") for p in (made, run(program), program)
    )
    for name in ("y", "z"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(lowered[name], wanted[name], rtol=1e-10, atol=1e-10)


def test_exponentials_of_what_is_no_number():
    """Of rows with infinities and NaN, in one lane or in all, both forms give the same; a row of -inf is NaN."""
    program = read(DECLARED, kernel(*SOFTMAX))
    x = np.random.default_rng(0).standard_normal((5, 600)).astype("float32")
    x[0, 5], x[1, 555], x[2, :300], x[2, 307::128], x[3, 3:], x[4] = np.inf, np.nan, *[-np.inf] * 4
    with np.errstate(invalid="ignore"):
        one, other = (interpret(p, {"x": x, "w": x[::-1]}) for p in (program, in_lanes(program)))
    for name in ("y", "z"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5)
    assert np.isnan(one["z"]).tolist() == [True, True, False, False, True]


def test_large_numbers_stay_in_range():
    """Each lane's exponentials are about its own largest element, however far it is from the others'."""
    x = np.random.default_rng(1).permuted(np.linspace(-3e4, 3e4, 3000).reshape(5, 600), axis=1).astype("float32")
    program = read(DECLARED, kernel(*SOFTMAX))
    with np.errstate(over="raise"):
        one, other = (interpret(p, {"x": x, "w": x[::-1]}) for p in (program, in_lanes(program)))
    for name in ("y", "z"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5)
