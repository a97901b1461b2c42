"""What `nl.attention` returns beside its output: the log-sum-exp and the largest score of each query."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex_module
from attention_reference import DEVICE, causal, reference, tensors
from by_turns import in_turn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.operators import attention as operators

BOTH = AuxRequest(lse=True, max_scores=True)


def scores(q: Any, k: Any, score_mod: Any = None, mask_mod: Any = None) -> torch.Tensor:
    """The scores after the mods, in float64."""
    positions = (torch.arange(n, device=q.device) for n in (*q.shape[:3], k.shape[2]))
    b, h, i, j = torch.meshgrid(*positions, indexing="ij")
    score = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT * q.shape[3] ** -0.5
    score = score if score_mod is None else score_mod(score, b, h, i, j)
    return score if mask_mod is None else score.masked_fill(~mask_mod(b, h, i, j), -torch.inf)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-6) -> None:
    """The same infinities and NaN, and close elsewhere, relative to numbers above 1."""
    assert found.dtype == torch.float32
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    assert torch.equal(found[found.isinf()].double(), expected[expected.isinf()])
    differences = ((found - expected).abs() / expected.abs().clamp(min=1))[expected.isfinite()]
    assert differences.numel() == 0 or differences.max() < tolerance


CASES = {
    "prefill": ((2, 4, 40, 16), (2, 2, 56, 16), None, causal),
    "a decoded query, in splits": ((2, 4, 1, 16), (2, 2, 900, 16), lambda s, b, h, q, kv: s * 3 - 40.0 * h, None),
    "one batch of keys": ((3, 2, 20, 16), (1, 2, 24, 16), None, lambda b, h, q, kv: kv <= q + b),
    "empty rows": ((1, 2, 40, 16), (1, 2, 40, 16), None, lambda b, h, q, kv: (kv < q - 3) & (h == 1)),
    "large scores": ((1, 1, 16, 16), (1, 1, 48, 16), lambda s, b, h, q, kv: s * 1e4, None),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("dtype", "case"), in_turn([torch.float32, torch.float16], CASES, every=2))
def test_both_beside_float64(case, dtype):
    q_shape, kv_shape, score_mod, mask_mod = CASES[case]
    q, k, v = tensors(q_shape, kv_shape, dtype)
    out, aux = nl.attention(q, k, v, score_mod, mask_mod=mask_mod, enable_gqa=True, return_aux=BOTH)
    expected = scores(q, k, score_mod, mask_mod)
    close(aux.lse, expected.logsumexp(-1).masked_fill(expected.isneginf().all(-1), -torch.inf))
    close(aux.max_scores, expected.amax(-1))
    plain = nl.attention(q, k, v, score_mod, mask_mod=mask_mod, enable_gqa=True)
    assert (out - plain).abs().max() < (1e-5 if dtype == torch.float32 else 2e-3)


@pytest.mark.nightly
def test_the_forms_of_the_result(all_compilations):
    q, k, v = tensors((1, 1, 16, 16))
    expected = scores(q, k).logsumexp(-1)
    out, lse = nl.attention(q, k, v, return_lse=True)
    close(lse, expected)
    _, aux = nl.attention(q, k, v, return_aux=AuxRequest(lse=True))
    assert torch.equal(aux.lse, lse)
    assert aux.max_scores is None
    _, aux = nl.attention(q, k, v, return_aux=AuxRequest(max_scores=True))
    assert aux.lse is None
    close(aux.max_scores, scores(q, k).amax(-1))
    alone, aux = nl.attention(q, k, v, return_aux=AuxRequest())
    assert isinstance(alone, torch.Tensor)
    assert (aux.lse, aux.max_scores) == (None, None)
    assert (out - alone).abs().max() < 1e-5
    assert len(all_compilations) == 3  # with lse, with max_scores, and with neither
    with pytest.raises(LaunchError, match="got return_lse and return_aux"):
        nl.attention(q, k, v, return_lse=True, return_aux=AuxRequest(lse=True))


@pytest.mark.filterwarnings("ignore:return_lse is deprecated")
def test_the_log_sum_exp_is_flex_attentions(monkeypatch):
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    q, k, v = tensors((1, 2, 40, 16))

    def late(b, h, q, kv):
        return q > kv + 3

    mask = create_block_mask(late, None, None, 40, 40, device=DEVICE, BLOCK_SIZE=16)
    out, lse = flex_module.flex_attention(q, k, v, block_mask=mask, return_lse=True)
    found, found_lse = nl.attention(q, k, v, block_mask=mask, return_lse=True)
    assert torch.equal(found_lse.isneginf(), lse.isneginf())
    assert lse.isneginf().any()
    assert (found_lse - lse).nan_to_num().abs().max() < 2e-6
    assert (found - out).abs().max() < 2e-6


@pytest.mark.nightly
def test_rows_with_nan_and_infinities():
    """Where a score is +inf, lse is NaN, as in FlexAttention's compiled form; its eager form has +inf."""
    q, k, v = tensors((1, 3, 8, 16), (1, 3, 40, 16))
    odd = torch.tensor([float("nan"), float("inf"), float("-inf")], device=DEVICE)

    def put(score, b, h, q, kv):
        return torch.where(kv == q, odd[h], score)

    _, aux = nl.attention(q, k, v, put, return_aux=BOTH)
    assert aux.lse[0, :2].isnan().all()
    assert aux.max_scores[0, 0].isnan().all()
    assert (aux.max_scores[0, 1] == torch.inf).all()
    expected = scores(q, k, put)[0, 2]
    close(aux.lse[0, 2], expected.logsumexp(-1))
    close(aux.max_scores[0, 2], expected.amax(-1))


@pytest.mark.nightly
@pytest.mark.parametrize("schedule", [("rolling_update", {}), ("split_k_update", {"splits": 3})])
def test_the_operator_is_checked_natively_and_stays_one_loop(schedule):
    template, options = schedule
    op = operators.general(1, 2, 12, 48, 8, mask_mod=causal, dtype="float32", return_lse=True, return_max=True)
    assert [t.name for t in op.outputs] == ["out", "lse", "max_scores"]
    kernel = nl.compile(op, template, config=nl.SplitKConfig(**options) if options else None, validate="full")
    assert kernel.validated is not None
    kernels = kernel.source.count("@triton.jit\ndef attention")
    assert kernels == (1 if template == "rolling_update" else 2)
    assert kernel.relative_error() < 1e-5


@pytest.mark.nightly
def test_in_a_graph():
    torch._dynamo.reset()
    q, k, v = tensors((1, 1, 16, 16))

    def model(q, k, v, options):
        out, aux = nl.attention(q * 2, k, v, mask_mod=causal, return_aux=BOTH, kernel_options=options)
        _, lse = nl.attention(q * 2, k.half(), v, mask_mod=causal, return_lse=True)
        return out + 1, aux.lse * 2, aux.max_scores, lse

    compiled = torch.compile(model, backend="eager", fullgraph=True)
    expected = scores(q * 2, k, None, causal)
    for options in ({"block_q": 16}, {"template": "split_k_update", "splits": 2}):
        out, twice, largest, lse = compiled(q, k, v, options)
        assert (out - 1 - reference(q * 2, k, v, None, causal)).abs().max() < 1e-5
        close(twice / 2, expected.logsumexp(-1))
        close(largest, expected.amax(-1))
        assert (lse - expected.logsumexp(-1)).abs().max() < 1e-2
    torch._dynamo.reset()
