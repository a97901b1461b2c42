"""The order in which backward nests compute their tiles: as their products read them, without a change of numbers."""

from __future__ import annotations

import re

import pytest
from gradients import worst_error
from tvm import te

import neptune_lab as nl
from neptune_lab.operators import attention, backward, custom, training

SIZES = {"batch": 1, "heads": 4, "seq": 48, "head_dim": 16, "dtype": "float16"}


def _two_layers(columns_first: bool):
    """An MLP whose second weight is a factor of either side, so that its gradient has the hidden tile left or right."""
    x = te.placeholder((12, 4), "float32", name="x")
    first = te.placeholder((4, 6), "float32", name="first")
    second = te.placeholder((3, 6) if columns_first else (6, 3), "float32", name="second")
    k, h = te.reduce_axis((0, 4), name="k"), te.reduce_axis((0, 6), name="h")
    hidden = te.compute((12, 6), lambda i, j: te.sum(x[i, k] * first[k, j], axis=k), name="hidden")
    active = te.compute((12, 6), lambda i, j: te.tanh(hidden[i, j]), name="active")

    def term(i, o):
        return te.sum(active[i, h] * (second[o, h] if columns_first else second[h, o]), axis=h)

    return custom("two_layers", [x, first, second], [te.compute((12, 3), term, name="out")])


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["causal", "gqa", "softcap"])
def test_no_product_transposes_what_its_nest_computes(name):
    op = attention.gqa(kv_heads=2, **SIZES) if name == "gqa" else getattr(attention, name)(**SIZES)
    kernel = nl.compile(backward(op), block_q=16, block_kv=16)
    chip = {t.name for t in kernel.htile.tensors if t.space == "chip"}
    transposed = set(re.findall(r"permute\(\s*(\w+)", kernel.htile_text)) & chip
    assert transposed <= {"k_tile", "v_tile", "q_tile", "d_out_tile"}
    assert kernel.relative_error() < 2e-3


@pytest.mark.one_in(2)
@pytest.mark.parametrize("columns_first", [False, True])
def test_the_numbers_stay(columns_first):
    op = _two_layers(columns_first)
    for wrt in (None, ["first"], ["second"], ["first", "second"]):
        assert worst_error(op, training(op, wrt)) < 1e-6


@pytest.mark.nightly
def test_one_group_of_gradients_is_reordered_too():
    kernel = nl.compile(backward(attention.causal(**SIZES), wrt=["k", "v"]))
    chip = {t.name for t in kernel.htile.tensors if t.space == "chip"}
    assert set(re.findall(r"permute\(\s*(\w+)", kernel.htile_text)) & chip <= {"k_tile", "v_tile"}
    assert kernel.relative_error() < 2e-3


@pytest.mark.nightly
def test_a_tile_that_is_read_in_both_orders_is_loaded_once():
    source = nl.compile(backward(attention.full(**SIZES)), block_q=16, block_kv=16).source
    kernels = source.split("@triton.jit")
    (nest,) = (text for text in kernels if "d_k_ptr" in text and "def " in text and "tl.dot" in text)
    for tensor in ("q", "d_out"):
        assert len(re.findall(rf"tl\.load\({tensor}_base", nest)) == 1, nest
    assert nest.count("tl.trans(") == 2


@pytest.mark.nightly
def test_the_sum_over_a_group_of_heads_is_rounded_where_it_is_computed():
    kernel = nl.compile(backward(attention.gqa(kv_heads=2, **SIZES)), block_q=16, block_kv=16)
    assert kernel.htile_text.count("\nkernel ") == 5  # delta; d_q; shares of d_k and d_v; d_k; d_v
    assert kernel.relative_error() < 2e-3
