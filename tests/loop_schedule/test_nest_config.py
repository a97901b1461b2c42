"""What each nest is tiled by: the caller's numbers, a tuple with an entry a nest, and what is chosen by shape."""

from __future__ import annotations

import re

import by_name
import numpy as np
import pytest
import torch
from torch_to_stages import patterns
from tvm import te

import neptune_lab as nl
from neptune_lab.loop_schedule.plan import plan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates import choose_template, common
from neptune_lab.loop_schedule.templates.nest_config import nest_configs
from neptune_lab.loop_schedule.templates.nest_defaults import default_config
from neptune_lab.loop_schedule.templates.nest_reads import folds_columns, has_uneven_work
from neptune_lab.loop_schedule.templates.nest_shape import has_product, is_vector_product, rows_of
from neptune_lab.loop_schedule.templates.splits import balanced_splits
from neptune_lab.operators import attention, custom, gemm_chain, norms, performer, training
from neptune_lab.pipeline.fallback import parts_of
from neptune_lab.target import MATRIX_UNITS


def launches(kernel: nl.Kernel) -> list[tuple[tuple[int, ...], int | None]]:
    return [(k.grid, k.num_warps) for k in kernel.triton.kernels]


def small_performer():
    return performer.performer(1, 2, 100, 16, 128)


@pytest.mark.nightly
def test_a_tuple_has_one_entry_a_nest():
    op = small_performer()
    sizes = {"block_q": (None, 32), "block_kv": (16, 128), "splits": (3, None), "num_warps": (2, 8)}
    keys, queries = nest_configs(op.program, plan(op.program), nl.SplitKConfig(**sizes))
    assert (keys.block_kv, keys.splits, keys.num_warps) == (16, 3, 2)
    assert (queries.block_q, queries.block_kv, queries.num_warps, queries.one_tile) == (32, 128, 8, True)
    kernel = by_name.compile(op, "split_k_update", **sizes)
    # 7 tiles of keys in 3 splits; the kernel that combines has its own; 4 tiles of queries.
    assert launches(kernel) == [((3, 2, 1), 2), ((2, 1), None), ((4, 2, 1), 8)]
    assert kernel.relative_error() < 1e-3
    assert kernel.schedule.check()


def test_one_number_holds_for_all_nests():
    op = small_performer()
    found = nest_configs(op.program, plan(op.program), nl.TileConfig(block_kv=32, num_stages=2))
    assert [(k.block_kv, k.num_stages) for k in found] == [(32, 2)] * 2


def test_a_nest_of_one_split_rolls():
    kernel = nl.compile(
        attention.causal(1, 2, 100, 16), "split_k_update", block_kv=16, config=nl.SplitKConfig(splits=1)
    )
    assert len(kernel.triton.kernels) == 1
    assert "for j0 in" in kernel.source


def test_a_vector_of_rows_is_no_matrix_whose_columns_are_folded():
    """The gradient of the performer's largest key feature, with a maximum per head beside it."""
    x, limits = te.placeholder((4, 50, 6), name="x"), te.placeholder((4, 6), name="limits")
    j = te.reduce_axis((0, 50), name="j")
    columns = te.compute((4, 6), lambda b, h: te.sum(x[b, j, h], axis=j), name="columns")
    keys, k, m = te.placeholder((4, 50, 3), name="keys"), te.reduce_axis((0, 50), "k"), te.reduce_axis((0, 3), "m")
    above = te.compute((4, 6), lambda b, h: te.sum(te.exp(keys[b, k, m] - limits[b, h]), axis=[m, k]), name="above")
    for op, found in ((custom("columns", [x], [columns]), True), (custom("above", [keys, limits], [above]), False)):
        (nest,) = plan(op.program)
        assert folds_columns(op.program, nest) == found


