"""Sums of columns in a loop are sums of tiles, reduced once after the loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_texts import after, read

import neptune_lab as nl
from neptune_lab.htile import interpret
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.add_tiles_before_reducing import add_tiles_before_reducing
from neptune_lab.operators import backward, norms

DECLARED = """
program p(x, v) -> y
  input   x  float32[i: 32, j: 8]
  input   v  float32[j: 8]
  output  y  float32[j: 8]
  chip    s  float32[j: 8]
  chip    r  float32[j: 8]
"""
TILE = "x[i0*8:i0*8+8:i, 0:8]"


def kernel(*body: str, start: str = "s[0:8] = v[0:8]", warps: int = 1) -> str:
    lines = [start, "for i0 in range(4):", *(f"    {line}" for line in body), "y[0:8] = s[0:8]"]
    return f"\nkernel p  grid ()  num_warps={warps}\n    " + "\n    ".join(lines) + "\n"


def test_tiles_are_added_and_reduced_once():
    assert (
        after(add_tiles_before_reducing, DECLARED, kernel(f"s[0:8] = s[0:8] + reduce(sum, {TILE}, dim=0)"))
        == """
+ chip s_tile float32[t0: 8, t1: 8]
kernel p  grid ()  num_warps=1
    s[0:8] = v[0:8]
    s_tile[0:8, 0:8] = 0.0  @s=tile:s#2.s_tile/start
    for i0 in range(4):
        s_tile[0:8, 0:8] = s_tile[0:8, 0:8] + x[i0*8:i0*8+8, 0:8]  @s=tile:s#2.s_tile
    s[0:8] = s[0:8] + reduce(sum, s_tile[0:8, 0:8], dim=0)
    y[0:8] = s[0:8]
