"""Gathers load what their indices and conditions leave, and nothing else: equal to the tiles' meaning, NaN included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import Program
from neptune_lab.htile.parser import from_text
from neptune_lab.htile.verify import verify
from neptune_lab.htile_to_triton import emit

PROGRAM = """
program rows(x, n, at) -> out
  input   x    float32[{rows}, {columns}]
  input   n    int32[3]
  input   at   int32[{tile}]
  output  out  float32[3, {tile}, {width}]

kernel rows  grid (i: 3)
    out[i, 0:{tile}, 0:{width}] = where({condition}, gather(x, {row}, iota[NewAxis, {start}:{start}+{width}]), {other})
"""
CONDITIONS = ("iota[0:{tile}, NewAxis] < n[i]", "n[i] > 1", "iota[NewAxis, 0:{width}] != n[i]")
ROWS = (
    "iota[{first}:{first}+{tile}, NewAxis]",
    "at[0:{tile}, NewAxis]",
    "index({first})",
    "iota[{first}:{first}+{tile}, NewAxis] - iota[NewAxis, 0:{width}] + 2",
    "3 - iota[0:{tile}, NewAxis] * 2 + iota[NewAxis, i:i+{width}]",
    "at[0:{tile}, NewAxis] + iota[NewAxis, 0:{width}]",
)


def program(**chosen: object) -> Program:
    sizes = {name: value for name, value in chosen.items() if isinstance(value, int)}
    texts = {name: value.format(**sizes) for name, value in chosen.items() if isinstance(value, str)}
    made = from_text(PROGRAM.format(**sizes, **texts))
    verify(made)
    return made


@pytest.mark.nightly
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    tile=st.integers(1, 9),
    width=st.integers(1, 9),
    first=st.integers(0, 4),
    start=st.integers(0, 4),
    condition=st.sampled_from(CONDITIONS),
    row=st.sampled_from(ROWS),
    other=st.sampled_from(["0.0", "-0.0", "1.0"]),
    seed=st.integers(0, 99),
)
def test_the_meaning_stays(run_triton, seed: int, **chosen: object):
    made, rng = program(**chosen), np.random.default_rng(seed)
    x = rng.standard_normal(made.tensor("x").shape).astype("float32")
    x[rng.random(x.shape) < 0.2] = np.nan
    arrays = {"x": x, "n": rng.integers(-1, 9, 3, "int32"), "at": rng.integers(-2, 9, made.tensor("at").shape, "int32")}
    want = interpret(made, arrays)["out"]
    got = run_triton(made, arrays)["out"]
    np.testing.assert_array_equal(got, want)


def text_of(**changed: object) -> str:
    usual: dict[str, object] = dict.fromkeys(("rows", "columns", "tile", "width"), 8) | {"first": 0, "start": 0}
    usual |= {"condition": CONDITIONS[0], "row": ROWS[0], "other": "0.0"}
    return emit(program(**{**usual, **changed})).text


def test_a_condition_is_a_part_of_the_mask():
    assert "tl.where" not in text_of()
    assert text_of().count("mask=") == 1


@pytest.mark.parametrize("other", ["-0.0", "1.0"])
def test_what_no_mask_gives_is_chosen_afterwards(other: str):
    assert "tl.where" in text_of(other=other)


def test_only_indices_that_may_leave_the_tensor_are_compared():
    assert "< 8" not in text_of()
    assert "< 7" in text_of(rows=7)
    assert "< 8" in text_of(row=ROWS[1])
    assert "< 7" in text_of(columns=7, width=7, tile=8)  # the tile is padded to 8


def test_a_diagonal_that_stays_inside_the_tensor_is_not_compared():
    diagonal = "iota[7:15, NewAxis] - iota[NewAxis, 0:8]"
    assert "< 15" not in text_of(row=diagonal, rows=15)
    assert ">= 0" not in text_of(row=diagonal, rows=15)
    assert text_of(row=diagonal, rows=14).count("< 14") == 1
    assert text_of(row="iota[6:14, NewAxis] - iota[NewAxis, 0:8]", rows=15).count(">= 0") == 1
    assert ">= 0" in text_of(row="at[0:8, NewAxis] - iota[NewAxis, 0:8]", rows=15)
