"""Calls of every form in graphs of torch.compile: block masks, caches, 8 bits, further outputs and scales."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from attention_reference import DEVICE, causal
from graph_parts import SHAPE, drawn, error, expected, random
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

import neptune_lab as nl
from neptune_lab.pytorch.flex_attention import attention as attend


@pytest.mark.nightly
@pytest.mark.parametrize("made", ["argument", "outside", "inside"])
def test_block_masks(compile_whole, made):
    inputs = drawn((1, 2, 40, 16))
    block = partial(create_block_mask, B=1, H=1, Q_LEN=40, KV_LEN=40, device=DEVICE, BLOCK_SIZE=16)

    def window(width):
        return lambda b, h, q, kv: q - kv < width

    held = block(window(5))
    functions = {
        "argument": lambda q, k, v, mask, width: attend(q, k, v, block_mask=mask),
        "outside": lambda q, k, v, mask, width: attend(q, k, v, block_mask=held),
        "inside": lambda q, k, v, mask, width: attend(q, k, v, block_mask=block(window(width))),
    }
    whole = compile_whole(functions[made])
    for width in (5, 5 if made == "outside" else 20):
        found = whole(*inputs, block(window(width)), torch.tensor(width, device=DEVICE))
        assert error(found, expected(inputs, None, window(width))) < 1e-5


@pytest.mark.nightly
def test_the_lists_of_a_block_mask_decide(compile_whole):
    from torch.nn.attention.flex_attention import BlockMask

    inputs = drawn((1, 2, 32, 16))
    whole = compile_whole(lambda q, k, v, mask: attend(q, k, v, block_mask=mask))
    for listed in (0, 1):  # the only block of both rows, which is partial; nothing else is visible
        counts = torch.ones(1, 1, 2, dtype=torch.int32, device=DEVICE)
        indices = torch.tensor([[[[listed, 0], [listed, 0]]]], dtype=torch.int32, device=DEVICE)
        mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16, mask_mod=causal, seq_lengths=(32, 32))
        wanted = expected(inputs, None, lambda b, h, q, kv: (q >= kv) & (kv // 16 == listed))  # noqa: B023
        wanted = wanted.nan_to_num(0.0)
        assert error(whole(*inputs, mask), wanted) < 1e-5


@pytest.mark.nightly
def test_tensors_of_eight_bits(compile_whole):
    def quantized(x):
        scale = x.abs().amax((0, 2, 3)).float() / 448
        return (x / scale[:, None, None]).to(torch.float8_e4m3fn), scale

    def function(q, k, v):
        (k8, _), (v8, v_scale) = map(quantized, (k, v))
        return attend(q, k8, v8, mask_mod=causal, k_scale=0.5, v_scale=v_scale)

    inputs = drawn((1, 2, 32, 16))
    assert error(compile_whole(function)(*inputs), function(*inputs)) < 1e-5


@pytest.mark.nightly
def test_caches_of_pages(compile_whole):
    last, (k_cache, v_cache) = random(2, 4, 1, 16), random(2, 16, 8, 2, 16)
    pages = torch.randperm(16, device=DEVICE).to(torch.int32).view(2, 8)

    def function(q, k_cache, v_cache, pages, lengths, slopes):
        mod = lambda s, b, h, q, kv: s + slopes[h] * kv  # noqa: E731
        return nl.paged_attention(q, k_cache, v_cache, pages, lengths, score_mod=mod, return_lse=True)

    whole = compile_whole(function)
    for lengths in ([50, 17], [3, 64]):
        given = last, k_cache, v_cache, pages, torch.tensor(lengths, dtype=torch.int32, device=DEVICE), random(4)
        for found, wanted in zip(whole(*given), function(*given), strict=True):
            assert error(found, wanted) < 1e-5
    with pytest.raises(Exception, match="argument v_cache has shape"):
        whole(last, k_cache, v_cache[:, :4].contiguous(), pages, given[4], given[5])


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["bool", "float", "made"])
def test_masks_of_scaled_dot_product_attention(compile_whole, kind):
    inputs = drawn(SHAPE)
    plain = torch.nn.functional.scaled_dot_product_attention

    def run(attention, q, k, v, mask):
        return attention(q, k, v, attn_mask=torch.ones(16, 16, device=DEVICE).tril().log() if kind == "made" else mask)

    whole = compile_whole(partial(run, nl.scaled_dot_product_attention))
    for _ in range(2):
        mask = random(16, 16) if kind == "float" else random(16, 16) < 0.5
        q, k, v = inputs
        assert error(whole(q, k, v, mask), run(plain, q, k, v, mask)) < 1e-5


@pytest.mark.nightly
def test_further_outputs_and_groups(compile_whole):
    def function(q, k, v, bias):
        twice = bias * 2
        mod = lambda s, b, h, i, j: s + twice[h, i]  # noqa: E731
        out, aux = attend(q, k, v, score_mod=mod, enable_gqa=True, return_aux=AuxRequest(lse=True, max_scores=True))
        return out, aux.lse, aux.max_scores

    given = *drawn((1, 4, 16, 16), (1, 2, 16, 16)), random(4, 16)
    expected_of: Any = function
    for found, wanted in zip(compile_whole(function)(*given), expected_of(*given), strict=True):
        assert found.shape == wanted.shape
        assert error(found, wanted) < 1e-5


@pytest.mark.nightly
def test_a_scale_that_the_compiled_function_takes(compile_whole):
    q, k, v = torch.randn(3, 1, 1, 8, 4, device=DEVICE)
    compiled = compile_whole(lambda q, scale: nl.attention(q, k, v, scale=scale))
    for scale in (0.3, 1.5, -0.25):
        assert torch.allclose(compiled(q, scale), nl.attention(q, k, v, scale=scale), atol=1e-6)


@pytest.mark.nightly
def test_a_scale_that_is_a_tensor(compile_whole):
    q, k, v = torch.randn(3, 1, 1, 8, 4, device=DEVICE)
    scale, wanted = torch.tensor(0.3), nl.attention(q, k, v, scale=0.3)
    with pytest.raises(Exception, match="scale is a tensor in a compiled function"):
        compile_whole(lambda q, scale: nl.attention(q, k, v, scale=scale))(q, scale)
    compiled = torch.compile(lambda q, scale: nl.attention(q, k, v, scale=scale), backend="eager")
    assert torch.allclose(compiled(q, scale), wanted, atol=1e-6)
