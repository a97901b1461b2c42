"""Sums of products in every dtype: one dot where the operands have one that a dot takes, and right everywhere."""

from __future__ import annotations

import pytest
from tvm import te

import neptune_lab as nl
from neptune_lab.htile.nodes import Cast, Dot
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.operators import Operator, custom

NARROW = {"float16": 2e-2, "bfloat16": 2e-1}


def chain(inputs: str, v_dtype: str, stages: str, rows: int = 6, cols: int = 11, width: int = 4) -> Operator:
    """sum over j of tanh(q·k)[i, j] * v[j, d], each stage in `stages`: only what has another dtype is converted."""

    def seen_as(value, dtype: str):
        return value if dtype == stages else value.astype(stages)

    q = te.placeholder((rows, width), inputs, name="q")
    k = te.placeholder((cols, width), inputs, name="k")
    v = te.placeholder((cols, 3), v_dtype, name="v")
    d, j = te.reduce_axis((0, width), name="d"), te.reduce_axis((0, cols), name="j")
    s = te.compute(
        (rows, cols), lambda i, j: te.sum(seen_as(q[i, d], inputs) * seen_as(k[j, d], inputs), axis=d), name="s"
    )
    acc = te.compute((rows, 3), lambda i, n: te.sum(te.tanh(s[i, j]) * seen_as(v[j, n], v_dtype), axis=j), name="acc")
    return custom("chain", [q, k, v], [acc])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("block", [2, 64])
@pytest.mark.parametrize(
    ("inputs", "v_dtype", "stages"),
    [
        ("float16", "float16", "float16"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float16", "float16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("float32", "float16", "float32"),
        ("float16", "bfloat16", "float32"),
    ],
)
def test_two_dots_in_one_kernel(inputs: str, v_dtype: str, stages: str, block: int):
    kernel = nl.compile(chain(inputs, v_dtype, stages), block_kv=block)
    (body,) = (k.body for k in kernel.htile.kernels)
    dots = [e for store in stores(body) for e in subexpressions(store.value) if isinstance(e, Dot)]
    assert len(dots) >= 2
    assert kernel.relative_error() < max(NARROW.get(dtype, 1e-5) for dtype in (inputs, v_dtype, stages))


@pytest.mark.parametrize(("stages", "largest"), [("float16", 64), ("float32", 32)])
def test_tiles_of_a_product_in_float32_are_small(stages: str, largest: int):
    """tanh(q·k) in float32 times a v of halves is one; larger tiles would not fit a lane's registers."""
    kernel = nl.compile(chain("float16", "float16", stages, 128, 128, 16), validate="none")
    stored = [store for k in kernel.htile.kernels for store in stores(k.body) if isinstance(store.value, Dot | Cast)]
    shapes = [shape_of(store.value, kernel.htile) for store in stored]
    assert max(max(shape[-2:]) for shape in shapes) == largest


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_a_dtype_that_no_dot_takes_is_a_reduction(dtype: str):
    x = te.placeholder((6, 4), dtype, name="x")
    y = te.placeholder((11, 4), dtype, name="y")
    j = te.reduce_axis((0, 4), name="j")
    op = custom("product", [x, y], [te.compute((6, 11), lambda i, n: te.sum(x[i, j] * y[n, j], axis=j), name="s")])
    kernel = nl.compile(op)
    assert kernel.relative_error() < 1e-6
