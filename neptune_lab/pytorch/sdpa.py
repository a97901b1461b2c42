"""`scaled_dot_product_attention`: the arguments of torch's function of this name, for kernels of this compiler."""

from __future__ import annotations

import re
from math import lcm, prod
from typing import Any

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch.arguments import Shape, checked_scale, device_of
from neptune_lab.pytorch.autocast import under_autocast
from neptune_lab.pytorch.empty import recorded
from neptune_lab.pytorch.flex_attention import attention
from neptune_lab.pytorch.masks import CausalBias, broadcasts, causal_from, element, offset_of, scored, unexpanded
from neptune_lab.pytorch.refusals import refuse_layout
from neptune_lab.pytorch.traced import settled
from neptune_lab.runtime.subclasses import EXPORTED, refuse_jit_trace
from neptune_lab.strict.console import class_of, shown
from neptune_lab.strict.values import check_switch

_NAMES = {"q": "query", "k": "key", "v": "value"}


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention with the arguments of torch.nn.functional.scaled_dot_product_attention, in one kernel.

        score = scale * query @ key.mT, + attn_mask if that holds floats, and -inf where a bool attn_mask is False
        out = softmax(score) @ value

    Numbers are torch's, to the accuracy of `attention`, which compiles the kernel and has the same limits (one
    dtype of float16, bfloat16 or float32).  As in torch, the row of a query that attends to no key is 0,
    for a bool mask and for one of -inf.

    Args:
        query: (..., heads, L, E), or (L, E); `...` is any number of batch dimensions.
        key: (..., kv_heads, S, E).  Batch dimensions and heads of 1 are broadcast, as in torch; if only key and value
            have them, without copies.
        value: (..., kv_heads, S, Ev).
        attn_mask: a tensor that broadcasts to (..., heads, L, S): bool, true where a query attends to a key; or
            float32 or query's dtype, added to the score.  The kernel reads it at each call: new values need no
            compilation, a new shape does.  Dimensions that were expanded are read without copies, unless the mask
            records gradients: each element has its own.  Or torch's `causal_upper_left(L, S)` or
            `causal_lower_right(L, S)`, from torch.nn.attention.bias.
        dropout_p: 0; there is no dropout.
        is_causal: query i attends to the keys 0 to i, also if L and S differ: torch aligns the mask at the upper left,
            so a single query attends to the first key only.  Not together with attn_mask.
        scale: factor of the scores; 1/sqrt(E) if None.
        enable_gqa: lets kv_heads be a divisor of heads; query head h reads head h // (heads // kv_heads).  If key and
            value have different numbers of heads, the fewer are copied.

    Returns:
        (..., heads, L, Ev), of query's dtype, its dimensions in the order in which query has them in memory, as
        torch's.

    Raises:
        LaunchError: an argument has a type, shape, dtype or device that is not supported.
        DefinitionError: `scale` is not a finite number.
        ScheduleError, TileError, EmitError: a stage of the compiler refused.
    """
    if torch.compiler.is_dynamo_compiling():
        is_causal, enable_gqa = settled(is_causal), settled(enable_gqa)
    else:
        refuse_jit_trace("attention", EXPORTED)
    bias = attn_mask if isinstance(attn_mask, CausalBias) else None
    if bias is not None:
        _refuse_two_masks(is_causal)
        attn_mask = None
    query, key, value, attn_mask = under_autocast(query, key, value, attn_mask)
    _check(query, key, value, attn_mask, dropout_p, is_causal)
    if not torch.compiler.is_dynamo_compiling():  # (there, a number that the function takes has no value yet)
        scale = checked_scale(enable_gqa, scale)
    batch = _broadcast([t.shape[:-3] for t in (query, key, value)])
    heads, shared = _heads(query, key, value, enable_gqa)
    if enable_gqa and key.ndim > 2 and value.ndim > 2 and key.shape[-3] != value.shape[-3]:
        key, value = _of_one_number(key, value)
        shared = key.shape[-3] != heads
    q_len, kv_len = query.shape[-2], key.shape[-2]
    whole = (*batch, *([heads] if query.ndim > 2 or key.ndim > 2 or value.ndim > 2 else []))
    offset = 0 if bias is None else offset_of(bias, q_len, kv_len)
    if attn_mask is not None:
        mask = _mask(attn_mask, batch, (*whole, q_len, kv_len))
    if 0 in (*whole, q_len, kv_len, value.shape[-1]):
        biases = () if attn_mask is None or attn_mask.dtype == torch.bool else (attn_mask,)
        return recorded(query.new_zeros((*whole, q_len, value.shape[-1])), query, key, value, *biases)
    q = _flat(query, batch, heads)
    kv_heads = None if shared else heads
    together = all(n == 1 for t in (key, value) for n in t.shape[:-3])
    k, v = (_flat(t, () if together else batch, kv_heads) for t in (key, value))
    mods: dict[str, Any] = {}
    if is_causal or bias is not None:
        mods = {"mask_mod": causal_from(offset)}
    elif attn_mask is not None:
        mod = element(mask)
        mods = {"mask_mod": mod} if mask.dtype == torch.bool else {"score_mod": scored(None, (mod,))}
    attend: Any = attention if torch.compiler.is_dynamo_compiling() else _in_torchs_names
    out = attend(q, k, v, scale=scale, enable_gqa=shared, **mods)
    return out.reshape((*whole, q_len, value.shape[-1]))


def _in_torchs_names(*tensors: Any, **options: Any) -> Any:
    """`attention`, whose errors say query, key and value in place of q, k and v."""
    try:
        return attention(*tensors, **options)
    except LaunchError as error:
        texts = [text and re.sub(r"\b[qkv]\b", lambda m: _NAMES[m[0]], text) for text in (error.reason, error.help)]
        raise LaunchError(texts[0] or "", node=error.node, help=texts[1]) from None


def _check(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any) -> None:
    """Raise LaunchError for what does not depend on how the shapes fit together."""
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, int | float) or dropout_p != 0:
        raise LaunchError(
            f"dropout_p={shown(dropout_p)}: expected 0, since there is no dropout",
            help="dropout_p=0.0, for example `dropout_p=self.p if self.training else 0.0` under model.eval()",
        )
    check_switch("is_causal", is_causal, LaunchError)
    device = device_of(query, key, value, ("query", "key", "value"))
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim < 2:
            raise LaunchError(
                f"argument {name} has shape {tuple(tensor.shape)}; expected (batch, heads, length, head_dim)",
                help=f"{name}.unsqueeze(0) adds a dimension",
            )
        if tensor.dtype != query.dtype:
            raise LaunchError(
                f"argument {name} has dtype {tensor.dtype}; expected {query.dtype}, which query has",
                help=f"convert it: {name}.to(query.dtype)",
            )
    if attn_mask is None:
        return
    _refuse_two_masks(is_causal)
    if not isinstance(attn_mask, torch.Tensor):
        raise LaunchError(
            f"argument attn_mask is {class_of(attn_mask)}; expected a torch.Tensor",
            help="convert it: torch.as_tensor(values)",
        )
    refuse_layout("argument attn_mask", attn_mask)
    allowed = dict.fromkeys((torch.bool, torch.float32, query.dtype))
    if attn_mask.dtype not in allowed:
        *others, last = map(str, allowed)
        raise LaunchError(
            f"argument attn_mask has dtype {attn_mask.dtype}; expected {', '.join(others)} or {last}",
            help="attn_mask.bool() if it says which keys a query attends to, attn_mask.to(query.dtype) if it is added",
        )
    if attn_mask.device != device:
        raise LaunchError(
            f"argument attn_mask is on {attn_mask.device}; expected {device}, where query is",
            help="move it with attn_mask.to(query.device)",
        )


def _refuse_two_masks(is_causal: Any) -> None:
    """Raise LaunchError if there is a mask besides attn_mask."""
    if is_causal:
        raise LaunchError(
            "scaled_dot_product_attention got attn_mask and is_causal=True",
            help="put the causal mask into attn_mask: attn_mask & torch.ones(L, S, dtype=torch.bool).tril()",
        )


def _broadcast(shapes: list[Shape]) -> Shape:
    """The batch dimensions of all three."""
    longest = max(map(len, shapes))
    padded = [(1,) * (longest - len(shape)) + tuple(shape) for shape in shapes]
    found = []
    for sizes in zip(*padded, strict=True):
        larger = {n for n in sizes if n != 1}
        if len(larger) > 1:
            raise LaunchError(
                f"query, key and value have the batch dimensions {', '.join(str(tuple(s)) for s in shapes)}",
                help="give them equal batch dimensions, or dimensions of 1, which are repeated",
            )
        found.append(larger.pop() if larger else 1)
    return tuple(found)


def _heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> tuple[int, bool]:
    """The number of heads, and whether key and value have fewer, of which each serves a group."""
    of_query, of_key, of_value = (t.shape[-3] if t.ndim > 2 else 1 for t in (query, key, value))
    if enable_gqa:
        if 0 in (of_key, of_value) or of_query % of_key or of_query % of_value:
            raise LaunchError(
                f"key has {of_key} heads and value {of_value}; expected divisors of {of_query}, which query has",
                help="with enable_gqa=True, each head of key and value serves a whole group of query heads",
            )
        return of_query, of_key != of_query
    different = {of_query, of_key, of_value} - {1}
    if len(different) > 1:
        raise LaunchError(
            f"key has {of_key} heads and value {of_value}; expected {of_query}, which query has",
            help="enable_gqa=True lets several heads of query share one of key and value",
        )
    heads = different.pop() if different else 1
    return heads, of_key == of_value == 1 != heads


def _of_one_number(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """key and value with one number of heads, of which each repeats its own: a copy of what has fewer."""
    heads = lcm(key.shape[-3], value.shape[-3])
    key, value = (t if t.shape[-3] == heads else t.repeat_interleave(heads // t.shape[-3], -3) for t in (key, value))
    return key, value


def _flat(tensor: torch.Tensor, batch: Shape, heads: int | None) -> torch.Tensor:
    """The tensor with one batch dimension, of 1 if `batch` is empty, and one of heads; `heads` None: its own."""
    *_, length, width = tensor.shape
    own = tensor.shape[-3] if tensor.ndim > 2 else 1
    if not batch:  # it has none, or only dimensions of 1
        tensor = tensor.reshape(1, own, length, width)
    if tensor.ndim == 2:
        tensor = tensor.unsqueeze(0)
    tensor = tensor.expand(*(batch or (1,)), heads or own, length, width)
    return tensor.reshape(prod(batch), heads or own, length, width)


def _mask(mask: torch.Tensor, batch: Shape, whole: Shape) -> torch.Tensor:
    """The mask with four dimensions, each of full size or 1."""
    if not broadcasts(mask, whole):
        raise LaunchError(
            f"argument attn_mask has shape {tuple(mask.shape)}; expected one that broadcasts to {whole}",
            help="give it the shape (L, S), (batch, 1, L, S) or (batch, heads, L, S)",
        )
    mask = unexpanded(mask)
    sizes = (1,) * (len(batch) + 3 - mask.ndim) + tuple(mask.shape)
    own, (of_heads, rows, columns) = sizes[: len(batch)], sizes[len(batch) :]
    mask = mask.reshape(*own, of_heads, rows, columns)
    samples = prod(batch) if any(n != 1 for n in own) else 1
    if samples != 1:
        mask = mask.expand(*batch, of_heads, rows, columns)
    return mask.reshape(samples, of_heads, rows, columns)


__all__ = ["scaled_dot_product_attention"]
