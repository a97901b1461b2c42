"""The analytical model: its equations by hand, and the estimate from options against the one from HTile."""

from __future__ import annotations

from itertools import product

import pytest
from by_name import choice

from neptune_lab.autotune.cost_model import CostModel, Machine, predict_kernel, predict_nests, predict_program
from neptune_lab.autotune.nests import Nests
from neptune_lab.htile.nodes import (
    Access,
    Arith,
    Cast,
    Dot,
    For,
    GridAxis,
    Int,
    Kernel,
    Name,
    Program,
    Slice,
    Store,
    Tensor,
)
from neptune_lab.operators import attention, gemm_chain, norms, performer
from neptune_lab.pipeline import compile_choice
from neptune_lab.runtime.timing import Ceiling
from neptune_lab.target import Target

H200, A100 = Target("h200"), Target("a100")
MACHINE = Machine(bandwidth=1e12, peak=1e14, multiprocessors=100)


def test_equations_2_to_5_by_hand():
    # 1 MB at 1 TB/s and 100 MFLOP at 100 TFLOP/s are 1 us each; 50 blocks on 100 multiprocessors: alpha = 3.
    made = MACHINE.predict(moved=1e6, flops=1e8, blocks=50)
    assert (made.memory, made.compute) == pytest.approx((1e-6, 1e-6))
    assert made.seconds == pytest.approx((1e-6 + 1e-6) * 3 + 1e-6)


def test_equations_3_and_4_by_hand():
    """A GEMM chain of 32 x 32 x 32 x 32 in tiles of 16 rows and 16 columns: two blocks of two iterations."""
    model = CostModel(gemm_chain.gemm_chain(m=32, n=32, k=32, h=32), H200)
    made = predict_nests(model.nests.plain, choice("rolling_update", block_q=16, block_kv=16), MACHINE)
    a, b, d, out = 16 * 32 * 2, 32 * 16 * 2 * 2, 16 * 32 * 2 * 2, 16 * 32 * 2
    assert made.moved == 2 * (a + b + d + out)
    assert made.flops == 2 * (2 * 16 * 16 * 32 * 2) * 2
    assert made.blocks == 2


CASES = [
    (gemm_chain.gemm_chain(m=64, n=96, k=48, h=80), {"block_q": 16, "block_kv": 32}),
    (gemm_chain.gemm_chain(batch=2, m=64, n=64, k=512, h=64), {"block_q": 32, "block_kv": 32}),
    (gemm_chain.gemm_chain(m=64, n=64, k=32, h=128), {"block_q": 32, "block_kv": 32, "block_out": 64}),
    (attention.full(heads=4, seq=128, head_dim=32), {"block_q": 32, "block_kv": 64}),
    (norms.l2_norm(rows=8, cols=512, dtype="float16"), {"block_q": 2, "block_kv": 64}),
    (norms.rms_norm_quantize(rows=8, cols=512, dtype="float16"), {"block_q": 2, "block_kv": 64}),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("operator", "options"), CASES, ids=lambda value: getattr(value, "name", None))
def test_options_and_htile_give_the_same_estimate(operator, options):
    candidate = choice("rolling_update", **options)
    cheap = predict_nests(Nests.found_in(operator).plain, candidate, MACHINE)
    exact = predict_program(compile_choice(operator, candidate).htile, MACHINE)
    assert cheap.flops == exact.flops
    assert cheap.blocks == exact.blocks
    # HTile does not store a row's sums that only its own kernel reads.
    assert cheap.moved == pytest.approx(exact.moved, rel=0.01)


def test_grouped_heads_read_their_keys_once():
    operator = attention.gqa(heads=8, kv_heads=2, q_len=1, kv_len=256, head_dim=32, causal=False)
    made = predict_nests(Nests.found_in(operator).plain, choice("rolling_update", block_kv=64), MACHINE)
    keys_and_values = 2 * 2 * 256 * 32 * 2
    assert made.moved == pytest.approx(keys_and_values, rel=0.05)
    assert made.blocks == 2


def test_a_split_has_more_blocks_and_stores_partial_results():
    operator = gemm_chain.gemm_chain(m=32, n=256, k=32, h=32)
    nests = Nests.found_in(operator).plain
    whole = predict_nests(nests, choice("rolling_update", block_q=32, block_kv=32), MACHINE)
    split = predict_nests(nests, choice("split_k_update", block_q=32, block_kv=32, splits=4), MACHINE)
    assert whole.seconds == MACHINE.predict(whole.moved, whole.flops, 1).seconds
    first = MACHINE.predict(split.moved - 4 * 32 * 32 * 4 - 32 * 32 * 2, split.flops, 4)
    second = MACHINE.predict(4 * 32 * 32 * 4 + 32 * 32 * 2, 0.0, MACHINE.multiprocessors)
    assert split.seconds == pytest.approx((first + second).seconds)
    # Each of four parts loads A, and stores 32 x 32 float32 that the combining kernel loads.
    assert split.moved - whole.moved == 3 * 32 * 32 * 2 + 2 * 4 * 32 * 32 * 4
    assert split.flops == whole.flops


def test_a_mask_counts_only_where_the_program_skips():
    causal = choice("rolling_update", block_q=16, block_kv=16)
    operator = attention.causal(heads=1, seq=128, head_dim=16)
    kernel = compile_choice(operator, causal).htile
    made = predict_program(kernel, MACHINE)
    tiles = sum(1 for i, j in product(range(8), range(8)) if j <= i)
    assert made.flops == tiles * 2 * (2 * 16 * 16 * 16)
    assert predict_nests(Nests.found_in(operator).plain, causal, MACHINE).flops == 64 * 2 * (2 * 16 * 16 * 16)


def test_many_blocks_are_sampled_evenly():
    """A triangular loop over 10,000 blocks: the mean of a linear function is kept."""
    tile = Access("x", (Slice(Int(0), 16, "a"), Slice(Int(0), 16, "b")))
    out = Access("y", (Slice(Int(0), 16, "a"), Slice(Int(0), 16, "b")))
    store = Store("s", Access("t", out.index), Dot(tile, tile), "t")
    loop = For("f", "j", Int(0), Arith("+", Name("i"), Int(1)), (store,), "t")
    end = Store("e", out, Cast(Access("t", out.index), "float16"), "y")
    kernel = Kernel("k", "k", (GridAxis("i", 10_000),), (loop, end))
    shape, half = (16, 16), "float16"
    tensors = (
        Tensor("x", shape, half, "input"),
        Tensor("y", shape, half, "output"),
        Tensor("t", shape, "float32", "chip"),
    )
    made = predict_kernel(Program("p", tensors, ("x",), ("y",), (kernel,)), kernel, MACHINE)
    assert made.flops == pytest.approx(10_000 * 10_001 / 2 * 2 * 16**3, rel=1e-3)


def test_several_nests_add_up():
    operator = performer.performer(heads=2, seq=64, features=32)
    model = CostModel(operator, H200)
    both = choice("rolling_update", block_kv=(32, 16), block_q=(None, 32))
    alone = [{"block_kv": 32}, {"block_kv": 16, "block_q": 32}]
    parts = [
        predict_nests((nest,), choice("rolling_update", **options), model.machine)
        for nest, options in zip(model.nests.plain, alone, strict=True)
    ]
    assert model(both) == pytest.approx(sum(part.seconds for part in parts))


def test_figures_of_the_device():
    measured = Ceiling("H200", 663.0, 4270.0, "measured")
    assert Machine.of(H200, measured) == Machine(4270e9, 663e12, 132)
    assert Machine.of(A100) == Machine(2039e9, 312e12, 108)
