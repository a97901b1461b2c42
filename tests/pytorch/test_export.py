"""Calls that torch.export traces, each beside the same call outside of it, and arguments that torch.vmap maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_reference import DEVICE, causal
from torch.nn.attention.flex_attention import create_block_mask

import neptune_lab as nl
from neptune_lab.errors import LaunchError

LAST = torch.tensor([2, 0], device=DEVICE)
OFFSETS = torch.tensor([0, 2, 6], dtype=torch.int32, device=DEVICE)
TABLE = torch.tensor([[0, 3], [1, -1]], dtype=torch.int32, device=DEVICE)
LENGTHS = torch.tensor([6, 3], dtype=torch.int32, device=DEVICE)
CACHE = torch.randn(5, 4, 2, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
BLOCKS = create_block_mask(causal, None, None, 6, 6, device=DEVICE)

CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a captured tensor": (lambda q: nl.attention(q, q, q, mask_mod=lambda b, h, i, j: i + LAST[b] >= j), ()),
    "packed sequences": (lambda q, o: nl.attention(q[:1], q[:1], q[:1], mask_mod=causal, cu_seqlens_q=o), (OFFSETS,)),
    "a block mask": (lambda q: nl.attention(q, q, q, block_mask=BLOCKS), ()),
    "pages": (lambda q, t, n: nl.paged_attention(q, CACHE, CACHE, t, n, None, causal), (TABLE, LENGTHS)),
    "pages that the module has": (lambda q: nl.paged_attention(q, CACHE, CACHE, TABLE, LENGTHS), ()),
}


class Module(torch.nn.Module):
    def __init__(self, call: Callable[..., Any]):
        super().__init__()
        self.call = call

    def forward(self, *given: torch.Tensor) -> Any:
        return self.call(*given)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CALLS)
def test_an_exported_call_has_its_numbers(name):
    call, more = CALLS[name]
    q, other = torch.randn(2, 2, 2, 6, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    exported = torch.export.export(Module(call), (q, *more), strict=False).module()
    assert (exported(other, *more) - call(other, *more)).abs().max() < 1e-6


MAPPED = {
    "lengths": lambda q, one: nl.paged_attention(q, CACHE, CACHE, TABLE, LENGTHS * one),
    "page_table": lambda q, one: nl.paged_attention(q, CACHE, CACHE, TABLE * one, LENGTHS),
    "cu_seqlens_q": lambda q, one: nl.attention(q[:1], q[:1], q[:1], cu_seqlens_q=OFFSETS * one),
    "q_scale": lambda q, one: nl.attention(q, q, q, q_scale=one.float()),
}


@pytest.mark.parametrize("name", MAPPED)
def test_an_argument_that_vmap_maps_is_refused(name):
    q, ones = torch.randn(2, 2, 6, 16, device=DEVICE), torch.ones(2, dtype=torch.int32, device=DEVICE)
    with pytest.raises(LaunchError, match=r"inside torch\.vmap"):
        torch.vmap(lambda one: MAPPED[name](q, one))(ones)


@pytest.mark.nightly
def test_a_scale_that_a_graph_takes():
    torch._dynamo.reset()
    attend = torch.compile(nl.scaled_dot_product_attention, backend="eager", dynamic=True, fullgraph=True)
    q = torch.randn(1, 2, 6, 16, device=DEVICE)
    for scale in (0.25, 0.5):
        want = torch.nn.functional.scaled_dot_product_attention(q.double(), q.double(), q.double(), scale=scale)
        assert (attend(q, q, q, scale=scale) - want).abs().max() < 1e-5
    torch._dynamo.reset()
