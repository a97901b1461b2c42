"""The last pass over a row goes backwards, where that changes no number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_texts import after, read

import neptune_lab as nl
from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import For, Program
from neptune_lab.htile_passes import apply, reread_backwards
from neptune_lab.htile_passes.align_row_loops import align_row_loops
from neptune_lab.htile_passes.load_row_tiles_ahead import load_row_tiles_ahead
from neptune_lab.operators import find

PASS = reread_backwards.reread_backwards
AT = "j0*16:j0*16+16"


def declared(extent: int, rows: int = 9) -> str:
    return f"""
program p(x, w) -> y, z
  input   x  float16[i: {rows}, j: {extent}]
  input   w  float32[j: {extent}]
  output  y  float32[i: {rows}]
  output  z  float16[i: {rows}, j: {extent}]
  chip    s  float32[i: {rows}]
  chip    t  float32[i: {rows}, j: {extent}]
"""


def kernel(count: int, second: str, first: str = f"x[i, {AT}]", rows: int = 9) -> str:
    """A sum, then a second pass over the row."""
    return f"""
    kernel p  grid (i: {rows})
        s[i] = 0.0
        for j0 in range({count}):
            s[i] = s[i] + reduce(sum, float32({first}), dim=0)
        y[i] = s[i]
        for j0 in range({count}):
            {second}
    """


LAST = "\n        z[i, 0:64] = x[i, 0:64]"
SECOND = f"z[i, {AT}] = float16(float32(x[i, {AT}]) * w[{AT}] / s[i])"


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reread_backwards, "MANY_BYTES", 0)


def orders(program: Program) -> list[bool]:
    """Whether each loop is as it was read."""
    return [
        loop in program.kernels[0].body
        for loop in apply(PASS, program).program.kernels[0].body
        if isinstance(loop, For)
    ]


@pytest.mark.usefixtures("any_size")
def test_the_second_pass_goes_backwards():
    assert (
        after(PASS, declared(64), kernel(4, SECOND))
        == """
kernel p  grid (i: 9)
    s[i] = 0.0
    for j0 in range(4):
        s[i] = s[i] + reduce(sum, float32(x[i, j0*16:j0*16+16]), dim=0)
    y[i] = s[i]
    for j0 in range(4):
        z[i, (3-j0)*16:(3-j0)*16+16] = float16(
            float32(x[i, (3-j0)*16:(3-j0)*16+16]) * w[(3-j0)*16:(3-j0)*16+16] / s[i],
        )
"""
    )


def test_a_tensor_that_a_cache_holds_is_read_as_before():
    held, dropped = ((1 << 25) // 1024 - 1, (1 << 25) // 1024)
    assert orders(read(declared(1024, held), kernel(64, SECOND, rows=held))) == [True, True]
    assert orders(read(declared(1024, dropped), kernel(64, SECOND, rows=dropped))) == [True, False]


@pytest.mark.parametrize(
    ("second", "first"),
    [
        pytest.param(f"z[i, {AT}] = x[i, {AT}]", "w[j0*16:j0*16+16]", id="nothing is read again"),
        pytest.param(f"s[i] = s[i] * 0.5 + reduce(sum, float32(x[i, {AT}]), dim=0){LAST}", f"x[i, {AT}]", id="a sum"),
        pytest.param(f"t[i, {AT}] = float32(x[i, {AT}]){LAST}", f"x[i, {AT}]", id="a tile on chip"),
        pytest.param(f"z[i, 0:16] = x[i, {AT}]", f"x[i, {AT}]", id="every iteration stores to the same elements"),
        pytest.param(f"z[i, j0*8:j0*8+16] = x[i, {AT}]", f"x[i, {AT}]", id="stores that overlap"),
        pytest.param(
            f"z[i, {AT}] = float16(z[i, j0*16//2:j0*16//2+16]) + x[i, {AT}]",
            f"x[i, {AT}]",
            id="it reads what it stores",
        ),
        pytest.param(
            f"z[i, {AT}] = x[i, {AT}]\n            z[i, 0:16] = x[i, {AT}]", f"x[i, {AT}]", id="two stores to a tensor"
        ),
    ],
)
@pytest.mark.usefixtures("any_size")
def test_loops_whose_order_matters_keep_it(second: str, first: str):
    program = read(declared(64), kernel(4, second, first))
    assert apply(PASS, program).program is program


def run(program: Program, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, ...]:
    found = interpret(program, {"x": x, "w": w}, dtype="float64")
    return tuple(found[name] for name in ("y", "z"))


@settings(max_examples=20, deadline=None)
@given(st.integers(62, 140), st.sampled_from([8, 16, 32]), st.booleans(), st.integers(0, 1 << 30))
def test_the_meaning_stays(extent: int, tile: int, aligned: bool, seed: int):
    """Bit by bit, for all remainders, with and without the passes before."""
    at, count = f"j0*{tile}:j0*{tile}+{tile}", extent // tile
    second = f"z[i, {at}] = float16(float32(x[i, {at}]) / s[i])"
    tail = f"{count * tile}:{extent}"
    text = kernel(count, second, f"x[i, {at}]") + f"    z[i, {tail}] = x[i, {tail}]\n" * (count * tile < extent)
    program = read(declared(extent), text)
    if aligned:
        program = apply(load_row_tiles_ahead, apply(align_row_loops, program).program).program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reread_backwards, "MANY_BYTES", 0)
        found = apply(PASS, program).program
    assert (found is not program) == (count > 1 or any(isinstance(s, For) for s in program.kernels[0].body))
    numbers = np.random.default_rng(seed)
    x, w = numbers.standard_normal((9, extent)), numbers.standard_normal(extent)
    for one, other in zip(run(program, x, w), run(found, x, w), strict=True):
        np.testing.assert_array_equal(other, one)


@pytest.mark.usefixtures("any_size")
def test_a_softmax_that_is_compiled_writes_its_rows_from_the_end():
    """The validation of the compile runs what is emitted, and compares it with the definition."""
    op, config = find("rows.softmax")(rows=3, cols=203, dtype="float32"), nl.TileConfig(block_q=1, block_kv=64)
    kernel = nl.compile(op, config=config, validate="quick")
    assert "x_row + (j0 * -64 + 128 + tl.arange(0, 64))" in kernel.source
    assert "out_row + (j0 * -64 + 128 + tl.arange(0, 64))" in kernel.source
    x = np.random.default_rng(0).standard_normal((3, 203)).astype(np.float32)
    weights = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(kernel(torch.from_numpy(x)).numpy(), weights / weights.sum(1, keepdims=True), rtol=1e-5)
