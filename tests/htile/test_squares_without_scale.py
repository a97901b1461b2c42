"""A norm's squares are summed without its scale, and with it where they leave the range of float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_texts import after, read

import neptune_lab as nl
from neptune_lab.errors import TileError
from neptune_lab.htile import interpret, verify
from neptune_lab.htile.nodes import For, Int, Program
from neptune_lab.htile_passes import apply, unroll_single_iterations
from neptune_lab.htile_passes import squares_without_scale as module
from neptune_lab.htile_passes.align_row_loops import align_row_loops
from neptune_lab.htile_passes.cut_long_rows import cut_long_rows
from neptune_lab.htile_passes.load_row_tiles_ahead import load_row_tiles_ahead
from neptune_lab.operators import norms

ROWS = 9


def declared(extent: int, dtype: str = "float32") -> str:
    return f"""
program p(x, w) -> y
  input   x  {dtype}[i: {ROWS}, j: {extent}]
  input   w  float32[j: {extent}]
  output  y  float32[i: {ROWS}]
  chip    m  float32[i: {ROWS}]
  chip    n  float32[i: {ROWS}]
  chip    r  float32[i: {ROWS}]
  chip    s  float32[i: {ROWS}]
"""


def whole(
    extent: int,
    square: str = "float32(x[i, 0:9]) / m[i] * (float32(x[i, 0:9]) / m[i])",
    result: str = "where(m[i] == 0.0, 0.0, m[i] * sqrt(s[i]))",
    most: str = "abs(float32(x[i, 0:9]))",
) -> str:
    """A norm whose row is one tile."""
    return f"""
    kernel p  grid (i: {ROWS})
        m[i] = reduce(max, {most}, dim=0)
        s[i] = reduce(sum, {square}, dim=0)
        y[i] = {result}
    """.replace("0:9", f"0:{extent}")


def rolling(extent: int, tile: int, repair: str = "r[i] * r[i] * s[i]", old: str = "m[i]") -> str:
    """A norm that rolls along tiles."""
    at = f"j0*{tile}:j0*{tile}+{tile}"
    inside = f"iota[{at}] < {extent}"
    x = f"float32(x[i, {at}])"
    return f"""
    kernel p  grid (i: {ROWS})
        m[i] = -inf
        s[i] = 0.0
        for j0 in range({-(-extent // tile)}):
            n[i] = max(m[i], reduce(max, where({inside}, abs({x}), -inf), dim=0))
            n[i] = where(n[i] == 0.0, 1.0, n[i])
            r[i] = where({old} == -inf, n[i], {old}) / n[i]
            s[i] = {repair} + reduce(sum, where({inside}, {x} / n[i] * ({x} / n[i]), 0.0), dim=0)
            m[i] = n[i]
        y[i] = where(m[i] == 0.0, 0.0, m[i] * sqrt(s[i]))
    """


def test_squares_are_summed_without_the_scale_and_again_with_it():
    assert (
        after(module.squares_without_scale, declared(9), whole(9).replace("float32(x[i, 0:9])", "x[i, 0:9]"))
        == """
+ chip s_plain float32[9]
+ chip kept float32[]
+ chip fits int32[]
+ chip once int32[]
kernel p  grid (i: 9)
    s_plain[i] = reduce(sum, x[i, 0:9] * x[i, 0:9], dim=0)  @s/plain
    kept[] = sqrt(s_plain[i])  @y/plain
    fits[] = int32(s_plain[i] >= 1.7749370367472766e-30 and s_plain[i] < inf)  @y/fits
    once[] = 1  @y/once
    for again in range(1) within fits[], once[]:  @y=tile:y/again
        m[i] = reduce(max, abs(x[i, 0:9]), dim=0)
        s[i] = reduce(sum, x[i, 0:9] / m[i] * (x[i, 0:9] / m[i]), dim=0)
        kept[] = where(m[i] == 0.0, 0.0, m[i] * sqrt(s[i]))  @y
    y[i] = kept[]  @y/kept
"""
    )


def rows_of_every_kind(extent: int, seed: int) -> np.ndarray:
    """Usual rows, and those whose squares leave the range of float32 on either side, or hardly do."""
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal((ROWS, extent))
    x[1:6] *= np.array([1e-30, 1e-14, 1e-24, 1e25, 3e18])[:, None]
    x[3, 0], x[6], x[7, extent // 2], x[8, -1] = 1e-13, 0.0, np.inf, np.nan
    return x.astype(np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    """The definition in float32, which divides by the largest element."""
    most = np.abs(x).max(1, keepdims=True)
    with np.errstate(all="ignore"):
        return np.where(most == 0, 0, np.linalg.norm((x / most).astype(np.float64), axis=1, keepdims=True) * most)[:, 0]


@pytest.mark.nightly
@settings(max_examples=30, deadline=None)
@given(
    st.integers(40, 140),
    st.sampled_from([0, 8, 16, 32]),
    st.sampled_from([16, 32, 1024]),
    st.booleans(),
    st.integers(0, 1 << 30),
)
def test_the_meaning_stays(extent: int, tile: int, part: int, aligned: bool, seed: int):
    """In float32, where squares are lost or infinite without the scale: of one tile, of pieces, and along tiles."""
    program = read(declared(extent), rolling(extent, tile) if tile else whole(extent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TILE", part)
        found = apply(module.squares_without_scale, program).program
    assert found is not program
    verify(found)
    for rewrite in (align_row_loops, cut_long_rows, load_row_tiles_ahead) if aligned else ():
        found = apply(rewrite, found).program
        verify(found)
    x = rows_of_every_kind(extent, seed)
    with np.errstate(all="ignore"):
        result = interpret(found, {"x": x, "w": x[0]})["y"]
    np.testing.assert_allclose(result, expected(x), rtol=3e-6)


def loops(program: Program) -> list[For]:
    return [stmt for stmt in program.kernels[0].body if isinstance(stmt, For)]


SQUARE = "float32(x[i, 0:9]) / m[i] * (float32(x[i, 0:9]) / m[i])"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(whole(9, result="m[i] * m[i] * sqrt(s[i])"), id="another power of the scale"),
        pytest.param(whole(9, result="m[i] * sqrt(s[i]) + w[0]"), id="more than the root"),
        pytest.param(whole(9, result="m[i] * sqrt(s[i] + 1.0)"), id="a sum that the scale does not divide"),
        pytest.param(whole(9, result="m[i] * exp(s[i])"), id="another function"),
        pytest.param(whole(9, square="float32(x[i, 0:9]) / m[i] * (w[0:9] / m[i])"), id="no squares"),
        pytest.param(whole(9, square="0.0 - " + SQUARE), id="squares below 0"),
        pytest.param(whole(9, square=f"where(m[i] < 1.0, {SQUARE}, 0.0)"), id="squares that depend on the scale"),
        pytest.param(whole(9, most="float32(x[i, 0:9])"), id="a scale that may be below 0"),
        pytest.param(whole(9, most="abs(float32(x[i, 0:9])) * w[0:9]"), id="no maximum of magnitudes"),
        pytest.param(rolling(67, 16, "r[i] * s[i]"), id="a wrong repair"),
        pytest.param(rolling(67, 16, "s[i]"), id="no repair"),
        pytest.param(rolling(67, 16, old="n[i]"), id="a repair between other tags"),
        pytest.param(whole(9).replace("y[i] =", "y[i] = m[i]\n        y[i] ="), id="two results"),
    ],
)
def test_kernels_that_stay(text: str):
    program = read(declared(67 if "67" in text else 9), text)
    assert apply(module.squares_without_scale, program).program is program


def test_a_loop_variable_of_that_name_stays():
    text = rolling(67, 16).replace("j0", "again")
    program = read(declared(67), text)
    assert [loop.var for loop in loops(apply(module.squares_without_scale, program).program)] == ["again", "again_2"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("cols", "tile", "dtype"),
    [(203, 64, "float32"), (203, 256, "bfloat16"), (1100, None, "float16"), (1100, None, "bfloat16")],
)
def test_a_norm_that_is_compiled(cols: int, tile: int | None, dtype: str):
    config = nl.TileConfig(block_q=1, block_kv=tile) if tile else nl.TileConfig(block_q=1, block_kv=cols)
    kernel = nl.compile(norms.l2_norm(rows=ROWS, cols=cols, dtype=dtype), config=config, validate="quick")
    assert "    if (fits <= 0) & (once > 0):\n" in kernel.source
    x = torch.from_numpy(rows_of_every_kind(cols, 0)).to(getattr(torch, dtype))
    result = kernel(x).numpy()
    np.testing.assert_allclose(result, expected(x.float().numpy()), rtol=1e-5)


def test_what_is_seldom_computed_is_a_loop_that_stays():
    """It reads its elements again, so that they take no registers before."""
    program = apply(module.squares_without_scale, read(declared(1100), whole(1100))).program
    (again,) = loops(program)
    assert [(loop.var, loop.stop) for loop in again.body if isinstance(loop, For)] == [("part", Int(2))] * 2
    assert apply(unroll_single_iterations.unroll_single_iterations, program).program is program


@pytest.mark.nightly
def test_its_bytes_are_not_counted():
    """The rows are read once."""
    kernel = nl.compile(norms.l2_norm(rows=64, cols=4000, dtype="float16"), validate="none")
    assert "(fits <= 0)" in kernel.source
    loaded = {tensor.name: tensor.loaded for tensor in kernel.traffic("h200").kernel.tensors}
    assert loaded["x"] == 64 * 4000 * 2


def test_a_bound_on_chip_is_stored_before_its_loop():
    text = """
    kernel p  grid (i: 9)
        s[i] = 0.0
        for again in range(1) within k[], k[]:
            s[i] = 1.0
        y[i] = s[i]
    """
    stated = declared(9) + "  chip    k  int32[]\n"
    assert read(stated, text.replace("s[i] = 0.0", "s[i] = 0.0\n        k[] = 1"))
    with pytest.raises(TileError, match=r"on-chip tile k\[\] is read before any store to it"):
        read(stated, text)
