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

    >>> slopes = np.array([0.5, 0.25])
    >>> print(general(1, 2, 8, 8, 4, lambda score, b, h, q, kv: score + slopes[h] * (kv - q)).inputs[3])
    slopes: float32[2]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack, get_args

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import math
from neptune_lab.operators.attention_definition import (
    attention_operator,
    define_attention,
)
from neptune_lab.operators.attention_formats import FormatOptions
from neptune_lab.operators.attention_options import DEFAULTS, AttentionOptions, documented, with_options
from neptune_lab.operators.attention_sizes import EmptyRows, KeyPlace, MaskMod, ScoreMod, sizes_of
from neptune_lab.operators.base import Operator, Params, name_of, positive
from neptune_lab.operators.dims import takes_dims
from neptune_lab.operators.paging import paged_mods
from neptune_lab.operators.presets import PRESETS
from neptune_lab.strict.dtypes import EIGHTS
from neptune_lab.strict.values import check_choice, check_number, check_switch

__all__ = [
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
        formats: dtypes of tensors that differ from `dtype`, which is then that of `out`; and scales of quantized
            tensors (`FormatOptions`).
    """
    params = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len, "head_dim": head_dim}
    if kv_batch is not None and not (isinstance(kv_batch, int) and kv_batch == batch):
        params["kv_batch"] = kv_batch
    check_switch("return_max", return_max, DefinitionError)
    mods: Params = {
        name: None if mod is None else name_of(mod) for name, mod in (("score_mod", score_mod), ("mask_mod", mask_mod))
    }
    if return_max:
        mods["return_max"] = True
    if (pages is None) != (place is None):
        raise DefinitionError(
            f"pages={pages!r}, place={place!r}: give both or none", help="attention.paged makes both of a page table"
        )
    if pages is not None:
        params |= {"pages": pages[0], "page_size": pages[1]}
    unknown = [name for name in formats if name not in FormatOptions.__annotations__]
    if unknown:
        names = ", ".join(FormatOptions.__annotations__)
        raise DefinitionError(f"there is no argument {unknown[0]!r}", help=f"dtypes and scales: {names}")
    if pages is not None and (formats.get("v_transposed") or formats.get("weights_dtype") in EIGHTS):
        raise DefinitionError(
            "a cache of pages is not transposed, and its values are multiplied with weights of at least 16 bits",
            help="leave out v_transposed, and weights_dtype of 8 bits",
        )
    mods |= {name: value for name, value in formats.items() if value is not None and value is not False}
    more = AttentionOptions(
        dtype=dtype, scale=scale, kv_heads=kv_heads, v_head_dim=v_head_dim, return_lse=return_lse, empty_rows=empty_rows
    )
    return _operator("attention_general", "Attention", params, mods, more, score_mod, mask_mod, live, place)


@takes_dims
@with_options
def full(
    batch: int = 1, heads: int = 1, seq: int | None = None, head_dim: int = 64, **options: Unpack[AttentionOptions]
) -> Operator:
    """Full attention: every query sees every key."""
    params = _lengths(batch, heads, seq, head_dim, options)
    return _operator("attention_full", "Full attention", params, {}, options, None, None)


@takes_dims
@with_options
def causal(
    batch: int = 1, heads: int = 1, seq: int | None = None, head_dim: int = 64, **options: Unpack[AttentionOptions]
) -> Operator:
    """Causal attention: a query sees the keys up to its own position.

    The last query's position is the last key's. With more queries than keys, the first queries see nothing.
    """
    params = _lengths(batch, heads, seq, head_dim, options)
    return _operator("attention_causal", "Causal attention", params, {}, options, None, _causal_mask(params))


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
    params = _lengths(batch, heads, seq, head_dim, options)
    mask = _causal_mask(params) if causal is True else None
    title = "Grouped-query attention"
    return _operator("attention_gqa", title, params, {"causal": causal}, options, None, mask)


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
    params = _lengths(batch, heads, seq, head_dim, options)
    offset = params["kv_len"] - params["q_len"]

    def alibi_bias(score, b, h, q, kv):
        return score + math.exp2(-8.0 * (h + 1) / heads) * (kv - (q + offset))

    mask = _causal_mask(params) if causal is True else None
    title = "Attention with linear biases (ALiBi)"
    return _operator("attention_alibi", title, params, {"causal": causal}, options, alibi_bias, mask)


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
    params = _lengths(batch, heads, seq, head_dim, options)

    def softcapped(score, b, h, q, kv):
        return cap * math.tanh(score / cap)

    mask = _causal_mask(params) if causal is True else None
    own = {"cap": float(cap), "causal": causal}
    return _operator("attention_softcap", "Attention with soft capping", params, own, options, softcapped, mask)


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
    params = _lengths(batch, heads, seq, head_dim, options)
    offset = params["kv_len"] - params["q_len"]

    def window_mask(b, h, q, kv):
        return (kv <= q + offset) & (q + offset - kv < window)

    title = "Sliding-window attention"
    return _operator("attention_window", title, params, {"window": int(window)}, options, None, window_mask)


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
    params = _lengths(batch, heads, seq, head_dim, options)
    offset = params["kv_len"] - params["q_len"]

    def prefix_mask(b, h, q, kv):
        return (kv < prefix) | (kv <= q + offset)

    title = "Prefix attention"
    return _operator("attention_prefix", title, params, {"prefix": int(prefix)}, options, None, prefix_mask)


@takes_dims
@with_options
def document(
    doc: Any, heads: int = 1, head_dim: int = 64, causal: bool = True, **options: Unpack[AttentionOptions]
) -> Operator:
    """Attention within documents: one sequence holds several, and a query sees only keys of its own document.

    Args:
        doc: the document of each position, integers (batch, seq), as an array or a torch tensor; it becomes the
            fourth input, and determines batch, q_len and kv_len.
        causal: a query sees only the keys up to its own position.
    """
    shape = tuple(int(n) for n in np.shape(doc))
    if len(shape) != 2:
        raise DefinitionError(
            f"doc has shape {shape}: expected (batch, seq)",
            help="give one document number per position: an integer array of shape (batch, seq)",
        )
    if options.get("q_len") is not None or options.get("kv_len") is not None:
        raise DefinitionError(
            "document takes its lengths from doc: q_len and kv_len go with the other operators",
            help="leave q_len and kv_len out, or use attention.general with a mask_mod",
        )
    params = _lengths(shape[0], heads, shape[1], head_dim, options)

    def document_mask(b, h, q, kv):
        same = doc[b, q] == doc[b, kv]
        return same & (kv <= q) if causal else same

    own = {"causal": causal, "mask_mod": "document_mask"}
    return _operator("attention_document", "Attention within documents", params, own, options, None, document_mask)


@takes_dims
@with_options
def paged(
    page_table: Any,
    lengths: Any,
    heads: int = 1,
    head_dim: int = 64,
    page_size: int = 16,
    pages: int | None = None,
    causal: bool = True,
    **options: Unpack[AttentionOptions],
) -> Operator:
    """Attention over keys and values in a cache of pages, as in vLLM and flash-attention.

        key[b, h, j, d] = k[page_table[b, j // page_size], j % page_size, h // group, d]   for j < lengths[b]

    `k` and `v` are the caches, (pages, page_size, kv_heads, ...).  The queries of a sequence are its last ones.

    Args:
        page_table: the pages of each sequence in order, integers (batch, most pages of a sequence), as an array or a
            torch tensor; it becomes an input.  What is behind the length of a sequence is not read.
        lengths: the number of keys of each sequence, integers (batch,); it becomes an input.
        page_size: keys of a page.
        pages: pages of the cache; None: one more than the largest number in page_table.
        causal: a query sees only the keys up to its own position.
        q_len: number of queries of each sequence; 1 if None.
    """
    table, own = np.shape(page_table), np.shape(lengths)
    if len(table) != 2 or tuple(own) != (table[0],):
        raise DefinitionError(
            f"page_table has shape {tuple(table)} and lengths {tuple(own)}: expected (batch, pages) and (batch,)",
            help="give one row of pages and one length per sequence",
        )
    if options.get("kv_len") is not None:
        raise DefinitionError(
            "paged takes the number of keys from page_table: kv_len goes with the other operators",
            help="leave kv_len out",
        )
    positive(page_size=page_size)
    check_switch("causal", causal, DefinitionError)
    count = int(np.asarray(page_table).max()) + 1 if pages is None else pages
    q_len = options.get("q_len") or 1
    options = AttentionOptions(**{**options, "q_len": q_len, "kv_len": int(table[1]) * page_size})
    params = _lengths(int(table[0]), heads, None, head_dim, options)
    params |= _checked({"pages": count, "page_size": page_size})
    mask = (lambda b, h, q, kv: q >= kv) if causal and q_len > 1 else None  # a single query is behind all keys
    _, paged_mask, key_place = paged_mods(None, mask, page_table, lengths, page_size, q_len)
    title = "Attention over a cache of pages"
    return _operator("attention_paged", title, params, {"causal": causal}, options, None, paged_mask, place=key_place)


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
    if name not in PRESETS:
        raise DefinitionError(f"there is no preset {name!r}", help=f"one of {', '.join(PRESETS)}")
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


def _causal_mask(params: Params) -> MaskMod:
    offset = params["kv_len"] - params["q_len"]

    def causal_mask(b, h, q, kv):
        return kv <= q + offset if offset else kv <= q

    return causal_mask


def _lengths(batch: int, heads: int, seq: int | None, head_dim: int, options: AttentionOptions) -> Params:
    """The sizes, with q_len and kv_len in place of `seq`; DefinitionError if an option does not exist."""
    unknown = [n for n in options if n not in DEFAULTS]
    if unknown:
        raise DefinitionError(f"there is no argument {unknown[0]!r}", help=f"one of {', '.join(DEFAULTS)}")
    q_len, kv_len = options.get("q_len"), options.get("kv_len")
    if (seq is None) == (q_len is None and kv_len is None):
        raise DefinitionError(
            f"seq={seq!r}, q_len={q_len!r}, kv_len={kv_len!r}: give seq, or q_len and kv_len",
            help="seq=128 for both lengths, or q_len=1, kv_len=128",
        )
    if seq is not None:
        positive(seq=seq)
        q_len = kv_len = seq
    sizes = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len, "head_dim": head_dim}
    return _checked(sizes)


def _checked(sizes: dict[str, Any]) -> Params:
    positive(**sizes)
    return {name: int(size) for name, size in sizes.items()}


def _operator(
    name: str,
    title: str,
    sizes: Params,
    own: Params,
    options: AttentionOptions,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    live: bool = False,
    place: KeyPlace | None = None,
) -> Operator:
    """The operator; its params have kv_heads, v_head_dim, return_lse and empty_rows unless they are the default."""
    if "causal" in own:
        check_switch("causal", own["causal"], DefinitionError)
    defaults = {"kv_heads": sizes["heads"], "v_head_dim": sizes["head_dim"]}
    positive(**{n: options[n] for n in defaults if options.get(n) is not None})
    differing = {n: options.get(n) for n, default in defaults.items() if options.get(n) not in (None, default)}
    sizes = _checked({**sizes, **differing})
    last: Params = {"dtype": options.get("dtype", "float16"), "scale": options.get("scale")}
    return_lse, empty_rows = options.get("return_lse", False), options.get("empty_rows", "nan")
    check_choice("empty_rows", empty_rows, get_args(EmptyRows), DefinitionError)
    if return_lse is not False:
        last["return_lse"] = return_lse
    if empty_rows != "nan":
        last["empty_rows"] = empty_rows
    params = {**sizes, **own, **last}
    return attention_operator(name, title, sizes_of(sizes), params, score_mod, mask_mod, live, place)
