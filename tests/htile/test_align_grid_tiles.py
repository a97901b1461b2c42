"""Programs that each map a tile of a row begin where memory is aligned, and the first of a row makes its two edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_texts import after, read

import neptune_lab as nl
from neptune_lab.htile import interpret
from neptune_lab.htile_passes import align_grid_tiles as module
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.align_grid_tiles import align_grid_tiles
from neptune_lab.operators import backward

ROWS = 9  # every head of eight elements, and one again
AT = "j0*16:j0*16+16"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST", 20)


def declared(extent: int, out: str = "float16") -> str:
    return f"""
program p(x, w, t) -> y
  input   x  float16[i: {ROWS}, j: {extent}]
  input   w  float32[j: {extent}]
  input   t  float32[i: {ROWS}]
  output  y  {out}[i: {ROWS}, j: {extent}]
"""


def kernel(*lines: str, tiles: int = 5) -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f"""
    kernel p  grid (j0: {tiles}, i: {ROWS})
{body}
    """


MAP = f"y[i, {AT}] = float16(where(float32(iota[{AT}]) == t[i], t[i], 2.0 * float32(x[i, {AT}])))"


def test_tiles_begin_behind_the_head_and_the_first_program_makes_the_edges():
    made = " ".join(after(align_grid_tiles, declared(67), kernel(MAP)).split())
    head, end = "i*5%8", "67-(67-i*5%8)%8"
    assert f"y[i, {head}+j0*16:{head}+j0*16+16] = float16(" in made
    assert f"float32(iota[{head}+j0*16:{head}+j0*16+16]) == t[i]" in made
    assert "y[i, 0:8] = float16(" in made
    assert f"y[i, {end}:{end}+8] = float16(" in made
    assert f"iota[0:8] < index({head}*(1-min(j0, 1)))" in made


@pytest.mark.nightly
@settings(max_examples=40, deadline=None)
@given(st.integers(20, 140), st.sampled_from([8, 16, 32]), st.integers(0, 1 << 30))
def test_the_meaning_stays(extent: int, tile: int, seed: int):
    """All heads, ends and remainders."""
    at = f"j0*{tile}:j0*{tile}+{tile}"
    program = read(declared(extent), kernel(MAP.replace(AT, at), tiles=-(-extent // tile)))
    found = apply(align_grid_tiles, program).program
    assert (found is program) == (extent % 8 == 0)
    numbers = np.random.default_rng(seed)
    given_ = {
        "x": numbers.standard_normal((ROWS, extent)),
        "w": np.ones(extent),
        "t": numbers.integers(0, extent, ROWS).astype("float64"),
    }
    one, other = (interpret(each, given_, dtype="float64")["y"] for each in (program, found))
    assert np.isfinite(one).all()
    np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize(
    ("extent", "lines"),
    [
        pytest.param(64, (MAP,), id="rows begin at multiples of 16 bytes"),
        pytest.param(19, (MAP,), id="short rows"),
        pytest.param(67, (f"y[i, {AT}] = float16(float32(x[i, {AT}]) * w[{AT}])",), id="a vector along the rows"),
        pytest.param(67, (f"y[i, {AT}] = x[i, {AT}] * float16(index(j0))",), id="the number of the tile"),
        pytest.param(67, (f"y[i, {AT}] = float16(t[j0]) * x[i, {AT}]",), id="a number of the tile"),
        pytest.param(67, (f"y[i, {AT}] = x[i, j0*16+1:j0*16+1+16]",), id="elements at other positions"),
        pytest.param(
            67, (f"y[i, {AT}] = x[i, {AT}]", f"y[i, {AT}] = y[i, {AT}] * x[i, {AT}]"), id="a result read again"
        ),
        pytest.param(67, (f"y[i, {AT}] = x[i, {AT}] * float16(reduce(sum, float32(x[i, {AT}]), dim=0))",), id="a sum"),
    ],
)
def test_others_stay(extent: int, lines: tuple[str, ...]):
    assert after(align_grid_tiles, declared(extent), kernel(*lines)) == "unchanged"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shape", [(9, 4099), (3, 2, 4103)])
def test_every_element_of_a_kernel_is_right(shape: tuple[int, ...]):
    """As it is emitted: a load or store of whole blocks leaves the edges to their own statements."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3)).half()
    kernel = nl.compile(backward(nl.from_torch(lambda x: torch.logsumexp(x.float(), -1), x)), target="h200")
    assert "x_row + (" in kernel.triton.text
    assert kernel.relative_error() < 1e-3


def test_tensors_whose_rows_begin_elsewhere_stay():
    program = declared(67).replace("y  float16[i: 9, j: 67]", "y  float16[i: 9, j: 67] strides (72, 1)")
    assert after(align_grid_tiles, program, kernel(MAP)) == "unchanged"
