"""Parts of a backward pass: what each row has is computed before the nests that go along rows."""

from __future__ import annotations

from math import prod

import pytest
import torch

import neptune_lab as nl
from neptune_lab.operators import attention, backward
from neptune_lab.operators.reverse_mode import parts


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


# Biases by how they are read, and the results of the part that computes scores for the gradient of q.
BIASES = {
    "relative": (lambda bias: lambda score, b, h, q, kv: score + bias[h, q - kv + 39], (2, 80)),
    "pairs": (lambda bias: lambda score, b, h, q, kv: score + bias[h, q, kv], (2, 40, 40)),
    "pairs of all heads": (lambda bias: lambda score, b, h, q, kv: score * bias[q, kv], (40, 40)),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", BIASES)
def test_gradients_of_biases_sum_what_the_nest_of_q_computes(name: str, batch: int):
    mod, shape = BIASES[name]
    bias = torch.linspace(-1, 1, prod(shape)).view(shape)
    op = attention.general(batch, 2, 40, 40, 8, mod(bias), None, "float32", empty_rows="zero", live=True)
    passes = backward(op)
    scores = [part for part in passes.parts if any(stage.startswith("qk") for stage in part)]
    assert len(scores) == 2, "scores are computed for q, and for k and v"
    assert nl.compile(passes, block_q=16, block_kv=16).relative_error() < 1e-5


def test_pairs_that_are_too_many_are_not_stored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parts, "MOST_STORED", 2 * 2 * 40 * 40 - 1)
    mod, shape = BIASES["pairs"]
    op = attention.general(2, 2, 40, 40, 8, mod(torch.zeros(shape)), None, "float32", empty_rows="zero", live=True)
    assert sum(any(stage.startswith("qk") for stage in part) for part in backward(op).parts) == 3
