"""torch's PagedAttention: its converted mods and block masks over a cache of pages, beside attention without pages."""

from __future__ import annotations

import pytest
import torch
from attention_reference import DEVICE, causal, make_bias, reference, tensors
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

import neptune_lab as nl

BATCH, HEADS, LENGTH, DIM, PAGE = 2, 2, 64, 16, 16
PAGES = 11


@pytest.fixture(scope="module")
def paged():
    """The queries, keys and values, the manager of the pages, and both caches; pages are not in order."""
    q, k, v = tensors((BATCH, HEADS, LENGTH, DIM))
    manager = PagedAttention(PAGES, PAGE, BATCH, device=DEVICE)
    for until in (PAGE, 3 * PAGE, LENGTH):  # in turn, so that the pages of both samples alternate
        for sample in (1, 0):
            manager.reserve(torch.tensor(sample, device=DEVICE), torch.tensor(until, device=DEVICE))
    caches = [torch.full((1, HEADS, PAGES * PAGE, DIM), 9.0, device=DEVICE) for _ in range(2)]
    at = torch.arange(LENGTH, device=DEVICE).expand(BATCH, -1)
    manager.assign(torch.arange(BATCH, device=DEVICE), at, k, v, *caches)
    return (q, k, v), manager, caches


def before(mask: BlockMask, mask_mod, score_mod, paged) -> None:
    (q, k, v), manager, (k_cache, v_cache) = paged
    converted = manager.convert_logical_block_mask(mask)
    own = manager.get_score_mod(score_mod)
    found = nl.attention(q, k_cache, v_cache, own, block_mask=converted)
    assert (found - reference(q, k, v, score_mod, mask_mod)).abs().max() < 1e-5
    alone = nl.attention(q, k_cache, v_cache, own, mask_mod=manager.get_mask_mod(mask_mod))
    assert (alone - found).abs().max() < 1e-5


@pytest.mark.nightly
def test_causal(paged):
    mask = create_block_mask(causal, BATCH, None, LENGTH, LENGTH, device=DEVICE, BLOCK_SIZE=PAGE)
    before(mask, causal, None, paged)


@pytest.mark.nightly
def test_a_mask_by_sample_and_a_bias(paged):
    seen = torch.tensor([40, 64], device=DEVICE)

    def mask_mod(b, h, q, kv):
        return (q >= kv) & (kv < seen[b])

    mask = create_block_mask(mask_mod, BATCH, None, LENGTH, LENGTH, device=DEVICE, BLOCK_SIZE=PAGE)
    before(mask, mask_mod, make_bias(torch.tensor([0.5, 0.25], device=DEVICE)), paged)
