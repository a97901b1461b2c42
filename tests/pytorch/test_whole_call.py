"""The arguments that FlexAttention takes and few calls have: names, options, dtypes, one batch of keys for all."""

from __future__ import annotations

import warnings

import pytest
import torch
from attention_reference import DEVICE, causal, flex, reference, tensors

import neptune_lab as nl
from neptune_lab.errors import LaunchError, ScheduleError
from neptune_lab.operators import attention as operators
from neptune_lab.pytorch import flex_attention, warned


def bias(score, b, h, q, kv):
    return score + 0.1 * (kv - q)


def test_positions_and_names_are_those_of_flex_attention(all_compilations):
    q, k, v = tensors((1, 4, 16, 16), (1, 2, 24, 16))
    expected = nl.attention(q, k, v, score_mod=bias, scale=0.3, enable_gqa=True)
    assert (expected - reference(q, k, v, bias, scale=0.3)).abs().max() < 1e-5
    for found in (
        nl.attention(q, k, v, bias, None, 0.3, True, False, None),
        nl.attention(query=q, key=k, value=v, score_mod=bias, scale=0.3, enable_gqa=True),
        nl.attention(q, k, value=v, score_mod=bias, scale=0.3, enable_gqa=True, kernel_options={}, return_aux=None),
    ):
        assert torch.equal(found, expected)
    assert len(all_compilations) == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtypes", ["hff", "fhb", "bhb", "hhf"])
def test_tensors_of_several_dtypes(dtypes, monkeypatch):
    monkeypatch.setattr(warned, "_warned", set())
    named = {"h": torch.float16, "f": torch.float32, "b": torch.bfloat16}
    q, k, v = (t.to(named[d]) for t, d in zip(tensors((1, 2, 16, 16), (1, 2, 24, 16)), dtypes, strict=True))
    with pytest.warns(UserWarning, match="attention converts q, k and v .* to torch.float32 at each call") as told:
        out = nl.attention(q, k, v, mask_mod=causal)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(nl.attention(q, k, v, mask_mod=causal), out)
    assert out.dtype == q.dtype
    tolerance = {torch.float16: 1e-3, torch.float32: 1e-5, torch.bfloat16: 1e-2}[q.dtype]
    assert (out - flex(q, k, v, None, causal)).abs().max() < 2 * tolerance
    assert (out - reference(q, k, v, None, causal)).abs().max() < tolerance


def test_wider_keys_keep_their_values():
    q, k, v = tensors((1, 1, 16, 16))
    k *= 1e6  # beyond float16
    out = nl.attention(q.half(), k, v, scale=1e-6)
    assert (out - reference(q.half(), k, v, scale=1e-6)).abs().max() < 1e-3


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kv", [(1, 2, 24, 16), (1, 4, 24, 16), (1, 2, 300, 16)])
@pytest.mark.parametrize("q_len", [1, 24])
def test_one_batch_of_keys_is_not_repeated(kv, q_len):
    q, k, v = tensors((3, 4, q_len, 16), kv)
    shift = torch.tensor([0.5, -1.0, 2.0], device=DEVICE)

    def by_sample(score, b, h, q, kv):
        return score + shift[b] * kv % 3

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = nl.attention(q, k, v, by_sample, enable_gqa=True, mask_mod=lambda b, h, q, kv: q + b + 2 >= kv)
    repeated = (t.expand(3, -1, -1, -1) for t in (k, v))
    assert (out - reference(q, *repeated, by_sample, lambda b, h, q, kv: q + b + 2 >= kv)).abs().max() < 1e-5
    found = next(reversed(flex_attention._kernels.values()))
    assert [t.shape[0] for t in found.kernel.spec.inputs[:3]] == [3, 1, 1]


@pytest.mark.nightly
def test_an_operator_for_one_batch_of_keys():
    op = operators.general(3, 2, 8, 8, 4, dtype="float32", kv_batch=1)
    assert [t.shape[0] for t in op.inputs] == [3, 1, 1]
    assert nl.compile(op).relative_error() < 1e-5
    assert operators.general(3, 2, 8, 8, 4, kv_batch=3).params == operators.general(3, 2, 8, 8, 4).params
    with pytest.raises(nl.errors.DefinitionError, match=r"kv_batch=2: expected 1 or batch=3"):
        operators.general(3, 2, 8, 8, 4, kv_batch=2)


