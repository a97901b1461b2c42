"""Definitions come in as they are written: TVM simplifies over the reals, and floats are none."""

from __future__ import annotations

import pytest
import torch
from tvm import te, tirx

from neptune_lab.loop_ir.render import definition
from neptune_lab.loop_ir.tvm_compat import from_te


def number(value: float):
    return tirx.const(value, "float32")


X, N = te.placeholder((4, 9), "float32", name="x"), te.placeholder((9,), "int32", name="n")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda i, j: X[i, j] - X[i, j], "x[i, j] - x[i, j]"),
        (lambda i, j: (X[i, j] + number(1e30)) - number(1e30), "x[i, j] + 1e+30 - 1e+30"),
        (lambda i, j: tirx.Div(number(0), X[i, j]), "0 / x[i, j]"),
        (lambda i, j: tirx.if_then_else(tirx.EQ(X[i, j], X[i, j]), X[i, j], number(1)), "x[i, j] == x[i, j]"),
        (lambda i, j: tirx.if_then_else(tirx.NE(X[i, j], X[i, j]), X[i, j], number(1)), "x[i, j] != x[i, j]"),
        (lambda i, j: tirx.if_then_else(tirx.Not(X[i, j] < 1.0), X[i, j], number(1)), "not x[i, j] < 1"),
        (lambda i, j: tirx.Cast("float32", N[j] * 2 // 2) + X[i, j], "n[j] * 2 // 2"),
        (lambda i, j: -X[i, j], "-x[i, j]"),
        (lambda i, j: X[i, j] + tirx.Cast("float32", (i * 4 + 8) // 4), "x[i, j] + float32(i + 2)"),
    ],
)
def test_floats_and_elements_stay_as_written_and_indices_are_simplified(body, text):
    y = te.compute((4, 9), body, name="y")
    (line,) = definition(from_te("f", [X, N] if "n[" in text else [X], [y]))
    assert text in line.text


def test_every_stage_and_its_reducer_stay():
    r = te.reduce_axis((0, 9), name="r")
    a = te.compute((4, 9), lambda i, j: X[i, j] - X[i, j], name="a")
    s = te.compute((4,), lambda i: te.sum(a[i, r] * (X[i, r] - X[i, r]), axis=r), name="s")
    y = te.compute((4,), lambda i: s[i] - s[i], name="y")
    assert [line.text for line in definition(from_te("f", [X], [s, y]))] == [
        "a[i, j] = x[i, j] - x[i, j]",
        "s[i] = sum(a[i, r] * (x[i, r] - x[i, r]) for r in range(9))",
        "y[i] = s[i] - s[i]",
    ]


def test_a_kernel_computes_what_is_written():
    import neptune_lab as nl

    y = te.compute((4, 9), lambda i, j: tirx.Div(X[i, j] - X[i, j], X[i, j] - X[i, j]), name="y")
    x = torch.ones(4, 9)
    x[1, 2] = torch.inf
    kernel = nl.compile(nl.operators.custom("f", [X], [y]))
    assert kernel(x).isnan().all()
