"""Tensors (batch, heads, length, width) as models hand them to attention: the same values in other places."""

from __future__ import annotations

from collections.abc import Callable

import torch

Layout = Callable[[torch.Tensor], torch.Tensor]


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """(batch, length, heads, width) in memory."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """The second of three tensors that a projection gives together: (batch, length, 3, heads, width) in memory."""
    together = tensor.transpose(1, 2)[:, :, None].repeat(1, 1, 3, 1, 1)
    return together[:, :, 1].transpose(1, 2)


def cached(tensor: torch.Tensor) -> torch.Tensor:
    """The beginning of a longer cache."""
    return torch.cat([tensor, torch.full_like(tensor, 7.0)], 2)[:, :, : tensor.shape[2]]


def one_sample(tensor: torch.Tensor) -> torch.Tensor:
    """The first sample for all."""
    return tensor[:1].expand(tensor.shape[0], -1, -1, -1)


def one_head(tensor: torch.Tensor) -> torch.Tensor:
    """The first head for all, of (batch, length, heads, width) in memory."""
    return transposed(tensor)[:, :1].expand(-1, tensor.shape[1], -1, -1)


def heads_first(tensor: torch.Tensor) -> torch.Tensor:
    """(heads, batch, length, width) in memory, with a gap after each row."""
    wide = torch.cat([tensor, torch.full_like(tensor, 7.0)], 3).transpose(0, 1).contiguous().transpose(0, 1)
    return wide[..., : tensor.shape[3]]


LAYOUTS: dict[str, Layout] = {
    "transposed": transposed,
    "packed": packed,
    "cached": cached,
    "one sample": one_sample,
    "one head": one_head,
    "heads first": heads_first,
}
