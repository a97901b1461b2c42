"""A row that one tile holds is cut into pieces of a power of two of elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_texts import after, read

from neptune_lab.htile import interpret
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import roots, stores, subexpressions
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.cut_long_rows import cut_long_rows, pieces_of

DECLARED = """
program p(x, w) -> y
  input   x  float32[i: 4, j: 1100]
  input   w  float32[j: 1100]
  output  y  float32[i: 4, j: 1100]
  chip    s  float32[i: 4]
  chip    t  float32[i: 4, j: 1100]
  chip    u  float32[j: 1100, i: 4]
"""


def kernel(*lines: str, grid: str = "i: 4", warps: int = 1) -> str:
    return f"\n    kernel p  grid ({grid})  num_warps={warps}\n        " + "\n        ".join(lines) + "\n"


LAST = "@s/0.s_part2"
NORM = ("s[i] = reduce(sum, x[i, 0:1100] * x[i, 0:1100], dim=0)", "y[i, 0:1100] = x[i, 0:1100] * w[0:1100] / s[i]")

HELD = ("s[i] = reduce(sum, t[i, 0:1100], dim=0)", "y[i, 0:1100] = t[i, 0:1100] / s[i]")


def test_reductions_combine_pieces_and_results_are_stored_by_piece():
    made = after(cut_long_rows, DECLARED, kernel(*NORM, warps=4))
    assert (
        made
        == f"""
+ chip s_part float32[p0: 512]
kernel p  grid (i: 4)  num_warps=4
    s_part[0:512] = x[i, 0:512] * x[i, 0:512] + x[i, 512:1024] * x[i, 512:1024]  @s/0.s_part1
    s_part[0:512] = s_part[0:512] + where(iota[0:512:j] < index(76), x[i, 1024:1536] * x[i, 1024:1536], 0.0)  {LAST}
    s[i] = reduce(sum, s_part[0:512], dim=0)
    y[i, 0:512] = x[i, 0:512] * w[0:512] / s[i]  @y/0
    y[i, 512:1024] = x[i, 512:1024] * w[512:1024] / s[i]  @y/1
    y[i, 1024:1536] = x[i, 1024:1536] * w[1024:1536] / s[i]  @y/2
"""
    )


def test_a_row_that_is_held_becomes_a_tile_per_piece():
    made = after(cut_long_rows, DECLARED, kernel("t[i, 0:1100] = exp(x[i, 0:1100])", *HELD, warps=4))
    assert (
        made
        == f"""
- chip t float32[4, j: 1100]
+ chip t_piece float32[4, j: 512]
+ chip t_piece_2 float32[4, j: 512]
+ chip t_piece_3 float32[4, j: 512]
+ chip s_part float32[p0: 512]
kernel p  grid (i: 4)  num_warps=4
    t_piece[i, 0:512] = exp(x[i, 0:512])  @t/0
    t_piece_2[i, 0:512] = exp(x[i, 512:1024])  @t/1
    t_piece_3[i, 0:512] = exp(x[i, 1024:1536])  @t/2
    s_part[0:512] = t_piece[i, 0:512] + t_piece_2[i, 0:512]  @s/0.s_part1
    s_part[0:512] = s_part[0:512] + where(iota[0:512:j] < index(76), t_piece_3[i, 0:512], 0.0)  {LAST}
    s[i] = reduce(sum, s_part[0:512], dim=0)
    y[i, 0:512] = t_piece[i, 0:512] / s[i]  @y/0
    y[i, 512:1024] = t_piece_2[i, 0:512] / s[i]  @y/1
    y[i, 1024:1536] = t_piece_3[i, 0:512] / s[i]  @y/2
