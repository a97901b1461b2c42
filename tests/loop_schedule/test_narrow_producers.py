"""Reductions of 16 bits that a repair of a float32 sum reads: the repair term is computed in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te

import neptune_lab as nl
from neptune_lab.htile.interpret import interpret
from neptune_lab.operators import Operator, custom

ROWS, COLUMNS = 4, 96


def log_sum(dtype: str, *, with_maximum: bool) -> Operator:
    """The sum of exp(x - max(x)), whose maximum stays in x's dtype; `with_maximum`: both are results."""
    x: Any = te.placeholder((ROWS, COLUMNS), dtype, name="x")
    j = te.reduce_axis((0, COLUMNS), name="j")
    largest: Any = te.compute((ROWS,), lambda i: te.max(x[i, j], axis=j), name="largest")
    weight: Any = te.compute(
        (ROWS, COLUMNS), lambda i, k: te.exp((x[i, k] - largest[i]).astype("float32")), name="weight"
    )
    total = te.compute((ROWS,), lambda i: te.sum(weight[i, j], axis=j), name="total")
    return custom("log_sum", [x], [largest, total] if with_maximum else [total])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("with_maximum", [False, True])
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_maximum_of_16_bits(dtype: str, template: str, with_maximum: bool):
    kernel = nl.compile(log_sum(dtype, with_maximum=with_maximum), template, block_kv=32)
    assert kernel.relative_error() < 1e-2
    if template == "rolling_update" and not with_maximum:
        assert len(kernel.htile.kernels) == 1


def rounded_maximum(dtype: str, *, factor: bool) -> Operator:
    """A softmax about the maximum of its row, or the sum of x over one more than its largest magnitude, which is first
    rounded to `dtype`."""
    x: Any = te.placeholder((2, 12), "float32", name="x")
    v: Any = te.placeholder((2, 12), "float32", name="v")
    j = te.reduce_axis((0, 12), name="j")
    size = te.abs if factor else lambda value: value
    largest: Any = te.compute((2,), lambda i: te.max(size(x[i, j]), axis=j), name="largest")
    rounded: Any = te.compute((2,), lambda i: largest[i].astype(dtype), name="rounded")

    def weight(i: Any) -> Any:
        about = rounded[i].astype("float32")
        return x[i, j] / (about + 1.0) if factor else te.exp(x[i, j] - about)

    total: Any = te.compute((2,), lambda i: te.sum(weight(i), axis=j), name="total")
    sums: Any = te.compute((2,), lambda i: te.sum(weight(i) * v[i, j], axis=j), name="sums")
    return custom("rounded", [x, v], [te.compute((2,), lambda i: sums[i] / total[i], name="o")])


@pytest.mark.parametrize(("template", "kernels"), [("rolling_update", 1), ("split_k_update", 2)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_rounded_maximum_of_a_softmax_is_complete_before_it_is_read(dtype: str, template: str, kernels: int):
    """Each tile would have a rounding of its own, which no quotient cancels; as a factor, it is as small as any."""
    x = np.full((2, 12), 298.1, np.float32)
    x[:, :3], x[:, 6:9] = 299.2, 300.3
    v = np.arange(24, dtype=np.float32).reshape(2, 12)
    kernel = nl.compile(rounded_maximum(dtype, factor=False), template, block_kv=3)
    weights = np.exp(x.astype(np.float64) - 300.3)
    found = interpret(kernel.htile, {"x": x, "v": v})["o"]
    np.testing.assert_allclose(found, (weights * v).sum(1) / weights.sum(1), rtol=1e-4)
    assert len(kernel.htile.kernels) > kernels
    assert any("'largest' rounded to" in remark for remark in kernel.remarks)
    one = nl.compile(rounded_maximum(dtype, factor=True), template, block_kv=3)
    np.testing.assert_allclose(interpret(one.htile, {"x": x, "v": v})["o"], (x * v).sum(1) / x.sum(1), rtol=1e-2)
    assert len(one.htile.kernels) == kernels
