"""The width of keys and values is cut into powers of two where every element is computed at its own place in it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.htile import from_text, interpret, to_text, verify
from neptune_lab.htile.nodes import Access, Dot, Int, Kernel, Program, Reduce, Slice, Store, Tensor
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.htile_passes.cut_padded_widths import cut_padded_widths
from neptune_lab.operators import attention
from neptune_lab.pipeline.lower import code_passes

NAME = "cut_padded_widths"
# Widths of keys and values, and the splits.
FORMS = {"keys": (192, 16, None), "keys and values": (192, 192, 2), "values": (16, 320, 2)}


@cache
def programs(form: str) -> tuple[Program, Program]:
    """A program of decoding before the pass and after it."""
    width, of_values, splits = FORMS[form]
    operator = attention.general(
        *(1, 4, 1, 21, width), kv_heads=2, v_head_dim=of_values, mask_mod=lambda b, h, q, kv: kv > 2, dtype="float32"
    )
    config = nl.TileConfig(block_kv=8) if splits is None else nl.SplitKConfig(splits=splits, block_kv=8)
    kernel = nl.compile(
        operator, "rolling_update" if splits is None else "split_k_update", config=config, validate="none"
    )
    done = next(done for done in kernel.passes if done.name == NAME)
    return done.before, done.program


@pytest.mark.one_in(3)
@pytest.mark.parametrize("form", FORMS)
def test_the_meaning_stays(form: str):
    before, after = programs(form)
    verify(after)
    assert from_text(to_text(after)) == after
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(before.tensor(name).shape).astype("float32") for name in before.inputs}
    (out,) = before.outputs
    np.testing.assert_allclose(interpret(after, arrays)[out], interpret(before, arrays)[out], atol=1e-5)


def test_no_tile_of_a_product_is_padded():
    _, after = programs("keys and values")
    local = after.kernels[0]
    products = [e for s in stores(local.body) for e in subexpressions(s.value) if isinstance(e, Dot)]
    extents = {i.extent for e in products for i in _slices(e.b) if i.axis.startswith("d")}
    assert extents == {128, 64}
    assert len(products) == 4


def _slices(expr: object) -> list[Slice]:
    return [i for e in subexpressions(expr) if isinstance(e, Access) for i in e.index if isinstance(i, Slice)]  # type: ignore[arg-type]


def with_a_sum(kernel: Kernel) -> Kernel:
    """The kernel with a statement that sums a row of queries."""
    row = Access("q", (Int(0), Int(0), Int(0), Slice(Int(0), 192, "d")))
    return replace(kernel, body=(*kernel.body, Store("total", Access("total", ()), Reduce("sum", row, 0), "qk")))


def test_other_kernels_stay():
    """A width that something sums, rows that fill matrix units, and kernels in Gluon, which cut copies otherwise."""
    before, _ = programs("keys")
    tensors = (*before.tensors, Tensor("total", (), "float32", "chip"))
    summed = replace(before, kernels=tuple(map(with_a_sum, before.kernels)), tensors=tensors)
    verify(summed)
    assert cut_padded_widths(summed) is summed
    many = nl.compile(
        attention.full(heads=1, seq=32, head_dim=192), "rolling_update", block_q=32, block_kv=16, validate="none"
    )
    before = next(done.before for done in many.passes if done.name == NAME)
    assert cut_padded_widths(before) is before
    assert NAME not in code_passes(nl.CodeOptions(code="gluon"))
