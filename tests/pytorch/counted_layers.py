"""The layers of models of transformers that call this package's attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import neptune_lab as nl
from neptune_lab.pytorch import transformers_attention


def defined(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score_mod: Any, block_mask: Any, scale: Any, gqa: bool,
    lse: bool, mask_mod: Any,
) -> Any:  # fmt: skip
    """`attention` by its definition, in the dtype of its arguments."""
    assert block_mask is None
    assert gqa == (q.shape[1] != k.shape[1])
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    score = q @ k.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    places = torch.meshgrid(*(torch.arange(n) for n in score.shape), indexing="ij")
    score = score if score_mod is None else score_mod(score, *places)
    score = score if mask_mod is None else score.masked_fill(~mask_mod(*places), -torch.inf)
    sums = score.logsumexp(-1)
    out = (score - sums[..., None]).exp().nan_to_num() @ v
    return (out, sums) if lse else out


def counted_layers(monkeypatch: pytest.MonkeyPatch, by_definition: bool = False) -> Iterator[list[Any]]:
    """For a fixture: the layers that called our attention; a model that falls back to another one would agree with
    itself.

    Args:
        by_definition: the definition takes the place of the kernel.
    """
    found: list[Any] = []
    ours = transformers_attention.attention_forward

    def counted(module: Any, *args: Any, **named: Any) -> Any:
        found.append(module)
        return ours(module, *args, **named)

    if by_definition:
        monkeypatch.setattr(transformers_attention, "attention", lambda *a, mask_mod: defined(*a, mask_mod=mask_mod))
    monkeypatch.setattr(transformers_attention, "attention_forward", counted)
    nl.register_attention()
    yield found
    monkeypatch.undo()
    nl.register_attention()
