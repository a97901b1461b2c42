"""The paper's ten attention kernels at their real shapes: compiled, never run; their outlines are golden texts."""

from __future__ import annotations

from functools import cache

import pytest

import neptune_lab as nl
from neptune_lab.htile.nodes import For
from neptune_lab.operators import PRESETS, attention

TEN = [name for name, preset in PRESETS.items() if preset.paper.startswith("Neptune")]


@cache
def compiled(name: str) -> nl.Kernel:
    return nl.compile(attention.preset(name, seq=2048))


def test_there_are_ten():
    assert len(TEN) == 10


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", TEN)
def test_golden_outline(golden, name):
    golden(f"kernels/{name}.txt", compiled(name).outline)


def test_golden_outline_of_a_long_window(golden):
    """At 8192 the window of 4096 keys starts behind the first tile: a left edge appears."""
    golden("kernels/window_pf_8192.txt", nl.compile(attention.preset("window_pf", seq=8192)).outline)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", TEN)
def test_no_scores_go_to_memory(name):
    """Nothing of the size of queries times keys is written: that is the point of the fusion."""
    tiles = compiled(name).htile
    heads = PRESETS[name].sizes["heads"]
    queries = 1 if PRESETS[name].decode else 2048
    chip_only = {t.name for t in tiles.tensors if t.space == "chip"}
    assert {"qk", "s_exp"} <= chip_only
    for tensor in tiles.tensors:
        if tensor.space in ("global", "output"):
            assert tensor.shape[-2:] != (queries, 2048)
            assert (2048 not in tensor.shape) or queries == 2048, f"{tensor.name} has an element a key"
            assert heads in tensor.shape


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", [n for n in TEN if n.endswith("_pf")])
def test_prefill_is_one_kernel_that_loads_q_once_and_masks_at_edges_only(name):
    (kernel,) = compiled(name).htile.kernels
    before, *parts = compiled(name).outline.split("  for j0 in range")
    assert before.count("loads    q[") == 1
    assert all("loads    q[" not in part for part in parts)
    assert all(part.count("loads    k[") == part.count("loads    v[") == 1 for part in parts)
    loops = [stmt for stmt in kernel.body if isinstance(stmt, For)]
    assert len(loops) == len(parts)
    for loop, part in zip(loops, parts, strict=True):
        assert ("masks    none" in part) == (loop.part in ("interior", ""))
    assert "(bounded)" not in compiled(name).outline, "2048 and 128 divide"


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", [n for n in TEN if n.endswith("_dc")])
def test_decode_is_two_kernels_that_share_partial_results_only(name):
    _, combine = compiled(name).htile.kernels
    second = compiled(name).outline.split(f"kernel {combine.name}")[1]
    for tensor in ("q", "k", "v"):
        assert f"loads    {tensor}[" not in second


def test_bounded_loads_are_said_to_be():
    """65 keys in tiles of 16: only the last tile's loads reach past the end; the queries' do as well."""
    text = nl.compile(attention.full(seq=65, head_dim=16), "rolling_update", block_q=16, block_kv=16).outline
    before, rest = text.split("  for j0 in range(4):  # interior")
    interior, edge = rest.split("    masks    none")
    assert "q[b, h, i0*16:i0*16+16, 0:16]  (bounded)" in before
    assert "bounded" not in interior
    assert edge.count("(bounded)") == 3  # k, v, and the output
