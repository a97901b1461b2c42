"""Rows that are computed again from what was loaded, in an emitted kernel."""

from __future__ import annotations

import numpy as np
import pytest

from neptune_lab.htile import from_text
from neptune_lab.htile_passes import apply, compute_again
from neptune_lab.htile_to_triton import emit

TEXT = """
program p(x, g, m) -> y
  input   x  {0}[i: 3, j: 200]
  input   g  {0}[i: 3, j: 200]
  input   m  float32[i: 3]
  output  y  float32[i: 3, j: 200]
  chip    s  float32[i: 3]

kernel p  grid (i: 3)  num_warps=1
    s[i] = reduce(sum, float32(g[i, 0:200]) * exp2(float32(x[i, 0:200]) - m[i]), dim=0)
    y[i, 0:200] = (float32(g[i, 0:200]) - s[i]) * exp2(float32(x[i, 0:200]) - m[i])
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_numbers_stay_bit_by_bit(run_triton, monkeypatch, dtype):
    monkeypatch.setattr(compute_again, "BESIDE", compute_again.MOST_OF_THREAD)
    program = from_text(TEXT.format(dtype))
    made = apply(compute_again.compute_again, program).program
    assert emit(made).text.count(" = _again(") == 2
    rng = np.random.default_rng(0)
    x, g = (rng.integers(-64, 64, (3, 200)).astype(np.float32) / 32 for _ in range(2))
    given = {"x": x, "g": g, "m": rng.standard_normal(3).astype(np.float32)}
    found, want = (run_triton(p, given)["y"] for p in (made, program))
    np.testing.assert_array_equal(found, want)
    weights = np.exp2(x.astype(np.float64) - given["m"].astype(np.float64)[:, None])
    exact = (g - (weights * g).sum(1, keepdims=True)) * weights
    assert np.linalg.norm(found - exact) <= 1e-5 * np.linalg.norm(exact)
