"""Mods made of tensors: masks and biases that `scaled_dot_product_attention` and models of `transformers` give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

from neptune_lab.errors import LaunchError


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """The mask_mod that is aligned at the upper left: query i attends to the keys 0 to i."""
    return q >= kv


def causal_from(offset: int) -> Callable[..., Any]:
    """The mask_mod with which query i attends to the keys 0 to i + offset."""
    return (lambda b, h, q, kv: q + offset >= kv) if offset else causal


def offset_of(mask: CausalBias, q_len: int, kv_len: int) -> int:
    """By how many keys the diagonal of torch's causal bias is behind the first: query i attends to the keys 0 to
    i + offset.  Such a bias is a tensor whose memory holds nothing, so it must not be read.

    Raises:
        LaunchError: it is for other lengths.
    """
    lengths = mask.seq_len_q, mask.seq_len_kv
    if lengths != (q_len, kv_len):
        raise LaunchError(
            f"attn_mask is a causal bias for the lengths {lengths}; expected {(q_len, kv_len)}, those of query and key",
            help=f"make it with causal_lower_right{(q_len, kv_len)} or causal_upper_left{(q_len, kv_len)}",
        )
    return kv_len - q_len if mask.variant is CausalVariant.LOWER_RIGHT else 0


def element(tensor: torch.Tensor) -> Callable[..., Any]:
    """A mod that reads a tensor (batch, heads, q_len, kv_len); a dimension of 1 is the same everywhere.

    For a bool tensor it is a mask_mod, for floats a bias of `scored`.
    """
    one, two, three, four = (n != 1 for n in tensor.shape)

    def element_of(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return tensor[b if one else 0, h if two else 0, q if three else 0, kv if four else 0]

    return element_of


def scored(softcap: float | None, biases: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """The score_mod that limits scores to ±softcap, if there is one, and then adds the biases."""

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        for bias in biases:
            score = score + bias(b, h, q, kv)
        return score

    return score_mod


# The code of the functions that `element` and `scored` give.
_ELEMENT = element(torch.zeros(1, 1, 1, 1)).__code__  # type: ignore[attr-defined]
_SCORED = scored(None, ()).__code__  # type: ignore[attr-defined]


def reads_elements(mod: Any) -> bool:
    """Whether a mod only reads tensors at its query and key, as `element` and `scored` do: it compares no positions.

    >>> mask = element(torch.ones(1, 1, 8, 8, dtype=torch.bool))
    >>> reads_elements(mask), reads_elements(scored(2.0, (mask,))), reads_elements(causal)
    (True, True, False)
    """
    code: Any = getattr(mod, "__code__", None)
    if code is _SCORED:
        cells = dict(zip(code.co_freevars, mod.__closure__, strict=True))
        return all(map(reads_elements, cells["biases"].cell_contents))
    return mod is None or code is _ELEMENT


def unexpanded(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with 1 in place of every dimension that was expanded, along which all elements are one.

    A tensor that records gradients stays as it is: each of its elements has a gradient of its own.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        return tensor
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def broadcasts(tensor: torch.Tensor, whole: tuple[int, ...]) -> bool:
    """Whether the tensor broadcasts to the shape `whole`, without making it larger."""
    missing = len(whole) - tensor.ndim
    return missing >= 0 and all(n in (1, size) for n, size in zip(tensor.shape, whole[missing:], strict=True))


__all__ = [
    "CausalBias",
    "broadcasts",
    "causal",
    "causal_from",
    "element",
    "offset_of",
    "reads_elements",
    "scored",
    "unexpanded",
]