@pytest.mark.nightly
def test_our_options_are_used(all_compilations):
    q, k, v = tensors((1, 2, 64, 16))
    plain = nl.attention(q, k, v, mask_mod=causal)
    for options in ({"block_q": 16, "block_kv": 32}, {"template": "split_k_update", "splits": 2, "num_warps": 2}):
        for _ in range(2):
            out = nl.attention(q, k, v, mask_mod=causal, kernel_options=options)
        assert (out - plain).abs().max() < 1e-5
    texts = [kernel.kernel.spec.text for kernel in flex_attention._kernels.values()]
    assert len(set(texts)) == len(texts) == len(all_compilations) == 3
    assert [text.count("@triton.jit\ndef attention") for text in texts] == [1, 1, 2]


@pytest.mark.nightly
def test_options_of_flex_attention_are_ignored_with_a_word(all_compilations, monkeypatch):
    monkeypatch.setattr(warned, "_warned", set())
    q, k, v = tensors((1, 1, 16, 16))
    theirs = {"BLOCK_M": 64, "fwd_num_stages": 2, "FORCE_USE_FLEX_ATTENTION": True, "kpack": 2}
    with pytest.warns(UserWarning, match="ignores BLOCK_M, fwd_num_stages, FORCE_USE_FLEX_ATTENTION, kpack") as told:
        out = nl.attention(q, k, v, kernel_options=theirs)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nl.attention(q, k, v, kernel_options=theirs)
    assert torch.equal(out, nl.attention(q, k, v))
    assert len(all_compilations) == 1
    monkeypatch.setattr(warned, "_warned", set())
    torch._dynamo.reset()
    in_a_graph = torch.compile(
        lambda q, k, v: nl.attention(q, k, v, kernel_options=theirs), backend="eager", fullgraph=True
    )
    with pytest.warns(UserWarning, match="ignores BLOCK_M"):
        assert torch.equal(out, in_a_graph(q, k, v))
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"kernel_options": {"blok_q": 64}}, ScheduleError, r"blok_q(.|\n)*block_q"),
        ({"kernel_options": {"block_q": 3.5}}, LaunchError, r"'block_q': 3.5; expected a name, and a number"),
        ({"kernel_options": {7: 64}}, LaunchError, r"kernel_options has 7: 64; expected a name"),
        ({"kernel_options": ["block_q"]}, LaunchError, r"kernel_options is a list; expected a dict"),
        ({"kernel_options": {"block_q": 0}}, ScheduleError, "block_q"),
        ({"return_lse": 1}, LaunchError, "return_lse=1: expected True or False"),
        ({"return_aux": True}, LaunchError, r"return_aux is a bool; expected an AuxRequest\n.*AuxRequest\(lse=True\)"),
        ({"block_mask": object()}, LaunchError, r"block_mask is an object; expected a BlockMask\n.*create_block_mask"),
        ({"query": torch.ones(1)}, LaunchError, "q and query, two names of one tensor"),
        ({"is_causal": True}, LaunchError, r"is_causal\n.*scaled_dot_product_attention.*q >= kv"),
        ({"mask": None}, LaunchError, r"no argument 'mask'\n.*mask_mod"),
    ],
)
def test_refusals(options, error, match):
    with pytest.raises(error, match=match):
        nl.attention(*tensors((1, 1, 16, 16)), **options)


def test_float64_is_refused_for_each_tensor():
    q, k, v = tensors((1, 1, 16, 16))
    for given, name in (((q.double(), k, v), "q"), ((q, k.double(), v), "k"), ((q, k, v.double()), "v")):
        with pytest.raises(
            LaunchError, match=rf"argument {name} has dtype torch.float64(.|\n)*{name}.to\(torch.float32"
        ):
            nl.attention(*given)
