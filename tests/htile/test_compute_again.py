"""Rows whose float32 values do not fit in registers are computed again from what was loaded."""

from __future__ import annotations

import numpy as np
import pytest
from pass_texts import after, read

from neptune_lab.htile import interpret
from neptune_lab.htile_passes import apply, compute_again

PASS = compute_again.compute_again
DECLARED = """
program p(x, g, m) -> y
  input   x  float16[i: 4, j: 64]
  input   g  float16[i: 4, j: 64]
  input   m  float32[i: 4]
  output  y  float32[i: 4, j: 64]
  chip    w  float32[i: 4, j: 64]
  chip    n  float32[i: 4]
  chip    s  float32[i: 4]
"""
WEIGHTS = "exp(float32(x[i, 0:64]) - {})"
SUM = "s[i] = reduce(sum, float32(g[i, 0:64]) * w[i, 0:64], dim=0)"
OUT = "y[i, 0:64] = (float32(g[i, 0:64]) - s[i]) * w[i, 0:64]"


def kernel(*body: str) -> str:
    return "\nkernel p  grid (i: 4)  num_warps=1\n    " + "\n    ".join(body) + "\n"


@pytest.fixture
def few_registers(monkeypatch):
    monkeypatch.setattr(compute_again, "BESIDE", compute_again.MOST_OF_THREAD)


def test_what_fits_stays():
    program = read(DECLARED, kernel(f"w[i, 0:64] = {WEIGHTS.format('m[i]')}", SUM, OUT))
    assert apply(PASS, program).program is program


@pytest.mark.usefixtures("few_registers")
def test_a_row_is_computed_again():
    found = after(PASS, DECLARED, kernel(f"w[i, 0:64] = {WEIGHTS.format('m[i]')}", SUM, OUT))
    assert "g_again[0:64] = again(g[i, 0:64])" in found
    assert "w[i, 0:64] = exp(float32(x_again[0:64]) - m[i])" in found
    assert "y[i, 0:64] = (float32(g_again[0:64]) - s[i]) * w[i, 0:64]" in found


@pytest.mark.usefixtures("few_registers")
def test_an_expression_of_two_statements_is_computed_again():
    """Triton would compute it once."""
    body = (text.replace("w[i, 0:64]", WEIGHTS.format("m[i]")) for text in (SUM, OUT))
    found = after(PASS, DECLARED, kernel(*body))
    assert "y[i, 0:64] = (float32(g_again[0:64]) - s[i]) * exp(float32(x_again[0:64]) - m[i])" in found


@pytest.mark.usefixtures("few_registers")
@pytest.mark.parametrize("between", ["", "n[i] = n[i] + 1.0", "w[i, 0:64] = w[i, 0:64] + 1.0"])
def test_the_meaning_stays(between):
    start = ("n[i] = m[i]", f"w[i, 0:64] = {WEIGHTS.format('n[i]')}", *([between] if between else []))
    program = read(DECLARED, kernel(*start, SUM, OUT))
    made = apply(PASS, program).program
    assert (made is program) == bool(between)
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(shape) for name, shape in (("x", (4, 64)), ("g", (4, 64)), ("m", (4,)))}
    want, found = (interpret(p, given, dtype="float64")["y"] for p in (program, made))
    np.testing.assert_array_equal(found, want)
