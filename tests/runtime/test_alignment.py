"""Arguments that begin anywhere: views into larger tensors, for kernels whose tiles the copy engine brings."""

from __future__ import annotations

import pytest
import torch

import neptune_lab as nl
from neptune_lab.operators import attention

OP = attention.causal(heads=2, seq=64, head_dim=32)


def shifted(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """The same values, contiguous, beginning so many elements into a buffer."""
    buffer = torch.empty(tensor.numel() + elements, dtype=tensor.dtype)
    view = buffer[elements:].view(tensor.shape)
    return view.copy_(tensor)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("loads", ["pointers", "descriptors", "host_descriptors"])
def test_any_address_will_do(loads):
    kernel = nl.compile(OP, "rolling_update", block_q=32, block_kv=32, code=nl.CodeOptions(loads=loads), target="h200")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 64, 32).half() for _ in range(3))
    moved = shifted(q, 1), shifted(k, 3), shifted(v, 8)
    assert [t.data_ptr() % 16 for t in moved] == [2, 6, 0]
    assert torch.equal(kernel(*moved), kernel(q, k, v))
