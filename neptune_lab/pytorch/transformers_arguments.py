"""Arguments that some layers of `transformers` pass to their attention: chosen keys, and what no kernel computes."""

from __future__ import annotations

import inspect
import re
import sys
from functools import lru_cache
from typing import Any

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.strict.console import class_of

NAME = "neptune_lab"
_ELSE = "model.set_attn_implementation('eager'), or 'sdpa' if the model has it"
# Tensors that say nothing of the scores, or what the mask holds already.
_HARMLESS = frozenset(("cu_seq_lens_k", "cu_seq_lens_q", "max_length_k", "max_length_q", "position_ids"))


def refuse_others(layer: torch.nn.Module, dropout: float, others: dict[str, Any]) -> None:
    """Raise LaunchError for what the kernel does not compute."""
    if dropout:
        raise LaunchError(
            f"attn_implementation='{NAME}' has no dropout, and the layer asks for {dropout}",
            help="model.eval(), or a dropout of 0.0 in the model's config: attention_dropout, or dropout_rate of T5",
        )
    if others.get("output_attentions") or _weights_are_collected():
        raise LaunchError(
            f"attn_implementation='{NAME}' has no weights to return",
            help="model.set_attn_implementation('eager') returns them",
        )
    if others.get("cache") is not None:
        raise LaunchError(
            f"attn_implementation='{NAME}' does not take {class_of(others['cache'])}",
            help="model.generate, with a dynamic or a static cache; for continuous batching, 'sdpa'",
        )
    for name, value in others.items():
        if isinstance(value, torch.Tensor) and name not in _HARMLESS and _passes(type(layer), name):
            raise LaunchError(
                f"the layer passes the tensor {name} {tuple(value.shape)} to its attention, which "
                f"attn_implementation='{NAME}' does not know, so that its numbers might differ",
                help=_ELSE,
            )


def _weights_are_collected() -> bool:
    """Whether the model collects its layers' weights; some models, such as GPT-2, do not tell their layers."""
    active = getattr(sys.modules.get("transformers.utils.output_capturing"), "_active_collector", None)
    collected = None if active is None else active.get()
    return any(name.endswith("attentions") for name in collected or ())


@torch.compiler.assume_constant_result  # Dynamo calls it once, while it traces
def _passes(layer: type, name: str) -> bool:
    """Whether the layer's own code passes an argument of this name; others are those that the model was called with."""
    return _in_code(layer, name)


@lru_cache(maxsize=1024)
def _in_code(layer: type, name: str) -> bool:
    try:
        return re.search(rf"\b{re.escape(name)}=", inspect.getsource(layer)) is not None
    except (OSError, TypeError):
        return True


def with_keys(mask: Any, indices: torch.Tensor, ordered: bool, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The mask of which each query keeps the chosen keys.

    Args:
        mask: bool, or floats that are added to the score; or None.
        indices: (batch, q_len, n) of keys; less than 0 for none.
        ordered: whether a mask of None is a causal one.
    """
    q_len, kv_len = query.shape[2], key.shape[2]
    chosen = _chosen(indices, kv_len).unsqueeze(1)
    if mask is None:
        places = torch.arange(kv_len, device=chosen.device)
        return chosen & (places <= places[:q_len, None]) if ordered and q_len > 1 else chosen
    if not isinstance(mask, torch.Tensor):
        raise LaunchError(f"the layer chooses keys by indices, beside {class_of(mask)}", help=_ELSE)
    if mask.dtype == torch.bool:
        return mask & chosen
    return mask.masked_fill(~chosen, -torch.inf)


def with_blocks(
    layer: torch.nn.Module,
    mask: Any,
    blocks: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    position_ids: torch.Tensor | None,
) -> torch.Tensor:
    """The mask of which each query keeps the chosen blocks of keys, which the layer's indexer makes.

    Args:
        blocks: (batch, groups, q_len, n) of blocks; less than 0 for none.
        position_ids: (batch, q_len); the last positions of the keys if None.
    """
    maker = getattr(getattr(layer, "indexer", None), "build_block_mask", None)
    if maker is None:
        raise LaunchError(
            f"the layer passes block_indices {tuple(blocks.shape)} to its attention, and has no indexer that makes a "
            "mask of them",
            help=_ELSE,
        )
    if position_ids is None:
        position_ids = torch.arange(key.shape[2] - query.shape[2], key.shape[2], device=key.device)[None]
    position_ids = (position_ids if position_ids.ndim > 1 else position_ids[None]).expand(query.shape[0], -1)
    made = maker(blocks, mask, key.shape[2], query.dtype, query.device, position_ids)
    return made if made.dtype == torch.bool else made == 0


def _chosen(indices: torch.Tensor, size: int) -> torch.Tensor:
    """(…, size), true at the indices; those below 0 fall into a last place that is left out."""
    indices = indices.long()
    places = torch.where(indices < 0, size, indices)
    shape = (*indices.shape[:-1], size + 1)
    return torch.zeros(shape, dtype=torch.bool, device=indices.device).scatter(-1, places, True)[..., :size]


__all__ = ["NAME", "refuse_others", "with_blocks", "with_keys"]
