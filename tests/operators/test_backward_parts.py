"""Parts of a backward pass: what each row has is computed before the nests that go along rows."""

from __future__ import annotations

import pytest
import torch

import neptune_lab as nl
from neptune_lab.operators import attention, backward


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seq", [16, 48, 100])
@pytest.mark.parametrize("sizes", [{}, {"block_q": 16}, {"block_q": 32, "block_kv": 16}], ids=str)
def test_gradients_of_keys_and_values_alone_are_one_nest(seq: int, sizes: dict[str, int]):
    op = attention.causal(batch=1, heads=2, seq=seq, head_dim=8, dtype="float32")
    kernel = nl.compile(backward(op, wrt=["k", "v"]), **sizes)
    assert len(kernel.triton.kernels) == 2
    assert kernel.relative_error() < 1e-5


def test_gradients_of_slopes_read_the_delta_of_a_row():
    slopes = torch.linspace(0.1, 0.4, 2)

    def alibi(score, b, h, q, kv):
        return score + slopes[h] * (kv - q)

    op = attention.general(1, 2, 70, 70, 8, alibi, None, "float32", None, kv_heads=2, empty_rows="zero", live=True)
    passes = backward(op)
    assert passes.parts[0] == ("d_lse",)
    kernel = nl.compile(passes)
    assert len(kernel.triton.kernels) == len(passes.parts) == 4
    assert kernel.relative_error() < 1e-4
