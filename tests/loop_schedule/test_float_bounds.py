"""Bounds on the values of a definition's stages."""

from __future__ import annotations

from tvm import te

from neptune_lab.loop_ir.nodes import Load, Var
from neptune_lab.loop_schedule.definition.float_bounds import Bounds
from neptune_lab.operators import custom


def product(a, b, name):
    k = te.reduce_axis((0, 4), name="k")
    return te.compute((4, 4), lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j], axis=k), name=name)


def combined(q, k, v, name):
    return te.compute((4, 4), lambda i, j: te.tanh(q[i, j] * k[i, j] + v[j, i]), name=name)


def test_layers_that_read_the_one_before_in_several_ways_take_linear_time():
    """Each layer reads the one before in three reductions, as queries, keys and values do: 3^6 paths in six layers."""
    x = y = te.placeholder((4, 4), "float16", name="x")
    w = te.placeholder((4, 4), "float16", name="w")
    layers = 6
    for layer in range(layers):
        q, k, v = (product(y, w, f"{name}{layer}") for name in "qkv")
        y = combined(q, k, v, f"y{layer}")
    bounds = Bounds(custom("layers", [x, w], [y]).program, {"i": 4, "j": 4})
    found = bounds.of(Load(f"y{layers - 1}", (Var("i"), Var("j"))))
    assert (found.low, found.high) == (-1, 1)
    assert len(bounds._known) < 40 * layers