"""
    )


def test_a_reduction_with_a_statement_of_its_own_is_added_where_it_was():
    """What it reads changes before the sum."""
    declared = f"{DECLARED}  chip t float32[i: 8, j: 8]\n"
    body = (f"t[0:8, 0:8] = {TILE}", "r[0:8] = reduce(sum, t[0:8, 0:8], dim=0)", "t[0:8, 0:8] = 0.0")
    text = kernel(*body, "s[0:8] = r[0:8] + s[0:8]")
    found = after(add_tiles_before_reducing, declared, text)
    assert "r[0:8]" not in found
    lines = found.splitlines()
    assert [n for n, line in enumerate(lines) if "s_tile[0:8, 0:8] + t[0:8, 0:8]" in line] == [
        next(n for n, line in enumerate(lines) if "t[0:8, 0:8] = 0.0" in line) - 1
    ]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((f"s[0:8] = s[0:8] + reduce(sum, {TILE} * s[NewAxis, 0:8], dim=0)",), id="it reads the sum"),
        pytest.param(
            (f"s[0:8] = s[0:8] + reduce(sum, {TILE}, dim=0)", "y[0:8] = s[0:8]"), id="another statement reads it"
        ),
        pytest.param((f"s[0:8] = s[0:8] + reduce(sum, {TILE}, dim=0)", "s[0:8] = s[0:8] * 0.5"), id="it is scaled"),
        pytest.param((f"s[0:8] = s[0:8] * 0.5 + reduce(sum, {TILE}, dim=0)",), id="it is scaled as it is read"),
        pytest.param((f"s[0:8] = max(s[0:8], reduce(max, {TILE}, dim=0))",), id="no sum"),
        pytest.param((f"s[0:8] = s[0:8] + reduce(max, {TILE}, dim=0)",), id="sums of maxima"),
        pytest.param(
            (f"r[0:8] = reduce(sum, {TILE}, dim=0)", "s[0:8] = s[0:8] + r[0:8]", "y[0:8] = r[0:8]"),
            id="another statement reads the reduction",
        ),
        pytest.param(
            (f"r[0:8] = reduce(sum, {TILE}, dim=0)", "r[0:8] = r[0:8] * 2.0", "s[0:8] = s[0:8] + r[0:8]"),
            id="the reduction changes",
        ),
    ],
)
def test_left_as_it_is(body: tuple[str, ...]):
    assert after(add_tiles_before_reducing, DECLARED, kernel(*body)) == "unchanged"


@pytest.mark.parametrize(
    ("rows", "columns", "warps", "apart"),
    [
        (64, 64, 4, True),
        (64, 64, 1, False),
        (16, 256, 4, False),
        (256, 16, 4, True),
        (128, 1, 4, False),
    ],
)
def test_tiles_fit_registers_and_lanes_share_what_is_reduced(rows: int, columns: int, warps: int, apart: bool):
    """One result is a row's, which loads its next tile ahead; as many results as lanes are reduced without a wait."""
    declared = f"""
program p(x, v) -> y
  input   x  float32[i: {4 * rows}, j: {columns}]
  input   v  float32[j: {columns}]
  output  y  float32[j: {columns}]
  chip    s  float32[j: {columns}]
"""
    tile = f"x[i0*{rows}:i0*{rows}+{rows}:i, 0:{columns}]"
    text = kernel(f"s[0:8] = s[0:8] + reduce(sum, {tile}, dim=0)", warps=warps).replace("0:8]", f"0:{columns}]")
    assert (after(add_tiles_before_reducing, declared, text) != "unchanged") == apart


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(2, 12), st.integers(2, 12), st.sampled_from([0, 1]), st.booleans(), st.randoms())
def test_the_meaning_stays(rows: int, tile: int, columns: int, dim: int, apart: bool, rng):
    """Two sums in one loop, of tiles that may reach past the end, along either dimension."""
    own = (rows, columns) if dim == 0 else (columns, rows)
    at = f"i0*{tile}:i0*{tile}+{tile}:r"
    index = f"{at}, 0:{columns}:c" if dim == 0 else f"0:{columns}:c, {at}"
    iota = f"iota[{at}, NewAxis]" if dim == 0 else f"iota[NewAxis, {at}]"
    declared = f"""
program p(x) -> y, z
  input   x  float32[a: {own[0]}, b: {own[1]}]
  output  y  float32[c: {columns}]
  output  z  float32[c: {columns}]
  chip    s  float32[c: {columns}]
  chip    q  float32[c: {columns}]
  chip    r  float32[c: {columns}]
"""
    c = f"[0:{columns}:c]"
    term = f"where({iota} < {rows}, x[{index}] + 1.0, 0.0)"
    more = [f"r{c} = reduce(sum, {term} * 2.0, dim={dim})", f"q{c} = r{c} + q{c}"]
    lines = [
        f"s{c} = 1.0",
        f"q{c} = 2.0",
        f"for i0 in range({-(-rows // tile)}):",
        f"    s{c} = s{c} + reduce(sum, {term}, dim={dim})",
        *(f"    {line}" for line in (more if apart else [f"q{c} = q{c} + reduce(sum, {term} * 2.0, dim={dim})"])),
        f"y{c} = s{c}",
        f"z{c} = q{c}",
    ]
    program = read(declared, "\nkernel p  grid ()\n    " + "\n    ".join(lines) + "\n")
    found = apply(add_tiles_before_reducing, program).program
    assert found is not program
    x = np.random.default_rng(rng.randrange(1 << 30)).integers(-9, 9, own)
    one, other = (interpret(p, {"x": x}, dtype="float64") for p in (program, found))
    wanted = 1.0 + (x + 1.0).sum(dim)
    for name, factor in (("y", 1), ("z", 2)):
        np.testing.assert_allclose(one[name], wanted * factor, rtol=1e-12)
        np.testing.assert_allclose(other[name], wanted * factor, rtol=1e-12)


@pytest.mark.parametrize(("rows", "columns", "tile"), [(150, 37, 48), (130, 9, 64)])
def test_lanes_without_an_element_add_nothing(rows: int, columns: int, tile: int):
    """Tiles of other sizes than powers of two, and with columns and rows past the end, as Triton computes them."""
    op = backward(norms.layer_norm(rows, columns), wrt=["gamma", "beta"])
    kernel = nl.compile(op, "rolling_update", config=nl.TileConfig(block_q=16, block_kv=tile))
    assert "_tile = tl.full([" in kernel.source
    assert kernel.relative_error() < 1e-6
