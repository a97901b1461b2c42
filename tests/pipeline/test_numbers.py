"""Emitted kernels, run (interpreter or GPU), against the float64 references."""

from __future__ import annotations

import by_name
import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.operators import attention, norms, softmax
from neptune_lab.runtime import call_on_arrays

TOLERANCE = 1e-3  # relative, Frobenius norm, fp16 inputs


# By day each width of heads, each pair of lengths and each template meet; at night every width meets every length.
BY_DAY = {(64, 128, 128), (80, 200, 77), (128, 77, 200)}
WIDTHS_AND_LENGTHS = [
    pytest.param(width, *lengths, marks=() if (width, *lengths) in BY_DAY else pytest.mark.nightly)
    for width in (64, 80, 128)
    for lengths in ((128, 128), (200, 77), (77, 200))
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize(("head_dim", "q_len", "kv_len"), WIDTHS_AND_LENGTHS)
def test_causal_attention(template, head_dim, q_len, kv_len):
    kernel = nl.compile(attention.causal(heads=2, q_len=q_len, kv_len=kv_len, head_dim=head_dim), template)
    for seed in range(2):
        assert kernel.relative_error(seed) < TOLERANCE


@pytest.mark.one_in(4)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_global_attention_on_sizes_that_do_not_divide(template, head_dim):
    kernel = nl.compile(attention.full(batch=2, heads=1, q_len=33, kv_len=77, head_dim=head_dim), template)
    assert max(kernel.relative_error(seed) for seed in range(3)) < TOLERANCE


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kv_len", [1, 64, 200, 1000])
def test_decode(kv_len):
    kernel = nl.compile(attention.causal(heads=3, q_len=1, kv_len=kv_len, head_dim=64), "split_k_update")
    assert [k.name for k in kernel.triton.kernels] == ["attention_causal_local", "attention_causal_combine"]
    assert max(kernel.relative_error(seed) for seed in range(3)) < TOLERANCE


def test_decode_takes_split_k_by_itself():
    kernel = nl.compile(attention.causal(heads=3, q_len=1, kv_len=1000, head_dim=64))
    assert [k.name for k in kernel.triton.kernels] == ["attention_causal_local", "attention_causal_combine"]
    assert kernel.remarks[0].startswith("split_k_update: 3 programs of one row leave most")


@pytest.mark.one_in(8)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize("q_len", [1, 5, 16])
def test_short_queries(template, q_len):
    kernel = nl.compile(attention.full(heads=2, q_len=q_len, kv_len=50, head_dim=64), template)
    assert kernel.relative_error() < TOLERANCE


@pytest.mark.one_in(2)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_rows_that_are_masked_in_their_first_tiles(template):
    """The running max is -inf for whole tiles there: exp(-inf - -inf) must not reach the sum."""

    def late_keys(b, h, q, kv):
        return kv >= 40

    kernel = nl.compile(attention.general(1, 2, 32, 64, 64, mask_mod=late_keys), template, block_q=16, block_kv=16)
    assert kernel.relative_error() < TOLERANCE


def test_fully_masked_rows_are_nan_as_in_the_definition():
    kernel = nl.compile(attention.causal(heads=1, q_len=48, kv_len=32, head_dim=64), block_q=16, block_kv=16)
    assert np.isnan(kernel.operator.reference(*kernel.operator.random_inputs(0).values())).any()
    assert kernel.relative_error() < TOLERANCE  # NaN in the same places, right elsewhere


@pytest.mark.nightly
def test_a_pasted_score_mod_and_mask_mod():
    def alibi(score, b, h, q, kv):
        return score - (q - kv) * 0.1

    def window(b, h, q, kv):
        return (q >= kv) & (q - kv <= 20)

    op = attention.general(2, 2, 70, 70, 64, score_mod=alibi, mask_mod=window)
    for template in ("rolling_update", "split_k_update"):
        assert nl.compile(op, template, block_q=16, block_kv=32).relative_error() < TOLERANCE


@pytest.mark.one_in(10)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize(("rows", "cols"), [(2, 4), (37, 100), (64, 256), (1, 1), (3, 130)])
def test_softmax_sums(template, rows, cols):
    assert nl.compile(softmax.figure1(rows, cols), template).relative_error() < 1e-6


def test_float32_inputs_stay_accurate():
    kernel = nl.compile(attention.causal(heads=1, seq=64, head_dim=64, dtype="float32"), block_q=32, block_kv=32)
    assert kernel.relative_error() < 1e-5


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("template", "options"), [("rolling_update", {}), ("split_k_update", {"splits": 3})])
def test_a_maximum_far_below_zero_at_first_does_not_overflow(template, options):
    """Early keys score near -200, where the first tile's repair factor exp(0 - m) would be infinite."""

    def steep(score, b, h, q, kv):
        return score + 1.0 * (kv - q)

    def causal(b, h, q, kv):
        return q >= kv

    op = attention.general(1, 1, 256, 256, 16, score_mod=steep, mask_mod=causal)
    kernel = by_name.compile(op, template, block_q=32, block_kv=32, **options)
    assert kernel.relative_error() < TOLERANCE


@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_tiny_and_zero_rows_of_a_norm(template):
    """The first maximum is far below 1, which the start value must not stand in for."""
    op = norms.l2_norm(4, 40, dtype="float32")
    x = op.random_inputs(0)["x"] * np.float32(1e-25)
    x[1] = 0
    x[2, :20] = 0
    (found,) = call_on_arrays(nl.compile(op, template, block_q=4, block_kv=8)._loaded, (x,))
    np.testing.assert_allclose(found, op.reference(x), rtol=1e-5)
