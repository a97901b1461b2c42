"""Vectors of a row are read before the first reduction: what moves, what stays, and that the meaning stays."""

from __future__ import annotations

import numpy as np
import pytest
from pass_texts import after, read

import neptune_lab as nl
from neptune_lab.htile import interpret
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.read_vectors_first import MOST_PER_LANE, MOST_PROGRAMS, read_vectors_first

DECLARED = """
program p(x, v, w) -> y
  input   x  float32[i: 4, j: 8]
  input   v  float32[j: 8]
  input   w  float32[j: 8]
  output  y  float32[i: 4, j: 8]
  global  z  float32[j: 8]
  chip    s  float32[i: 4]
"""
SUM = "s[i] = reduce(sum, x[i, 0:8], dim=0)"


def kernel(*body: str, grid: str = "i: 4") -> str:
    return f"\nkernel p  grid ({grid})\n    " + "\n    ".join(body) + "\n"


def test_pieces_of_vectors_are_read_first():
    found = after(
        read_vectors_first,
        DECLARED,
        kernel(SUM, "y[i, 0:4] = x[i, 0:4] * v[0:4] + s[i] * v[0:4]", "y[i, 4:8] = x[i, 4:8] * v[4:8] + w[4:8]"),
    )
    assert (
        found.replace("  ", "")
        == """
+ chip v_first float32[j: 4]
+ chip v_first_2 float32[j: 4]
+ chip w_first float32[j: 4]
kernel pgrid (i: 4)
v_first[0:4] = v[0:4]@s=kernel:p.v_first
v_first_2[0:4] = v[4:8]@s=kernel:p.v_first_2
w_first[0:4] = w[4:8]@s=kernel:p.w_first
s[i] = reduce(sum, x[i, 0:8], dim=0)
y[i, 0:4] = x[i, 0:4] * v_first[0:4] + s[i] * v_first[0:4]
y[i, 4:8] = x[i, 4:8] * v_first_2[0:4] + w_first[0:4]
"""
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((SUM, "y[i, 0:8] = x[i, 0:8] * s[i]"), id="no vector"),
        pytest.param(("s[i] = reduce(sum, v[0:8], dim=0)", "y[i, 0:8] = v[0:8] * s[i]"), id="what is reduced too"),
        pytest.param(("z[0:8] = w[0:8]", SUM, "y[i, 0:8] = s[i] + z[0:8]"), id="what the kernel stores"),
        pytest.param(("y[i, 0:8] = x[i, 0:8] * v[0:8]",), id="no reduction"),
        pytest.param((SUM, "y[i, 0:8] = x[0, 0:8] * s[i]"), id="a row"),
        pytest.param((SUM, "y[i, 0:2] = v[0:2] * s[i] + w[i*2:i*2+2]"), id="what waits for another tile"),
        pytest.param((SUM, "y[i, 0:2] = v[i*2:i*2+2] * s[i]"), id="a tile of a program"),
        pytest.param((SUM, "for j in range(2):", "    y[i, j*4:j*4+4] = v[j*4:j*4+4] * s[i]"), id="a loop"),
    ],
)
def test_what_stays(body: tuple[str, ...]):
    assert after(read_vectors_first, DECLARED, kernel(*body)) == "unchanged"


def test_many_programs_and_long_vectors_stay():
    many = DECLARED.replace("i: 4", f"i: {MOST_PROGRAMS + 1}")
    scaled = (SUM, "y[i, 0:8] = x[i, 0:8] * v[0:8]")
    assert after(read_vectors_first, many, kernel(*scaled, grid=f"i: {MOST_PROGRAMS + 1}")) == "unchanged"
    odd = many.replace("j: 8", "j: 9")
    assert (
        after(read_vectors_first, odd, kernel(*scaled, grid=f"i: {MOST_PROGRAMS + 1}").replace("0:8", "0:9"))
        != "unchanged"
    )
    wide = 128 * MOST_PER_LANE * 2
    long, text = DECLARED.replace("j: 8", f"j: {wide}"), kernel(*scaled).replace("0:8", f"0:{wide}")
    assert after(read_vectors_first, long, text) == "unchanged"


def test_the_meaning_stays():
    program = read(
        DECLARED, kernel(SUM, "y[i, 0:8] = x[i, 0:8] * v[0:8] + s[i]", "y[i, 0:4] = x[i, 0:4] * w[0:4] + v[0:4]")
    )
    made = apply(read_vectors_first, program).program
    assert made is not program
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((4, 8)), "v": rng.standard_normal(8), "w": rng.standard_normal(8)}
    want, found = (interpret(p, given, dtype="float64") for p in (program, made))
    np.testing.assert_array_equal(found["y"], want["y"])


def test_a_norm_of_few_rows_asks_for_its_vectors_before_it_waits():
    op = nl.operators.norms.layer_norm(rows=3, cols=777, dtype="float32")
    kernel = nl.compile(op, validate="none")
    assert kernel.source.index("tl.load(beta_ptr") < kernel.source.index("tl.sum(")
    assert kernel.relative_error() < 1e-5
