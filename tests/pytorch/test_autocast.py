"""Attention inside torch.autocast takes the region's dtype, as torch's attention does."""

from __future__ import annotations

import pytest
import torch
from attention_reference import causal

import neptune_lab as nl
from neptune_lab.errors import LaunchError


def tensors(*dtypes: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(1, 2, 20, 8).to(dtype) for dtype in dtypes]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_dtypes_become_the_one_of_the_region(dtype: torch.dtype):
    q, k, v = tensors(torch.float32, torch.float32, dtype)
    with torch.autocast("cpu", dtype):
        outs = [
            nl.attention(q, k, v, mask_mod=causal),
            nl.attention(query=q, key=k, value=v, mask_mod=causal),
            nl.scaled_dot_product_attention(q, k, v, is_causal=True),
        ]
    expected = nl.attention(q.to(dtype), k.to(dtype), v, mask_mod=causal)
    assert all(torch.equal(out, expected) and out.dtype == dtype for out in outs)
    assert nl.attention(q, k, v.float(), mask_mod=causal).dtype == torch.float32


def test_a_float_mask_of_the_region():
    q, k, v = tensors(torch.float32, torch.float32, torch.bfloat16)
    mask = torch.randn(20, 20)
    with torch.autocast("cpu", torch.bfloat16):
        ours = nl.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert (ours - theirs).norm() < 1e-2 * theirs.norm()


@pytest.mark.nightly
def test_a_region_inside_of_a_graph_and_around_it():
    q, k, v = tensors(torch.float32, torch.float32, torch.float32)

    def attend(q, k, v):
        return nl.attention(q, k, v, mask_mod=causal)

    def inside(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return attend(q, k, v)

    expected = attend(*(t.bfloat16() for t in (q, k, v)))
    assert torch.equal(torch.compile(inside, fullgraph=True, backend="aot_eager")(q, k, v), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(torch.compile(attend, fullgraph=True, backend="aot_eager")(q, k, v), expected)


@pytest.mark.nightly
def test_the_gradient_has_the_dtype_of_the_tensor_and_the_cache_of_pages_that_of_the_region():
    q, k, v = tensors(torch.float32, torch.bfloat16, torch.bfloat16)
    q.requires_grad_()
    cache = torch.randn(4, 8, 2, 8)
    table, lengths = torch.tensor([[2, 0, 3]], dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
    with torch.autocast("cpu", torch.bfloat16):
        nl.attention(q, k, v).float().sum().backward()
        paged = nl.paged_attention(q.detach(), cache, cache, table, lengths)
    assert q.grad is not None
    assert q.grad.dtype == torch.float32
    assert paged.dtype == torch.bfloat16


def test_a_query_on_a_device_without_autocast_is_refused():
    q, k, v = tensors(*[torch.float32] * 3)
    for call in (nl.attention, nl.scaled_dot_product_attention):
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(LaunchError, match="meta"):
            call(q.to("meta"), k, v)
