"""The estimate for emitted kernels: Triton 3.6's own figures for sm_90, and the same answer from options as from
HTile."""

from __future__ import annotations

import pytest
from by_name import choice

from neptune_lab.autotune.nests import Nests
from neptune_lab.autotune.shared_memory import copies, kernel_bytes
from neptune_lab.operators import attention, gemm_chain, norms
from neptune_lab.pipeline import compile_choice

ATTENTION = attention.preset("global_pf", seq=2048)
CAUSAL = attention.preset("causal_pf", seq=2048)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("operator", "options", "allocated"),
    [
        # What `triton.compile` allocated for sm_90 (metadata.shared), Triton 3.6.0, pointers.
        (ATTENTION, {"block_q": 128, "block_kv": 64, "num_warps": 8, "num_stages": 3}, 131072),
        (ATTENTION, {"block_q": 128, "block_kv": 128, "num_warps": 8, "num_stages": 2}, 163840),
        (ATTENTION, {"block_q": 64, "block_kv": 64, "num_warps": 4, "num_stages": 2}, 81920),
        (CAUSAL, {"block_q": 128, "block_kv": 64, "num_warps": 4, "num_stages": 4}, 163840),
        (gemm_chain.preset("g4"), {"block_q": 64, "block_kv": 64, "num_warps": 4, "num_stages": 2}, 163840),
        (
            gemm_chain.preset("g4"),
            {"block_q": 64, "block_kv": 64, "block_out": 64, "num_warps": 4, "num_stages": 3},
            155648,
        ),
        # The first product is summed up in tiles of its long K: the inner loop's operands and the outer one's share.
        (gemm_chain.preset("g6"), {"block_q": 64, "block_kv": 64, "num_warps": 4, "num_stages": 3}, 98304),
    ],
)
def test_as_triton_allocates(operator, options, allocated):
    candidate = choice("rolling_update", **options)
    nest = Nests.found_in(operator).of(candidate)[0]
    kernel = compile_choice(operator, candidate).htile
    assert nest.shared_bytes(candidate, 0) == allocated
    assert kernel_bytes(kernel, kernel.kernels[0]) == allocated


def test_descriptors_on_an_h200():
    """Seen on an H200: 128x128 in 3 stages took 229432 bytes, 128x64 in 3 stages 131128."""
    nest = Nests.found_in(ATTENTION).plain[0]
    options = {"block_q": 128, "loads": "descriptors", "num_warps": 8, "num_stages": 3}
    assert nest.shared_bytes(choice("rolling_update", **options, block_kv=128), 0) == pytest.approx(229432, abs=128)
    assert nest.shared_bytes(choice("rolling_update", **options, block_kv=64), 0) == pytest.approx(131128, abs=128)


def test_few_rows_need_one_buffer_less():
    assert [copies(stages, rows=32, num_warps=4) for stages in (1, 2, 3)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("operator", "options", "allocated"),
    [
        # Triton 3.6.0 for sm_90: rows that are too few for a group of warps, and rows without products.
        (attention.preset("softcap_pf", seq=512), {"block_q": 32, "block_kv": 256, "num_stages": 2}, 155648),
        (attention.preset("s6"), {"block_q": 32, "block_kv": 16, "num_stages": 4, "num_warps": 8}, 33792),
        (norms.l2_norm(rows=32, cols=2**15, dtype="float16"), {"block_q": 1, "block_kv": 4096, "loop_stages": 2}, 8208),
        (
            norms.l2_norm(rows=32, cols=2**15, dtype="float16"),
            {"block_q": 8, "block_kv": 1024, "loop_stages": 4},
            49280,
        ),
    ],
)
def test_few_rows_and_plain_rows(operator, options, allocated):
    estimate = Nests.found_in(operator).plain[0].shared_bytes(choice("rolling_update", **options), 0)
    assert estimate == pytest.approx(allocated, abs=128)


def test_a_kernel_without_a_product_takes_none():
    decode = choice("split_k_update", block_kv=64, splits=4)
    kernel = compile_choice(attention.causal(heads=2, q_len=1, kv_len=512, head_dim=64), decode).htile
    assert [kernel_bytes(kernel, k) for k in kernel.kernels] == [0, 0]
