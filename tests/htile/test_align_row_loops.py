"""Loops over tiles of rows begin where memory is aligned; rows are loaded ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_texts import after, read

from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import For, Program
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.align_row_loops import align_row_loops
from neptune_lab.htile_passes.load_row_tiles_ahead import load_row_tiles_ahead

ROWS = 9  # every head of eight elements, and one again


def declared(extent: int, dtype: str = "float16") -> str:
    return f"""
program p(x, w) -> y, z
  input   x  {dtype}[i: {ROWS}, j: {extent}]
  input   w  float32[j: {extent}]
  output  y  float32[i: {ROWS}]
  output  z  {dtype}[i: {ROWS}, j: {extent}]
  chip    s  float32[i: {ROWS}]
  chip    m  float32[i: {ROWS}]
  chip    n  float32[i: {ROWS}]
  chip    t  float32[i: {ROWS}, j: {extent}]
"""


def kernel(extent: int, tile: int, first: str = "", second: str = "", count: int | None = None) -> str:
    """A rolling sum of exponentials, then a second pass over the row."""
    count = -(-extent // tile) if count is None else count
    at = f"j0*{tile}:j0*{tile}+{tile}"
    inside = f"iota[{at}] < {extent}"
    value = first or f"exp(float32(x[i, {at}]) - n[i])"
    stored = second or f"exp(float32(x[i, {at}]) - m[i]) / s[i]"
    return f"""
    kernel p  grid (i: {ROWS})
        m[i] = -inf
        s[i] = 0.0
        for j0 in range({count}):
            n[i] = max(m[i], reduce(max, where({inside}, float32(x[i, {at}]), -inf), dim=0))
            t[i, {at}] = {value}
            s[i] = exp(m[i] - n[i]) * s[i] + reduce(sum, where({inside}, t[i, {at}], 0.0), dim=0)
            m[i] = n[i]
        for j0 in range({count}):
            z[i, {at}] = float16({stored})
        y[i] = m[i] + log(s[i])
    """


def run(program: Program, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = interpret(program, {"x": x, "w": np.ones(x.shape[1])}, dtype="float64")
    return found["y"], found["z"]


def test_tiles_begin_behind_the_head_and_two_edges_follow():
    text = """
    kernel p  grid (i: 9)
        s[i] = 0.0
        for j0 in range(5):
            s[i] = s[i] + reduce(sum, where(iota[j0*16:j0*16+16] < 67, float32(x[i, j0*16:j0*16+16]), 0.0), dim=0)
        z[i, 0:67] = x[i, 0:67]
        y[i] = s[i]
    """
    made = " ".join(after(align_row_loops, declared(67), text).split())
    head, end = "i*5%8", "67-(67-i*5%8)%8"
    assert "for j0 in range(3): @s=for:j0@s # interior" in made
    assert f"s[i] = s[i] + reduce(sum, float32(x[i, {head}+j0*16:{head}+j0*16+16]), dim=0)" in made
    assert f"iota[{head}+48:{head}+48+16] < index({end})" in made
    assert f"where(iota[0:8] < index({head}), float32(x[i, 0:8]), 0.0)" in made
    assert f"where( iota[{end}:{end}+8] < index(67), float32(x[i, {end}:{end}+8]), 0.0, )" in made
    assert made.index("interior") < made.index("iota[0:8]"), "an empty head is no first tile"


@settings(max_examples=12, deadline=None)
@given(st.integers(62, 140), st.sampled_from([8, 16, 32]), st.booleans(), st.randoms())
def test_the_meaning_stays(extent: int, tile: int, ahead: bool, rng):
    """All heads, ends and remainders; masked elements and infinities are in the rows."""
    if (extent - 14) // tile < 2 or extent % 8 == 0:
        return
    program = read(declared(extent), kernel(extent, tile))
    found = apply(align_row_loops, program).program
    assert found is not program
    if ahead:
        before, found = found, apply(load_row_tiles_ahead, found).program
        assert (found is not before) == ((extent - 14) // tile >= 3)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    x = numbers.standard_normal((ROWS, extent))
    x[1, : extent // 2], x[2, -5:] = -np.inf, -np.inf
    with np.errstate(all="ignore"):
        for one, other in zip(run(program, x), run(found, x), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-12)


# A store to the other output, before the result.
LAST = "z[i, 0:8] = x[i, 0:8]\n        y[i]"


def counting(extent: int, tile: int, place: str = "", before: str = "", scaled: str = "", last: str = "") -> str:
    """A mean and a sum of squared deviations from it, which count the elements seen."""
    at = f"j0*{tile}:j0*{tile}+{tile}"
    inside = f"iota[{at}] < {extent}"
    seen = last or f"min({extent}, j0*{tile}+{tile})"
    before = before or f"j0*{tile}"
    x = f"float32(x[i, {at}]){place}"
    step = f"n[i] - s[i] * ({extent}.0 / float32(index(max({before}, 1)))) / {extent}.0"
    return f"""
    kernel p  grid (i: {ROWS})
        s[i] = 0.0
        m[i] = 0.0
        d[i] = 0.0
        for j0 in range({-(-extent // tile)}):
            b[i] = reduce(sum, where({inside}, {x}, 0.0), dim=0)
            a[i] = s[i] + b[i]{scaled}
            n[i] = a[i] * ({extent}.0 / float32(index({seen}))) / {extent}.0
            r[i] = {step}
            q[i] = reduce(sum, where({inside}, ({x} - n[i]) * ({x} - n[i]), 0.0), dim=0)
            e[i] = reduce(sum, where({inside}, {x} - n[i], 0.0), dim=0)
            m[i] = m[i] - 2.0 * r[i] * d[i] + r[i] * r[i] * float32(index({before})) + q[i]
            d[i] = d[i] - r[i] * float32(index({before})) + e[i]
            s[i] = a[i]
        y[i] = m[i] + s[i]
    """


def declared_sums(extent: int) -> str:
    sums = "\n".join(f"  chip    {name}  float32[i: {ROWS}]" for name in "abdeqr")
    return f"{declared(extent)}{sums}\n"


def sums(program: Program, x: np.ndarray) -> np.ndarray:
    return interpret(program, {"x": x, "w": np.ones(x.shape[1])}, dtype="float64")["y"]


@pytest.mark.nightly
@settings(max_examples=30, deadline=None)
@given(st.integers(62, 140), st.sampled_from([8, 16, 32]), st.integers(0, 1 << 30))
def test_elements_are_counted_in_the_order_of_the_tiles(extent: int, tile: int, seed: int):
    """All heads, ends and remainders; the mean is far from 0, so a wrong count shows."""
    if (extent - 14) // tile < 2 or extent % 8 == 0:
        return
    program = read(declared_sums(extent), counting(extent, tile).replace("y[i]", LAST))
    found = apply(align_row_loops, program).program
    assert found is not program
    x = np.random.default_rng(seed).standard_normal((ROWS, extent)) + 30
    expected = ((x - x.mean(1, keepdims=True)) ** 2).sum(1) + x.sum(1)
    np.testing.assert_allclose(sums(program, x), expected, rtol=1e-10)
    np.testing.assert_allclose(sums(found, x), expected, rtol=1e-10)


def test_counts_follow_the_head_and_the_end():
    made = " ".join(after(align_row_loops, declared_sums(67), counting(67, 16).replace("y[i]", LAST)).split())
    behind = "67-(67-i*5%8)%8-i*5%8"
    assert "float32(index(j0*16+16))" in made
    assert f"float32(index(min(64, {behind})))" in made, "up to the end of the last tile"
    assert f"float32(index(max(min(64, {behind}), 1)))" in made, "before the head"
    assert "float32(index(67-(67-i*5%8)%8))" in made, "before the end"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(counting(67, 16, place=" + float32(index(j0*16))"), id="the place of a tile's elements"),
        pytest.param(counting(67, 16, scaled=" * float32(index(j0*16))"), id="a factor of what a tile gave"),
        pytest.param(counting(67, 16, before="j0*8"), id="half of the number"),
        pytest.param(counting(67, 16, before="j0*16+1"), id="one more"),
        pytest.param(counting(67, 16, last="j0*16+16"), id="elements past the end"),
        pytest.param(counting(67, 16, last="min(66, j0*16+16)"), id="another extent"),
    ],
)
def test_other_numbers_are_no_counts(text: str):
    program = read(declared_sums(67), text.replace("y[i]", LAST))
    assert apply(align_row_loops, program).program is program


def test_places_of_blocks_that_a_row_divides_into_are_no_counts():
    """Rows of 64 elements that are 67 apart: a definition may have such blocks, and compute with their places."""
    text = counting(64, 16).replace("y[i]", LAST)
    program = read(declared_sums(64), text)
    apart = replace(
        program, tensors=tuple(replace(t, strides=(67, 1)) if t.name == "x" else t for t in program.tensors)
    )
    assert apply(align_row_loops, apart).program is apart


AT = "j0*16:j0*16+16"


@pytest.mark.parametrize(
    ("extent", "text", "left"),
    [
        pytest.param(64, kernel(64, 16), (0, 1), id="rows begin at multiples of 16 bytes"),
        pytest.param(67, kernel(67, 16, second=f"w[{AT}]"), (1,), id="a vector along the rows"),
        pytest.param(67, kernel(67, 16, f"float32(index(j0*16)) + float32(x[i, {AT}])"), (0,), id="a tile's place"),
        pytest.param(67, kernel(67, 16, "float32(x[i, j0*16+1:j0*16+1+16])"), (0,), id="another tile"),
        pytest.param(67, kernel(67, 16, f"gather(w, iota[{AT}])"), (0,), id="element by element"),
        pytest.param(41, kernel(41, 16), (0, 1), id="too few tiles"),
    ],
)
def test_loops_that_are_left_as_they_are(extent: int, text: str, left: tuple[int, ...]):
    program = read(declared(extent), text)
    (before,), (found,) = program.kernels, apply(align_row_loops, program).program.kernels
    loops = [stmt for stmt in before.body if isinstance(stmt, For)]
    assert [n for n, loop in enumerate(loops) if loop in found.body] == list(left)


def test_a_tile_is_loaded_while_the_one_before_it_is_reduced():
    text = """
    kernel p  grid (i: 9)
        s[i] = 0.0
        for j0 in range(4):
            s[i] = s[i] + reduce(sum, float32(x[i, j0*16:j0*16+16]), dim=0)
        z[i, 0:64] = x[i, 0:64]
        y[i] = s[i]
    """
    made = after(load_row_tiles_ahead, declared(64), text)
    assert (
        made
        == """
+ chip x_ahead float16[j: 16]
+ chip x_now float16[j: 16]
kernel p  grid (i: 9)
    s[i] = 0.0
    x_ahead[0:16] = x[i, 0:16]  @s=for:j0@s.x_ahead
    for j0 in range(4):
        x_now[0:16] = x_ahead[0:16]  @s=for:j0@s.x_now
        x_ahead[0:16] = x[i, min(j0+1, 3)*16:min(j0+1, 3)*16+16]  @s=for:j0@s.x_ahead/next
        s[i] = s[i] + reduce(sum, float32(x_now[0:16]), dim=0)
    z[i, 0:64] = x[i, 0:64]
    y[i] = s[i]
"""
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            "s[i] = s[i] + reduce(sum, float32(x[i, j0*16:j0*16+16]) * w[j0*16:j0*16+16], dim=0)", id="two tiles"
        ),
        pytest.param("z[i, j0*16:j0*16+16] = x[i, j0*16:j0*16+16]", id="it stores"),
        pytest.param("t[i, j0*16:j0*16+16] = float32(x[i, j0*16:j0*16+16])", id="it reduces nothing"),
    ],
)
def test_other_loops_do_not_load_ahead(body: str):
    text = f"""
    kernel p  grid (i: 9)
        s[i] = 0.0
        for j0 in range(4):
            {body}
        z[i, 0:64] = x[i, 0:64]
        y[i] = s[i]
    """
    program = read(declared(64), text)
    assert apply(load_row_tiles_ahead, program).program is program
