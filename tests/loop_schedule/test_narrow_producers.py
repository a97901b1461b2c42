"""Reductions of 16 bits that a repair of a float32 sum reads: the repair term is computed in float32."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import te

import neptune_lab as nl
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
