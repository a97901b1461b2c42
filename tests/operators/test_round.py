"""`round` (ties to even) from a tensor expression down to Triton: the same at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tvm import te

import neptune_lab as nl
from neptune_lab.htile.interpret import interpret
from neptune_lab.loop_ir.run import run
from neptune_lab.loop_ir.tags import record
from neptune_lab.operators import custom

HALVES = [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, -0.49999997, 0.49999997, 0.3, -0.7, 7.0, 0.0, np.inf, -np.inf]
# Where a float32 holds halves for the last time, and beyond.
LARGE = [2.0**22 - 0.5, 2.0**22 - 1.5, -(2.0**22) + 0.5, 2.0**22, 2.0**23 - 0.5, 2.0**23 + 1, -3e38, 1e10]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("function", [te.round, te.nearbyint])
def test_round_is_the_same_at_every_level(dtype: str, function: Any) -> None:
    values = np.array([HALVES, HALVES if dtype == "float16" else LARGE * 2], dtype=dtype)
    x = te.placeholder(values.shape, dtype, name="x")
    compute: Any = te.compute
    o = compute(values.shape, lambda i, j: function(x[i, j]), name="o")
    schedule = nl.Schedule(custom("rounded", [x], [o]))
    schedule.bind("o.i", "blockIdx.x")
    kernel = nl.compile(schedule)
    expected = np.rint(values)
    np.testing.assert_array_equal(run(schedule.program, {"x": values})["o"], expected)
    last = {write.index: write.value for write in record(schedule.program, {"x": values}).events}
    np.testing.assert_array_equal([[last[i, j] for j in range(16)] for i in range(2)], expected)
    np.testing.assert_array_equal(interpret(kernel.htile, {"x": values})["o"], expected)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    np.testing.assert_array_equal(kernel(torch.from_numpy(values).to(device)).cpu().numpy(), expected)


@pytest.mark.nightly
def test_a_quantized_row_leaves_the_kernel_as_int8() -> None:
    op = nl.operators.norms.rms_norm_quantize(rows=3, cols=8)
    schedule = nl.Schedule(op)
    schedule.tile("x2_sum", i=2, j=4)
    schedule.bind("x2_sum.i0", "blockIdx.x")
    schedule.rolling_update("y_max", "x2_sum.j0")
    for block in ("scale", "mean_square", "y", "q"):
        schedule.reverse_compute_at(block, "x2_sum.i0")
    schedule.retire_tags("x2_sum")
    schedule.decompose_reduction("y_max", "y_max.j0")
    assert schedule.check()
    kernel = nl.compile(schedule)
    inputs = op.random_inputs(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, scale = kernel(torch.from_numpy(inputs["x"]).to(device))
    expected_q, expected_scale = op.reference(*inputs.values())
    assert q.dtype == torch.int8
    np.testing.assert_array_equal(q.cpu().numpy(), expected_q)
    np.testing.assert_allclose(scale.cpu().numpy(), expected_scale, rtol=1e-6)