"""
    )


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("y[i, 0:1100] = x[i, 0:1100]",), id="nothing is reduced"),
        pytest.param((NORM[0], "y[i, 0:1100] = x[i, 1:1101] / s[i]"), id="another slice"),
        pytest.param(
            ("u[0:1100, i] = x[i, 0:1100]", NORM[0], "y[i, 0:1100] = u[0:1100, i] / s[i]"), id="a column that is held"
        ),
        pytest.param((NORM[0], "y[i, 0:1100] = gather(x, i, iota[0:1100]) / s[i]"), id="element by element"),
        pytest.param(("s[i] = 1.0", "for j0 in range(2):", f"    {NORM[0]}", NORM[1]), id="a loop"),
    ],
)
def test_left_as_it_is(lines: tuple[str, ...]):
    program = read(DECLARED, kernel(*lines))
    assert apply(cut_long_rows, program).program is program


@pytest.mark.parametrize("extent", [1, 1000, 1024, 1025, 1100, 2047, 2048, 2049, 4000, 50257])
@pytest.mark.parametrize("warps", [1, 4, 32])
def test_pieces_hold_the_row_in_fewer_lanes(extent: int, warps: int):
    pieces = pieces_of(extent, warps)
    whole = 1 << (extent - 1).bit_length()
    if pieces is not None:
        assert pieces.size & (pieces.size - 1) == 0
        assert (pieces.count - 1) * pieces.size < extent <= pieces.count * pieces.size < whole


FOLDS = ("sum", "max", "min", "prod")


@settings(max_examples=25)
@given(st.sampled_from(FOLDS), st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from([1, 2, 4]), st.randoms())
def test_the_meaning_stays(fold: str, warps: int, row_tiles: bool, of_rows: int, rng):
    """Rows by themselves and in tiles of rows; reductions inside expressions; and no tile is as long as the row."""
    i = f"i*{of_rows}:i*{of_rows}+{of_rows}" if row_tiles else "i"
    new, dim = (", NewAxis", 1) if row_tiles else ("", 0)
    w = "w[NewAxis, 0:1100]" if row_tiles else "w[0:1100]"
    position = "iota[NewAxis, 0:1100]" if row_tiles else "iota[0:1100]"
    lines = (
        f"s[{i}] = reduce({fold}, x[{i}, 0:1100] * {w}, dim={dim}) + reduce(max, {w} + x[{i}, 0:1100], dim={dim})",
        f"y[{i}, 0:1100] = x[{i}, 0:1100] + s[{i}{new}] * float32({position})",
    )
    program = read(DECLARED, kernel(*lines, grid=f"i: {4 // of_rows if row_tiles else 4}", warps=warps))
    found = apply(cut_long_rows, program).program
    assert found is not program
    every = [e for s in stores(found.kernels[0].body) for r in roots(s) for e in subexpressions(r)]
    assert max(shape_of(e, found)[-1] for e in every if shape_of(e, found)) < 1100
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    given_ = {"x": numbers.standard_normal((4, 1100)), "w": 1 + numbers.standard_normal(1100) / 1000}
    if fold == "prod":
        given_["x"] = np.sign(given_["x"])
    one, other = (interpret(p, given_, dtype="float64")["y"] for p in (program, found))
    np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-10)


@pytest.mark.nightly
@settings(max_examples=30, deadline=None)
@given(st.sampled_from(FOLDS), st.sampled_from(["float16", "float32"]), st.integers(1025, 1300), st.randoms())
def test_rows_that_begin_anywhere(fold: str, dtype: str, extent: int, rng):
    """Each row has a head of its own: pieces of whole blocks, and two edges."""
    declared = DECLARED.replace("1100", str(extent)).replace("i: 4", "i: 9").replace("x  float32", f"x  {dtype}")
    declared = declared.replace("y  float32", f"y  {dtype}")
    lines = (
        f"s[i] = reduce({fold}, float32(x[i, 0:{extent}]), dim=0)",
        f"y[i, 0:{extent}] = {dtype}(float32(x[i, 0:{extent}]) * float32(iota[0:{extent}]) + s[i])",
    )
    program = read(declared, kernel(*lines, grid="i: 9"))
    found = apply(cut_long_rows, program).program
    assert found is not program
    block = 8 if dtype == "float16" else 4
    every = [e for s in stores(found.kernels[0].body) for r in roots(s) for e in subexpressions(r)]
    assert any(shape_of(e, found) == (block,) for e in every) == (extent % block != 0)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    given_ = {"x": numbers.choice([-1.0, 1.0], (9, extent)), "w": np.ones(extent)}
    one, other = (interpret(p, given_, dtype="float64")["y"] for p in (program, found))
    np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-10)


@pytest.mark.nightly
@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["float16", "float32"]), st.integers(1025, 1300), st.booleans(), st.randoms())
def test_held_rows_keep_their_meaning(dtype: str, extent: int, changed: bool, rng):
    """Rows that are computed, held, perhaps changed where they are held, reduced and read, whatever their head is."""
    declared = DECLARED.replace("1100", str(extent)).replace("i: 4", "i: 9").replace("x  float32", f"x  {dtype}")
    declared = declared.replace("y  float32", f"y  {dtype}")
    row = f"[i, 0:{extent}]"
    lines = [
        f"t{row} = exp(float32(x{row}) * 0.125)",
        *([f"t{row} = t{row} + float32(iota[0:{extent}])"] if changed else []),
        f"s[i] = reduce(sum, t{row} * float32(x{row}), dim=0)",
        f"y{row} = {dtype}(float32(x{row}) * s[i] - t{row})",
    ]
    program = read(declared, kernel(*lines, grid="i: 9"))
    found = apply(cut_long_rows, program).program
    assert "t" not in {tensor.name for tensor in found.tensors}
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    given_ = {"x": numbers.choice([-1.0, 1.0, 2.0], (9, extent)), "w": np.ones(extent)}
    one, other = (interpret(p, given_, dtype="float64")["y"] for p in (program, found))
    np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-10)


def test_an_element_that_is_no_number_is_kept():
    program = read(DECLARED, kernel("s[i] = reduce(max, x[i, 0:1100], dim=0)", "y[i, 0:1100] = x[i, 0:1100] - s[i]"))
    x = np.zeros((4, 1100), "float32")
    x[0, 1099], x[1, 3], x[2, :] = np.nan, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        one, other = (interpret(p, {"x": x, "w": x[0]})["y"] for p in (program, apply(cut_long_rows, program).program))
    np.testing.assert_array_equal(one, other)
