"""Losses of labels that must exceed all others by a margin, with the values of PyTorch's kernels.

torch's own definitions have other gradients at the exact margin, keep NaN that its kernels skip, and count labels after
the last one of `multilabel_margin_loss` (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def _multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    label, x = target.reshape(-1, 1), torch.atleast_2d(input)
    rows, classes = x.shape
    if p not in (1, 2):
        raise ValueError(f"multi_margin_loss got p={p}, expected 1 or 2")
    if len(label) != rows or (weight is not None and weight.shape != (classes,)):
        shapes = ", ".join(str(tuple(t.shape)) for t in (input, target, weight) if t is not None)
        raise ValueError(f"multi_margin_loss got the shapes {shapes}, expected a label per row and a weight per class")
    z = margin - torch.gather(x, 1, label) + x
    counts = (z > 0) & (torch.arange(classes, device=x.device) != label)
    z = torch.where(counts, z, 0)
    losses = z if p == 1 else z * z
    losses = losses if weight is None else losses * weight[label]
    return _reduced((losses.sum(1) / classes).reshape(target.shape), size_average, reduce, reduction)


def _multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    if input.shape != target.shape or input.ndim not in (1, 2):
        shapes = f"{tuple(input.shape)} and {tuple(target.shape)}"
        raise ValueError(f"multilabel_margin_loss got the shapes {shapes}, expected a row of labels per row")
    classes = input.shape[-1]
    place = torch.arange(classes, device=input.device)
    end = torch.where(target < 0, place, classes).amin(-1, keepdim=True)  # the first -1 ends the labels
    given = place < end
    label = torch.where(given, target, 0)
    is_label = (given.unsqueeze(-1) & (label.unsqueeze(-1) == place)).any(-2)
    z = 1.0 - torch.gather(input, -1, label).unsqueeze(-1) + input.unsqueeze(-2)
    counts = (z > 0) & given.unsqueeze(-1) & ~is_label.unsqueeze(-2)
    losses = torch.where(counts, z, 0).sum((-2, -1)) / classes
    return _reduced(losses, size_average, reduce, reduction)


def _reduced(losses: Tensor, size_average: bool | None, reduce: bool | None, reduction: str) -> Tensor:
    """The losses of the rows, their mean or their sum; the two switches are torch's older names for these."""
    if size_average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction!r} is no reduction of losses, expected 'none', 'mean' or 'sum'")
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


MARGIN_LOSSES: Mapping[Any, Callable[..., Tensor]] = MappingProxyType(
    {F.multi_margin_loss: _multi_margin_loss, F.multilabel_margin_loss: _multilabel_margin_loss}
)

__all__ = ["MARGIN_LOSSES"]