def test_tiles_without_a_product_fit_four_warps():
    """A value folds two axes, so that a tile has more elements than rows and columns say."""
    x = te.placeholder((6, 500, 64), "float32", name="x")
    i, m = te.reduce_axis((0, 500), name="i"), te.reduce_axis((0, 64), name="m")
    most = te.compute((6,), lambda h: te.max(x[h, i, m], axis=[i, m]), name="most")
    op = custom("most", [x], [most])
    (nest,) = plan(op.program)
    for unit in MATRIX_UNITS:
        (found,) = nest_configs(op.program, (nest,), nl.TileConfig(matrix_unit=unit))
        held = rows_of(op.program, nest, found) * min(found.block_kv, 500) * 64
        assert held <= (16384 if unit == "wgmma" else 8192)
    assert nl.compile(op, target="sm_80").relative_error() < 1e-6


def test_a_split_result_that_folds_a_long_second_axis_is_private():
    """The axis is tiled before the block becomes one of private results; its loop is then theirs."""
    x = te.placeholder((3, 300, 40), "float32", name="x")
    i, m = te.reduce_axis((0, 300), name="i"), te.reduce_axis((0, 40), name="m")
    op = custom("most", [x], [te.compute((3,), lambda h: te.max(x[h, i, m], axis=[i, m]), name="most")])
    kernel = nl.compile(op, "split_k_update", block_kv=16, config=nl.SplitKConfig(splits=3))
    assert [k.grid[0] for k in kernel.triton.kernels] == [3, 3]
    assert kernel.relative_error() == 0


@pytest.mark.parametrize(("dtype", "sizes"), [("float32", (32, 32)), ("float16", (128, 64))])
def test_products_of_float32_have_small_tiles(dtype: str, sizes: tuple[int, int]):
    """They are sums lane by lane, and what a lane keeps of 64 x 64 elements spills."""
    op = attention.causal(1, 32, 2048, 64, dtype=dtype)
    (nest,) = plan(op.program)
    chosen = default_config(op.program, nest)
    assert (chosen.block_q, chosen.block_kv) == sizes


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"block_q": (16, 16, 16)}, r"block_q=\(16, 16, 16\) has 3 entries for 2 nests"),
        ({"block_kv": (16, 0)}, r"block_kv=0, expected a positive integer"),
        ({"num_warps": (4, 3)}, r"num_warps=3, expected a power of two"),
        ({"pad_rows": 1}, r"pad_rows=1: expected True or False"),
        ({"multiprocessors": 0}, r"multiprocessors=0, expected a positive integer"),
        ({"multiprocessors": (1, 2)}, r"multiprocessors=\(1, 2\), expected a positive integer"),
    ],
)
def test_refused_options(options: dict, match: str):
    with pytest.raises(nl.errors.ScheduleError, match=match):
        by_name.compile(small_performer(), "split_k_update", **options)


