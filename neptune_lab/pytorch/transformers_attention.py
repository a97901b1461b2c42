"""`register_attention`: attn_implementation="neptune_lab" for the models of `transformers`.

A model of `transformers` calls a function for each attention layer, with the mask that another function
(`transformers_masks`) made once per forward pass; both are looked up by the name of the implementation.
"""

from __future__ import annotations

from typing import Any

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch.flex_attention import attention
from neptune_lab.pytorch.masks import broadcasts, causal, element, scored, unexpanded
from neptune_lab.pytorch.transformers_arguments import NAME, refuse_others, with_blocks, with_keys
from neptune_lab.pytorch.transformers_masks import interface_mask, none_is_causal


def register_attention() -> None:
    """Registers this package's attention with `transformers`, under the name "neptune_lab".

        nl.register_attention()
        model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="neptune_lab")

    Every attention layer of a model then calls `attention`, with the layer's mask (causal, windows, padding,
    packed sequences, static caches), its grouped heads, soft cap (Gemma 2), position bias (T5) and sinks (GPT-OSS,
    from the log-sum-exp of the kernel).  A cache that grows has two kernels.  Rows of padding, which see no
    key, are 0.  Calling this again changes nothing.

    Raises:
        LaunchError: `transformers` is not installed, or has no interface for attention (it has since 4.56).
    """
    try:
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.modeling_utils import AttentionInterface
    except ImportError as error:
        raise LaunchError(
            f"register_attention needs transformers 4.56 or later: {error}", help="pip install 'transformers>=4.56'"
        ) from error
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, interface_mask)
    from neptune_lab.pytorch.transformers_classes import register_classes

    register_classes()


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    block_indices: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """One layer's attention, as `transformers` calls it.

    Args:
        module: the layer; `is_causal` is read from it if it is not given.
        query: (batch, heads, q_len, head_dim).
        key, value: (batch, kv_heads, kv_len, head_dim).
        attention_mask: bool, or floats that are added to the score, of a shape that broadcasts to (batch, heads, q_len,
            kv_len); a torch BlockMask; or None: causal from the upper left if there are several queries, the layer says
            that it is causal, and `interface_mask` gives its model None in place of causal masks.
        scaling: factor of the scores; 1/sqrt(head_dim) if None.
        dropout: 0.
        softcap: a score becomes softcap * tanh(score / softcap), before masks and biases.
        position_bias: added to the score, of a shape that broadcasts to (batch, heads, q_len, kv_len).
        s_aux: (heads,) the logit of each head's sink, a key without a value.
        sinks: (batch, heads, q_len, 1) the logit of each query's sink.
        indices: (batch, q_len, n) the keys that each query sees, of those that the mask lets it see.
        block_indices: (batch, groups, q_len, n) the blocks of keys that each query sees; the layer's indexer makes
            a mask of them.
        others: arguments of other implementations, which the mask already holds (sliding_window, position_ids, ...).

    Returns:
        (batch, q_len, heads, v_head_dim), contiguous; and None, in place of the weights.

    Raises:
        LaunchError: dropout, weights, a paged cache or a tensor that is not known are given; or as in `attention`.
    """
    refuse_others(module, dropout, others)
    ordered = bool(is_causal if is_causal is not None else getattr(module, "is_causal", False))
    if attention_mask is None and ordered:
        ordered = none_is_causal(getattr(module, "config", None))
    if indices is not None:
        attention_mask = with_keys(attention_mask, indices, ordered, query, key)
    if block_indices is not None:
        attention_mask = with_blocks(module, attention_mask, block_indices, query, key, others.get("position_ids"))
    block_mask, mask_mod, added = None, None, []
    if attention_mask is None:
        mask_mod = causal if ordered and query.shape[2] > 1 else None
    elif not isinstance(attention_mask, torch.Tensor):
        block_mask = attention_mask
    elif attention_mask.dtype == torch.bool:
        mask_mod = element(_with_four_dimensions("attention_mask", attention_mask, query, key))
    else:
        added.append(element(_with_four_dimensions("attention_mask", attention_mask, query, key)))
    if position_bias is not None:
        added.append(element(_with_four_dimensions("position_bias", position_bias, query, key)))
    score_mod = None if softcap is None and not added else scored(softcap, tuple(added))
    found = attention(
        query,
        key,
        value,
        score_mod,
        block_mask,
        scaling,
        query.shape[1] != key.shape[1],
        s_aux is not None or sinks is not None,
        mask_mod=mask_mod,
    )
    if s_aux is not None or sinks is not None:
        out, lse = found
        logits = s_aux.float()[:, None] if s_aux is not None else 0.0
        logits = logits if sinks is None else sinks.float()[..., 0]
        found = (out * torch.sigmoid(lse - logits)[..., None]).to(out.dtype)
    return found.transpose(1, 2).contiguous(), None


def _with_four_dimensions(name: str, tensor: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The tensor with four dimensions; LaunchError if it does not broadcast to the scores."""
    whole = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if not broadcasts(tensor, whole):
        raise LaunchError(
            f"{name} has shape {tuple(tensor.shape)}; expected one that broadcasts to {whole}, (batch, heads, q_len, "
            "kv_len)",
            help="give the model a mask (batch, kv_len), of which it makes the layer's mask",
        )
    tensor = unexpanded(tensor)
    return tensor.reshape((1,) * (4 - tensor.ndim) + tuple(tensor.shape))


__all__ = ["attention_forward", "register_attention"]
