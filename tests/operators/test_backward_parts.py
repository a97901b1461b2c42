"""Parts of a backward pass: what each row has is computed before the nests that go along rows."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.loop_ir.nodes import Load, Op, Var
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.walks import loads, variables
from neptune_lab.operators import attention, backward, training
from neptune_lab.operators.reverse_mode import assemble, partial_sums, parts
from neptune_lab.operators.reverse_mode.stages import Stage


@pytest.mark.one_in(9)
@pytest.mark.parametrize("seq", [16, 48, 100])
@pytest.mark.parametrize("sizes", [{}, {"block_q": 16}, {"block_q": 32, "block_kv": 16}], ids=str)
def test_gradients_of_keys_and_values_alone_are_one_nest(seq: int, sizes: dict[str, int]):
    op = attention.causal(batch=1, heads=2, seq=seq, head_dim=8, dtype="float32")
    kernel = nl.compile(backward(op, wrt=["k", "v"]), **sizes)
    assert len(kernel.triton.kernels) == 2
    assert kernel.relative_error() < 1e-5


@pytest.mark.nightly
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
    "pairs of samples": (lambda bias: lambda score, b, h, q, kv: score + bias[b, h, q, kv], (2, 2, 40, 40)),
    "pairs of all heads": (lambda bias: lambda score, b, h, q, kv: score * bias[q, kv], (40, 40)),
}


@pytest.mark.nightly
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", BIASES)
def test_gradients_of_biases_sum_what_the_nest_of_q_computes(name: str, batch: int):
    mod, shape = BIASES[name]
    bias = torch.linspace(-1, 1, prod(shape)).view(shape)
    op = attention.general(batch, 2, 40, 40, 8, mod(bias), None, "float32", empty_rows="zero", live=True)
    passes = backward(op)
    scores = [part for part in passes.parts if any(stage.startswith("qk") for stage in part)]
    assert len(scores) == 2, "scores are computed for q, and for k and v"
    assert "d_q" in scores[0], "a gradient of samples and queries is no gradient of pairs"
    assert nl.compile(passes, block_q=16, block_kv=16).relative_error() < 1e-5


def test_pairs_that_are_too_many_are_not_stored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parts, "MOST_STORED", 2 * 2 * 40 * 40 - 1)
    mod, shape = BIASES["pairs"]
    op = attention.general(2, 2, 40, 40, 8, mod(torch.zeros(shape)), None, "float32", empty_rows="zero", live=True)
    assert sum(any(stage.startswith("qk") for stage in part) for part in backward(op).parts) == 3


# Tensors that many scores read: their gradients are sums over samples and along one or both sides of the scores.
SUMS = {
    "slopes": (lambda x: lambda score, b, h, q, kv: score + x[h] * (kv - q) * 0.1, (3,)),
    "a temperature": (lambda x: lambda score, b, h, q, kv: score * x[0], (1,)),
    "a cap": (lambda x: lambda score, b, h, q, kv: x[0] * torch.tanh(score / x[0]), (1,)),
    "of queries": (lambda x: lambda score, b, h, q, kv: score * x[q], (24,)),
    "of keys": (lambda x: lambda score, b, h, q, kv: score + x[kv], (24,)),
    "of samples": (lambda x: lambda score, b, h, q, kv: score * x[b, h], (2, 3)),
    "of heads and queries": (lambda x: lambda score, b, h, q, kv: score * x[h, q], (3, 24)),
}


def with_sum(name: str, batch: int = 2, heads: int = 3, seq: int = 24, dtype: str = "float32") -> nl.Operator:
    mod, shape = SUMS[name]
    x = torch.linspace(0.5, 1.5, prod(shape)).view(shape)
    return attention.general(batch, heads, seq, seq, 8, mod(x), None, dtype, empty_rows="zero", live=True)


@pytest.mark.nightly
@pytest.mark.parametrize("wrt", [None, ["q", "x"], ["k", "x"], ["x"]], ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_sums_over_all_scores_are_sums_of_rows_in_the_nests_that_compute_them(name: str, wrt: list[str] | None):
    op = with_sum(name)
    bias = next(t.name for t in op.inputs if t.name not in ("q", "k", "v"))
    passes = backward(op, None if wrt is None else [bias if w == "x" else w for w in wrt])
    scores = [part for part in passes.parts if any(stage.startswith("qk") for stage in part)]
    apart = wrt is None or (wrt[0] == "k" and "queries" in name) or (wrt[0] == "q" and "keys" in name)
    assert len(scores) == (2 if apart else 1), "scores are computed along queries, and along keys"
    assert nl.compile(passes, block_q=16, block_kv=16).relative_error() < 1e-5


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("name", "most", "count"),
    [("slopes", 1, 2), ("slopes", 47, 2), ("slopes", 48, 1), ("a cap", 1, 3), ("a cap", 30, 2), ("of keys", 1, 2)],
)
def test_a_sum_of_partial_sums_is_the_sum(monkeypatch: pytest.MonkeyPatch, name: str, most: int, count: int):
    """In float64, with as many steps as there are dimensions and with fewer."""
    op = with_sum(name)
    monkeypatch.setattr(partial_sums, "MOST_AT_ONCE", most)
    passes = backward(op)
    steps = [stage for part in passes.parts for stage in part if "_of_rows" in stage]
    assert len(steps) == count
    monkeypatch.setattr(assemble, "with_partial_sums", lambda program, stages, results: (tuple(stages), {}))
    whole = backward(op)
    assert not any("_of_rows" in stage.name for stage in blocks(whole.program))
    arrays = [*whole.random_inputs(1).values()]
    for found, want in zip(passes.compute(*arrays), whole.compute(*arrays), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-12)


def test_partial_sums_are_drawn_as_parts_of_the_gradient():
    passes = training(with_sum("of keys"))
    origins = passes.derivation.origins
    (bias,) = (name for name in passes.wrt if name not in ("q", "k", "v"))
    steps = [stage for part in passes.backward.parts for stage in part if "_of_rows" in stage]
    assert steps
    assert all(origins[step].of == origins[f"d_{bias}"].of for step in steps)


@pytest.mark.nightly
def test_many_scores_are_added_up_in_programs_that_fit():
    """32 samples of 4096 queries: one program per head would hold 131,072 sums of rows."""
    op = attention.general(
        32, 16, 4096, 4096, 64, SUMS["slopes"][0](torch.zeros(16)), None, "bfloat16", empty_rows="zero", live=True
    )
    kernel = nl.compile(backward(op), target="h200", validate="none")
    assert len(kernel.triton.kernels) == 5
    assert [k.grid for k in kernel.triton.kernels][2] == (16, 32)


@pytest.mark.nightly
@pytest.mark.parametrize("wrt", [["q", "k", "v", "bias"], ["q", "bias"]], ids=str)
def test_diagonals_are_summed_where_neighbours_are_neighbours_in_memory(wrt: list[str]):
    """The nest of q stores a query's keys side by side; the sum of a diagonal goes along queries, so that neighbouring
    diagonals are neighbouring keys."""
    mod, shape = BIASES["relative"]
    bias = torch.zeros(shape)
    op = attention.general(2, 2, 40, 40, 8, mod(bias), None, "float32", empty_rows="zero", live=True)
    passes = backward(op, wrt)
    stages = {block.name: block for block in blocks(passes.program)}
    (summed,) = (read for read in loads(stages["d_bias"].body.value) if read.buffer == "d_bias_of_score")
    folded = next(it.name for it in stages["d_bias"].iters if it.kind == "reduce")
    assert summed.indices[-2] == Var(folded)
    assert len(variables(summed.indices[-1])) == 2
    kernel = nl.compile(passes)
    assert kernel.relative_error() < 1e-5


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("dtype", "of_bias", "stored"),
    [("bfloat16", "bfloat16", "bfloat16"), ("bfloat16", "float32", "float32"), ("float16", "float16", "float32")],
)
def test_pairs_are_stored_in_as_many_bits_as_the_gradient_needs(dtype: str, of_bias: str, stored: str):
    mod, shape = BIASES["relative"]
    bias = torch.zeros(shape, dtype=getattr(torch, of_bias))
    op = attention.general(2, 2, 40, 40, 16, mod(bias), None, dtype, empty_rows="zero", live=True)
    kernel = nl.compile(backward(op))
    pairs = [b for b in kernel.htile.tensors if b.space == "global" and b.shape == (2, 2, 40, 40)]
    assert [b.dtype for b in pairs] == [stored]
    assert kernel.relative_error() < 1e-2


def test_what_a_large_term_reads_is_found_once_and_by_the_nodes_that_differ():
    """Each stage is asked for every other one; a term in which each value is used twice doubles when it is walked."""
    term = Load("x", (Var("i"),))
    for _ in range(60):
        term = Op("mul", (term, term))
    stage = Stage("y", (("i", 4),), (), None, term, "float32")
    assert stage.reads == {"x"}
    assert stage.reads is stage.reads
