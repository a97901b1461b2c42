"""Vectors along rows that begin anywhere: a copy for each head, in rows that begin at multiples of 16 bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_texts import after, read

import neptune_lab as nl
from neptune_lab.htile import interpret
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.shift_vectors import shift_vectors
from neptune_lab.operators import norms

HEAD = "i*5%8"


def declared(extent: int) -> str:
    return f"""
program p(x, w) -> y
  input   x  float16[i: 9, j: {extent}]
  input   w  float16[j: {extent}]
  output  y  float16[i: 9, j: {extent}]
"""


def kernel(*lines: str) -> str:
    return "\n    kernel p  grid (i: 9)\n        " + "\n        ".join(lines) + "\n"


def test_a_kernel_makes_a_copy_for_each_head():
    text = kernel(f"y[i, {HEAD}:{HEAD}+16] = x[i, {HEAD}:{HEAD}+16] * w[{HEAD}:{HEAD}+16]", "y[i, 0:8] = w[0:8]")
    assert (
        after(shift_vectors, declared(19), text)
        == f"""
+ global w_shifted float16[8, j: 24]
kernel p_shift  grid (j0: 1, s: 8)  @kernel:p.shift
    w_shifted[s, j0*1024:j0*1024+1024] = w[s+j0*1024:s+j0*1024+1024]  @y=kernel:p.w_shifted

kernel p  grid (i: 9)
    y[i, {HEAD}:{HEAD}+16] = x[i, {HEAD}:{HEAD}+16] * w_shifted[{HEAD}, 0:16]
    y[i, 0:8] = w[0:8]
"""
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(17, 60), st.integers(0, 6), st.sampled_from([4, 8, 16]), st.randoms())
def test_the_elements_are_the_same(extent: int, blocks: int, size: int, rng):
    """Also past the end of the vector, which reads as 0."""
    at = f"{HEAD}+{8 * blocks}:{HEAD}+{8 * blocks}+{size}"
    program = read(declared(extent), kernel(f"y[i, {at}] = x[i, {at}] * w[{at}]"))
    found = apply(shift_vectors, program).program
    assert found is not program
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    given_ = {"x": numbers.standard_normal((9, extent)), "w": numbers.standard_normal(extent)}
    one, other = (interpret(p, given_)["y"] for p in (program, found))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "at", [f"{HEAD}+3:{HEAD}+3+8", "8:16", "i*5%2:i*5%2+8", f"{HEAD}*2:{HEAD}*2+8", f"i+{HEAD}:i+{HEAD}+8"]
)
def test_other_slices_are_left(at: str):
    program = read(declared(40), kernel(f"y[i, {at}] = w[{at}]"))
    assert apply(shift_vectors, program).program is program


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_norm_with_a_scale_and_a_shift(dtype: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("neptune_lab.htile_passes.cut_long_rows.MANY_ELEMENTS", 1)
    kernel = nl.compile(norms.layer_norm(9, 1303, dtype=dtype))
    assert "gamma_shifted" in kernel.source
    draw = torch.Generator().manual_seed(0)
    x, gamma, beta = (torch.randn(s, generator=draw).to(getattr(torch, dtype)) for s in ((9, 1303), 1303, 1303))
    right = torch.nn.functional.layer_norm(x.double(), (1303,), gamma.double(), beta.double(), 1e-5)
    assert ((kernel(x, gamma, beta).double() - right).norm() / right.norm()).item() < 1e-3
    few = nl.compile(norms.layer_norm(9, 1304, dtype=dtype), validate="none")
    assert "_shifted" not in few.source, "rows that begin at multiples of 16 bytes need no copies"
