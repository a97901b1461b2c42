"""Gradients of tensors that are read along offsets, at sizes whose iterations are too many to enumerate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import te

import neptune_lab as nl
from neptune_lab.loop_ir import iteration_domain
from neptune_lab.operators import Operator, backward, custom

# How many elements are read, and which one at (i, j) of n x n.
READS: dict[str, Callable[[int], tuple[int, Callable]]] = {
    "difference": lambda n: (2 * n - 1, lambda i, j: i - j + n - 1),
    "sum": lambda n: (2 * n, lambda i, j: i + j),
    "every second": lambda n: (3 * n, lambda i, j: 2 * i - j + n - 1),
    "blocks of differences": lambda n: (n, lambda i, j: (i - j + n - 1) // 2),
}


def biased(name: str, n: int) -> Operator:
    size, position = READS[name](n)
    x, bias = te.placeholder((n, n), "float32", name="x"), te.placeholder((size,), "float32", name="bias")
    y = te.compute((n, n), lambda i, j: te.exp(x[i, j] * bias[position(i, j)]), name="y")
    k = te.reduce_axis((0, n), name="k")
    out = te.compute((n,), lambda i: te.sum(y[i, k], axis=k), name="out")
    return custom(f"biased_{n}", [x, bias], [out])


@pytest.mark.nightly
@pytest.mark.parametrize("name", READS)
def test_sizes_past_the_enumeration_have_kernels(name: str):
    n = 1600
    assert n * n > iteration_domain.LIMIT
    kernel = nl.compile(backward(biased(name, n), wrt=["bias"]), target="h200", validate="none")
    assert any(k.name.endswith("d_bias") for k in kernel.htile.kernels)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", READS)
def test_numbers_do_not_need_enumeration(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iteration_domain, "LIMIT", 8)
    assert nl.compile(backward(biased(name, 11))).relative_error() < 1e-6