def test_splits_run_in_whole_waves():
    # 32 heads: 8 splits are 256 programs, one wave of two on each of 132 multiprocessors.
    assert balanced_splits(32, 512, 264) == 8
    for programs, tiles, slots in ((1, 3, 132), (8, 512, 132), (100, 64, 264), (7, 1000, 132)):
        splits = balanced_splits(programs, tiles, slots)
        assert 1 <= splits <= tiles
        waves, whole = -(-programs * splits // slots), -(-tiles // splits)
        # No choice of whole splits gets more than a combining kernel's worth better.
        others = [-(-programs * -(-tiles // each) // slots) * each for each in range(1, tiles + 1)]
        assert waves * whole <= 1.5 * min(others) + 2


@pytest.mark.nightly
def test_fewer_multiprocessors_get_fewer_splits():
    op = attention.causal(1, 4, q_len=1, kv_len=4096, head_dim=64)
    few, many = (
        nl.compile(op, "split_k_update", config=nl.TileConfig(multiprocessors=n)).triton.kernels[0].grid
        for n in (16, 132)
    )
    assert (few[0], many[0]) == (8, 32)


@pytest.mark.parametrize(("keys", "warps"), [(2048, 1), (4096, None)])
def test_few_elements_are_combined_by_one_warp(keys: int, warps: int | None):
    """Of 16 splits of 128 columns a lane of one warp has 64 elements; of 32 it would have 128."""
    op = attention.causal(1, 4, q_len=1, kv_len=keys, head_dim=128)
    config = nl.SplitKConfig(block_kv=128, splits=keys // 128)
    kernel = nl.compile(op, "split_k_update", config=config, validate="none")
    assert [k.num_warps for k in kernel.triton.kernels][1:] == [warps]


@pytest.mark.nightly
def test_performer_by_default():
    """Keys in splits that fill the GPU, one kernel to combine, queries against all features at once."""
    kernel = nl.compile(performer.performer(1, 8, 8192, 64, 256))
    assert launches(kernel) == [((16, 8, 1), 8), ((8, 1, 32), None), ((128, 8, 1), None)]
    functions = kernel.source.split("@triton.jit\ndef ")[1:]
    keys, combine, queries = (text for text in functions if not text.startswith("_"))  # a helper has the name of one
    assert re.findall(r"for i0\w* in range\((\d+)\):", keys) == ["16"]  # queries have an i0 too
    assert "for " not in combine
    assert "for " not in queries.partition("\ndef performer(")[0]
    assert queries.count("tl.load(") == 4  # q, proj, and the two sums over keys; their totals are of the loaded tiles


def _losses(rows: int, vocabulary: int):
    """Linear cross entropy without the target: the log-sum-exp of logits that are never stored."""
    x, w = (torch.zeros(n, 512, dtype=torch.bfloat16) for n in (rows, vocabulary))
    return nl.from_torch(lambda x, w: torch.logsumexp((x @ w.T).float(), dim=-1), x, w)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("rows", "vocabulary", "sizes"),
    [(8192, 32000, (128, 256)), (256, 128256, (128, 256)), (64, 128256, (64, 32)), (4096, 64, (64, 32))],
)
def test_a_large_product_that_is_reduced_has_the_tiles_of_a_product_alone(rows, vocabulary, sizes):
    op = _losses(rows, vocabulary)
    (nest,) = plan(op.program)
    chosen = default_config(op.program, nest)
    assert (chosen.block_q, chosen.block_kv) == sizes


def test_a_large_product_is_split_until_every_multiprocessor_has_a_program():
    kernel = nl.compile(_losses(8192, 32000), target="h200", validate="none")
    (local, combine) = kernel.triton.kernels
    assert (local.grid, local.num_warps) == ((2, 64), 8)
    assert "for d0 in range(8):" in kernel.source  # 512 elements, 64 at a time
    assert combine.grid[0] > 1


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "nests"), [(64, 1), (128, 2)])
def test_products_share_a_nest_while_their_accumulators_fit(width: int, nests: int):
    """Two attentions of the same values, V twice as wide as Q and K: a row accumulates 2 x V elements."""
    q, v = (torch.zeros(1, 1, 320, n, dtype=torch.float16) for n in (width, 2 * width))
    kernel = nl.compile(nl.from_torch(patterns.differential, q, q, q, q, v), "rolling_update", validate="none")
    assert len(kernel.htile.kernels) == nests
    assert not any(t.space == "global" and t.shape[-2:] == (320, 320) for t in kernel.htile.tensors)  # no scores


def test_a_short_column_alone_still_rolls():
    """An operator of one nest is asked to show its rolling loop; only an explicit tile that takes all is held."""
    op = attention.causal(1, 2, 100, 16)
    assert not default_config(op.program, plan(op.program)[0]).one_tile
    held = nl.compile(op, "rolling_update", block_q=16, block_kv=128)
    assert "rolling_update" not in {s.primitive for s in held.schedule.steps}
    assert "for " not in held.source.partition("def attention_causal_kernel")[2].partition("\ndef ")[0]
    assert held.relative_error() < 1e-3


# -- columns of the output, padded rows ----------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("template", "options", "grids"),
    [
        ("rolling_update", {}, [(5, 2, 3)]),
        ("rolling_update", {"block_kv": 64}, [(5, 2, 3)]),
        ("split_k_update", {"splits": 2}, [(2, 10, 3), (5, 2)]),
    ],
)
def test_a_chain_of_products_in_tiles_of_its_output(template: str, options: dict, grids: list):
    """The deep order: columns of the output are on the grid, and each program computes the first product again."""
    op = gemm_chain.gemm_chain(2, 70, 50, 32, 40)
    kernel = by_name.compile(op, template, **{"block_q": 16, "block_kv": 16, "block_out": 16, **options})
    assert [k.grid for k in kernel.triton.kernels] == grids
    assert kernel.relative_error() < 1e-3
    assert kernel.schedule.check()


@pytest.mark.nightly
def test_attention_in_tiles_of_its_output():
    """Batch and heads share a grid axis then, since a grid has three."""
    kernel = nl.compile(
        attention.causal(2, 2, 50, 32), "rolling_update", block_q=16, block_kv=16, config=nl.TileConfig(block_out=16)
    )
    assert [k.grid for k in kernel.triton.kernels] == [(4, 4, 2)]
    assert kernel.relative_error() < 1e-3


def test_no_columns_of_its_own():
    with pytest.raises(nl.errors.ScheduleError, match="no reduction of the nest of 'x_max' has columns of its own"):
        nl.compile(norms.l2_norm(9, 70), "rolling_update", config=nl.TileConfig(block_out=16))


@pytest.mark.nightly
@pytest.mark.parametrize(("template", "options"), [("rolling_update", {}), ("split_k_update", {"splits": 2})])
def test_a_single_query_in_padded_rows(template: str, options: dict):
    op = attention.causal(1, 2, q_len=1, kv_len=100, head_dim=16)
    plain, padded = (by_name.compile(op, template, block_kv=16, pad_rows=pad, **options) for pad in (False, True))
    assert "tl.dot(" not in plain.source
    assert "tl.dot(" in padded.source
    assert padded.relative_error() < 1e-3
    assert padded.schedule.check()


# -- warps, stages and splits ------------------------------------------------------------------------------


def _decoding(batch: int, heads: int, kv_heads: int, keys: int, width: int) -> nl.operators.Operator:
    return attention.gqa(batch, heads, q_len=1, kv_len=keys, head_dim=width, kv_heads=kv_heads, causal=False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("sizes", "grid", "keys"),
    [
        ((4, 32, 32, 3000, 64), (2, 1, 128), 64),  # 128 programs leave room for two on a multiprocessor
        ((16, 16, 16, 6325, 128), (1, 16, 16), 64),  # 256 do not
        ((8, 32, 32, 1451, 256), (1, 32, 8), 32),  # 16 KiB of keys
    ],
)
def test_decoding_loads_small_tiles_ahead(sizes: tuple[int, ...], grid: tuple[int, ...], keys: int):
    """A single row is multiplied lane by lane: few warps, and a loop that is pipelined on request only."""
    kernel = nl.compile(_decoding(*sizes), validate="none")
    first = kernel.triton.kernels[0]
    assert (first.grid, first.num_warps, first.num_stages) == (grid, 2, 3)
    assert re.search(rf"for j0 in tl\.range\(.*, num_stages=3\).*\n.*tl\.arange\(0, {keys}\)", kernel.source)
    other = nl.compile(_decoding(*sizes), code=nl.CodeOptions(loop_stages=2), validate="none")
    assert "num_stages=2):" in other.source
    assert "num_stages=3):" not in other.source


@pytest.mark.nightly
def test_groups_of_heads_are_pipelined_by_triton():
    """Their products go to the matrix unit: Triton's own stages apply, and the tile is of at most 16 KiB too."""
    kernel = nl.compile(_decoding(1, 8, 2, 30000, 256), validate="none")
    assert kernel.triton.kernels[0].num_stages is None
    assert "tl.range" not in kernel.source
    assert "tl.arange(0, 32)" in kernel.source


def _paged(lengths: int) -> nl.operators.Operator:
    table = np.arange(lengths * 128).reshape(lengths, 128)
    return attention.paged(table, np.full(lengths, 5000), 32, 128, 64, kv_heads=8, causal=False)


@pytest.mark.nightly
def test_sequences_of_unequal_lengths_are_shared_among_many_programs():
    """32 x 8 programs fill the GPU, but those of short sequences would wait for those of long ones."""
    uneven, even = _paged(32), _decoding(32, 32, 8, 8192, 128)
    assert [has_uneven_work(op.program, plan(op.program)[0]) for op in (uneven, even)] == [True, False]
    assert choose_template(even.program)[0] == "rolling_update"
    kernel = nl.compile(uneven, validate="none")
    assert kernel.triton.kernels[0].grid[0] == 9  # 16 programs a multiprocessor
    assert kernel.triton.kernels[0].num_stages == 2
    prefill = attention.document(np.zeros((1, 4096), int), 32, 64)
    assert not has_uneven_work(prefill.program, plan(prefill.program)[0])


def test_an_outer_product_is_not_a_product_of_vectors():
    keys = plan(small_performer().program)[0]
    assert keys.row_axis is None
    assert not is_vector_product(small_performer().program, keys)
    decoding = _decoding(1, 2, 2, 100, 16).program
    assert is_vector_product(decoding, plan(decoding)[0])


@pytest.mark.parametrize(
    ("heads", "length", "width", "sizes"),
    [
        (512, 128, 64, (128, 64)),
        (512, 129, 64, (64, 64)),
        (512, 192, 32, (64, 64)),
        (512, 193, 32, (128, 64)),
        (512, 300, 32, (64, 64)),
        (128, 139, 128, (64, 32)),
        (128, 139, 64, (64, 64)),
        (80, 257, 96, (64, 64)),
        (88, 139, 96, (64, 64)),
    ],
)
def test_tiles_of_short_attention(heads: int, length: int, width: int, sizes: tuple[int, int]):
    """Rows that tiles of 64 pad less; tiles of which each of 132 multiprocessors runs three programs at once."""
    op = attention.full(1, heads, length, width)
    chosen = default_config(op.program, plan(op.program)[0])
    assert (chosen.block_q, chosen.block_kv) == sizes


@pytest.mark.parametrize(
    ("width", "per_pair", "sizes"), [(128, True, (64, 64, 4, 2)), (64, True, (128, 64, None, None))]
)
def test_a_bias_that_is_loaded_per_pair_leaves_room_for_another_program(width: int, per_pair: bool, sizes):
    bias = torch.zeros(16, 2 * 4096 - 1, dtype=torch.bfloat16)

    def mod(score, b, h, q, kv):
        return score + bias[h, q - kv + 4095] if per_pair else score

    op = attention.general(1, 16, 4096, 4096, width, mod, None, "bfloat16")
    chosen = default_config(op.program, plan(op.program)[0])
    assert (chosen.block_q, chosen.block_kv, chosen.num_warps, chosen.num_stages) == sizes


@pytest.mark.parametrize(
    ("width", "dtype", "sizes"),
    [(128, "float32", (64, 64, 4, 2)), (128, "bfloat16", (128, 64, None, None)), (64, "float32", (64, 64, None, None))],
)
def test_the_gradient_of_queries_beside_wide_pairs_fits_shared_memory(width: int, dtype: str, sizes):
    bias = torch.zeros(2, 128, 128, dtype=getattr(torch, dtype))
    op = attention.general(256, 2, 128, 128, width, lambda s, b, h, q, kv: s + bias[h, q, kv], None, "bfloat16")
    programs = [part.program for part in parts_of(training(op).backward)]
    chosen = next(default_config(p, nest) for p in programs for nest in plan(p) if has_product(p, nest))
    assert (chosen.block_q, chosen.block_kv, chosen.num_warps, chosen.num_stages) == sizes


@pytest.mark.one_in(2)
@pytest.mark.parametrize("length", [384, 300])
def test_a_product_apart_sums_over_tiles_of_a_long_axis(length: int):
    """Whole, its operands would not fit shared memory."""
    x, w = torch.randn(2, 40, length).bfloat16(), torch.randn(2, length, 24).bfloat16()
    started = Schedule(nl.from_torch(lambda x, w: torch.bmm(x, w), x, w))
    common.finish(started, {}, "wgmma")
    kernel = nl.compile(started, validate="none")
    assert f"in range({length // 128}):" in kernel.htile_text
    assert kernel.relative_error() < 1e-2


def test_a_short_axis_of_a_product_apart_stays_whole():
    x, w = torch.randn(2, 40, 256).bfloat16(), torch.randn(2, 256, 24).bfloat16()
    started = Schedule(nl.from_torch(lambda x, w: torch.bmm(x, w), x, w))
    common.finish(started, {}, "wgmma")
    assert " in range(" not in nl.compile(started, validate="none").htile_text
