"""Attention, as in the paper's Figure 12: scores, a mod, a mask, softmax, and the weighted sum of values.

`general` takes any mods. `full`, `causal`, `alibi`, `softcap`, `window`, `prefix`, `document`, `paged` and `gqa` have
mods of their own. `preset` makes one of them at a published model's sizes. Each computes

    score[b, h, i, j] = mod(scale * sum over d of q[b, h, i, d] * k[b, h // group, j, d])
    out[b, h, i, :] = sum over j of softmax over j (score[b, h, i, j]) * v[b, h // group, j, :]

from `q` (batch, heads, q_len, head_dim), `k` (batch, kv_heads, kv_len, head_dim) and `v` (batch, kv_heads, kv_len,
v_head_dim) to `out` (batch, heads, q_len, v_head_dim), all of one dtype, with group = heads // kv_heads, as in
FlexAttention's enable_gqa.

`score_mod(score, b, h, q, kv)` and `mask_mod(b, h, q, kv)` have FlexAttention's signatures.  A mod is called with
symbols to make the definition, and with NumPy arrays to compute the float64 reference.  So it must use Python's
operators (`+ - * / // % **`, comparisons, `&`, `|`, `~`) and the functions of `operators.math` (torch's and NumPy's
functions of the same names also accept a mod's arguments), but not `if`, `and`, `or`, `not`, which need one truth value
for all positions.

    >>> def window(b, h, q, kv):
    ...     return (q >= kv) & (q - kv <= 2)
    >>> general(1, 1, 8, 8, 4, mask_mod=window).params["mask_mod"]
    'window'

A mod may read elements of tensors that it captures (`operators.capture`).  Each becomes an input of the operator; if
the caller does not pass it, the kernel uses the captured values:

    >>> import numpy as np
    >>> slopes = np.array([0.5, 0.25])
    >>> print(general(1, 2, 8, 8, 4, lambda score, b, h, q, kv: score + slopes[h] * (kv - q)).inputs[3])
    slopes: float32[2]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import math
from neptune_lab.operators.attention_arguments import lengths_of, made_operator
from neptune_lab.operators.attention_by_tensors import document, paged
from neptune_lab.operators.attention_formats import FormatOptions
from neptune_lab.operators.attention_options import AttentionOptions, documented, with_options
from neptune_lab.operators.attention_sizes import EmptyRows, KeyPlace, MaskMod, ScoreMod
from neptune_lab.operators.attention_stages import define_attention
from neptune_lab.operators.base import Operator, Params, name_of, positive
from neptune_lab.operators.dims import takes_dims
from neptune_lab.operators.presets import PRESETS
from neptune_lab.strict.console import shown
from neptune_lab.strict.dtypes import EIGHTS
from neptune_lab.strict.values import check_number, check_switch

__all__ = [
    "AttentionOptions",
    "alibi",
    "causal",
    "define_attention",
    "document",
    "full",
    "general",
    "gqa",
    "paged",
    "prefix",
    "preset",
    "softcap",
    "window",
]  # fmt: skip


@takes_dims
@documented
def general(
    batch: int,
    heads: int,
    q_len: int,
    kv_len: int,
    head_dim: int,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    dtype: str = "float16",
    scale: float | None = None,
    *,
    kv_heads: int | None = None,
    v_head_dim: int | None = None,
    kv_batch: int | None = None,
    return_lse: bool = False,
    return_max: bool = False,
    empty_rows: EmptyRows = "nan",
    live: bool = False,
    pages: tuple[int, int] | None = None,
    place: KeyPlace | None = None,
    pack_groups: bool = False,
    **formats: Unpack[FormatOptions],
) -> Operator:
    """Attention with a score mod and a mask mod.

    Args:
        score_mod: from a scaled score in float32 to a new one; None: unchanged.
        mask_mod: if it is false, the score is -inf; None: no mask.
        kv_batch: samples of `k` and `v`: 1 if all samples of queries share them; None: as many as `batch`.
        return_max: also return `max_scores` (batch, heads, q_len) in float32, the largest score of each query after
            the mods; -inf for a query that sees no key.  It is the last output.
        live: do not copy captured tensors, for a kernel that gets them at each call (`operators.capture`).
        pages: number of pages, and keys of each, if `k` and `v` are caches (pages, page_size, kv_heads, ...).
        place: with `pages`, `place(b, kv)` returns the page of a key, its place in the page, and whether there is such
            a key (`operators.paging`).
        pack_groups: the scores are a matrix for each head of keys and values, whose rows are the queries of all heads
            that share it: faster for few queries and many keys, which are then read once.  Not with `return_lse` and
            `return_max`.
        formats: dtypes of tensors that differ from `dtype`, which is then that of `out`; and scales of quantized
            tensors (`FormatOptions`).
    """
    check_switch("return_max", return_max, DefinitionError)
    check_switch("pack_groups", pack_groups, DefinitionError)
    if pack_groups and (return_lse or return_max):
        raise DefinitionError(
            "pack_groups=True has no return_lse and return_max",
            help="leave pack_groups out: each head then has scores of its own",
        )
    _check_pages(pages, place, formats)
    params = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len, "head_dim": head_dim}
    if kv_batch is not None and not (isinstance(kv_batch, int) and kv_batch == batch):
        params["kv_batch"] = kv_batch
    if pages is not None:
        params |= {"pages": pages[0], "page_size": pages[1]}
    mods: Params = {
        name: None if mod is None else name_of(mod) for name, mod in (("score_mod", score_mod), ("mask_mod", mask_mod))
    }
    # Options that are off are left out: the params are part of the keys of records.
    given = {"return_max": return_max, "pack_groups": pack_groups, **formats}
    mods |= {name: value for name, value in given.items() if value is not None and value is not False}
    more = AttentionOptions(
        dtype=dtype, scale=scale, kv_heads=kv_heads, v_head_dim=v_head_dim, return_lse=return_lse, empty_rows=empty_rows
    )
    return made_operator("attention_general", "Attention", params, mods, more, score_mod, mask_mod, live, place)


def _check_pages(pages: tuple[int, int] | None, place: KeyPlace | None, formats: FormatOptions) -> None:
    """Raises DefinitionError for pages without places, and for formats that there are not, or not of pages."""
    if (pages is None) != (place is None):
        raise DefinitionError(
            f"pages={pages!r}, place={place!r}: give both or none", help="attention.paged makes both of a page table"
        )
    unknown = [name for name in formats if name not in FormatOptions.__annotations__]
    if unknown:
        names = ", ".join(FormatOptions.__annotations__)
        raise DefinitionError(f"attention has no argument {unknown[0]!r}", help=f"dtypes and scales: {names}")
    if pages is not None and (formats.get("v_transposed") or formats.get("weights_dtype") in EIGHTS):
        raise DefinitionError(
            "a cache of pages is not transposed, and its values are multiplied with weights of at least 16 bits",
            help="leave out v_transposed, and weights_dtype of 8 bits",
        )


@takes_dims
@with_options
def full(
    batch: int = 1, heads: int = 1, seq: int | None = None, head_dim: int = 64, **options: Unpack[AttentionOptions]
) -> Operator:
    """Full attention: every query sees every key."""
    params = lengths_of(batch, heads, seq, head_dim, options)
    return made_operator("attention_full", "Full attention", params, {}, options, None, None)


@takes_dims
@with_options
def causal(
    batch: int = 1, heads: int = 1, seq: int | None = None, head_dim: int = 64, **options: Unpack[AttentionOptions]
) -> Operator:
    """Causal attention: a query sees the keys up to its own position.

    The last query's position is the last key's. With more queries than keys, the first queries see nothing.
    """
    params = lengths_of(batch, heads, seq, head_dim, options)
    return made_operator("attention_causal", "Causal attention", params, {}, options, None, _causal_mask(params))


@takes_dims
@with_options
def gqa(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    causal: bool = True,
    **options: Unpack[AttentionOptions],
) -> Operator:
    """Grouped-query attention: `causal`, or with causal=False `full`, with fewer kv_heads.

    Source: Neptune, Table 1 (GQA).

    Args:
        causal: a query sees only the keys up to its own position.
    """
    params = lengths_of(batch, heads, seq, head_dim, options)
    mask = _causal_mask(params) if causal is True else None
    title = "Grouped-query attention"
    return made_operator("attention_gqa", title, params, {"causal": causal}, options, None, mask)


@takes_dims
@with_options
def alibi(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    causal: bool = True,
    **options: Unpack[AttentionOptions],
) -> Operator:
    """Attention with linear biases: 2**(-8 * (h + 1) / heads) * (key's position - query's) is added to a score.

    The last query's position is the last key's, so the position of a decoded query is kv_len - 1.  Source: Press et
    al., "Train Short, Test Long"; Neptune, Table 1.

    Args:
        causal: a query sees only the keys up to its own position.
    """
    params = lengths_of(batch, heads, seq, head_dim, options)
    offset = params["kv_len"] - params["q_len"]

    def alibi_bias(score, b, h, q, kv):
        return score + math.exp2(-8.0 * (h + 1) / heads) * (kv - (q + offset))

    mask = _causal_mask(params) if causal is True else None
    title = "Attention with linear biases (ALiBi)"
    return made_operator("attention_alibi", title, params, {"causal": causal}, options, alibi_bias, mask)


@takes_dims
@with_options
def softcap(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    cap: float = 50.0,
    causal: bool = True,
    **options: Unpack[AttentionOptions],
) -> Operator:
    """Attention with scores limited to ±cap: cap * tanh(score / cap).  Source: Gemma 2; Neptune, Table 1.

    Args:
        cap: a positive number.
        causal: a query sees only the keys up to its own position.
    """
    check_number("cap", cap, DefinitionError, positive=True)
    params = lengths_of(batch, heads, seq, head_dim, options)

    def softcapped(score, b, h, q, kv):
        return cap * math.tanh(score / cap)

    mask = _causal_mask(params) if causal is True else None
    own = {"cap": float(cap), "causal": causal}
    return made_operator("attention_softcap", "Attention with soft capping", params, own, options, softcapped, mask)


@takes_dims
@with_options
def window(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    window: int = 4096,
    **options: Unpack[AttentionOptions],
) -> Operator:
    """Sliding-window attention: a query sees its own position and the window - 1 keys before it (Neptune, Table 1).

    Args:
        window: the largest number of keys that a query sees.
    """
    positive(window=window)
    params = lengths_of(batch, heads, seq, head_dim, options)
    offset = params["kv_len"] - params["q_len"]

    def window_mask(b, h, q, kv):
        return (kv <= q + offset) & (q + offset - kv < window)

    title = "Sliding-window attention"
    return made_operator("attention_window", title, params, {"window": int(window)}, options, None, window_mask)


@takes_dims
@with_options
def prefix(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    prefix: int = 1,
    **options: Unpack[AttentionOptions],
) -> Operator:
    """Prefix attention: every query sees the first `prefix` keys, and of the others those up to its own position.

    Args:
        prefix: how many keys every query sees.
    """
    positive(prefix=prefix)
    params = lengths_of(batch, heads, seq, head_dim, options)
    offset = params["kv_len"] - params["q_len"]

    def prefix_mask(b, h, q, kv):
        return (kv < prefix) | (kv <= q + offset)

    title = "Prefix attention"
    return made_operator("attention_prefix", title, params, {"prefix": int(prefix)}, options, None, prefix_mask)


def _causal_mask(params: Params) -> MaskMod:
    offset = params["kv_len"] - params["q_len"]

    def causal_mask(b, h, q, kv):
        return kv <= q + offset if offset else kv <= q

    return causal_mask


def preset(name: str, seq: int | None = None, batch: int = 1, **overrides: Any) -> Operator:
    """An operator at a published model's sizes: the paper's Table 1, or MCFuser's Table III (`operators.presets`).

    Args:
        name: one of `presets.PRESETS`, such as "causal_pf" or "s6".
        seq: number of keys, and for prefill also of queries; None for MCFuser's modules, which have fixed lengths.
        batch: number of sequences.
        overrides: arguments of the operator that replace the preset's, such as heads or window.

    Returns:
        The operator, such as `causal` or `window` makes it.

    Raises:
        DefinitionError: there is no such preset, `seq` is missing, or an argument has a wrong name or value.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise DefinitionError(f"there is no preset {shown(name)}", help=f"one of {', '.join(PRESETS)}")
    chosen = PRESETS[name]
    sizes = {**chosen.sizes, "batch": batch, **overrides}
    if chosen.decode and seq is not None:
        sizes = {"q_len": 1, "kv_len": seq, **sizes}
    elif seq is not None:
        sizes["seq"] = seq
    elif chosen.takes_seq and not {"q_len", "kv_len"} & set(overrides):
        raise DefinitionError(f"preset {name!r} needs seq", help="give the number of keys, such as seq=2048")
    make = _OPERATORS[chosen.operator]
    unknown = [n for n in sizes if n not in inspect.signature(make).parameters]
    if unknown:
        raise DefinitionError(
            f"attention.{chosen.operator}, of which {name!r} is a preset, takes no {unknown[0]}",
            help="leave it out, or call the operator itself",
        )
    return make(**sizes)


def preset_function(name: str) -> Callable[..., Operator]:
    """The preset called `name` as a function with the operator's own parameters, for the command line."""
    chosen = PRESETS[name]
    taken = dict(inspect.signature(_OPERATORS[chosen.operator]).parameters)
    if chosen.takes_seq:
        del taken["q_len"], taken["kv_len"]
    else:
        del taken["seq"]
    make = partial(preset, name)
    parameters = [p.replace(kind=p.KEYWORD_ONLY, default=chosen.sizes.get(n, p.default)) for n, p in taken.items()]
    make.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    make.__doc__ = f"{chosen.operator} at the sizes of {chosen.model} ({chosen.paper})."
    return make


_OPERATORS: dict[str, Callable[..., Operator]] = {
    "full": full, "causal": causal, "alibi": alibi, "gqa": gqa, "softcap": softcap, "window": window,
}  # fmt: skip
