"""Attention, as in the paper's Figure 12: scores, a mod, a mask, softmax, and the weighted sum of values.

`general` takes any mods; `full`, `causal`, `alibi`, `softcap`, `window`, `prefix`, `document` and `gqa` have theirs;
`preset` gives one of them at a published model's sizes. Each computes

    score[b, h, i, j] = mod(scale * sum over d of q[b, h, i, d] * k[b, h // group, j, d])
    out[b, h, i, :] = sum over j of softmax over j (score[b, h, i, j]) * v[b, h // group, j, :]

from `q` (batch, heads, q_len, head_dim), `k` (batch, kv_heads, kv_len, head_dim) and `v` (batch, kv_heads, kv_len,
v_head_dim) to `out` (batch, heads, q_len, v_head_dim), all of one dtype, with group = heads // kv_heads, as in
FlexAttention's enable_gqa.  The sizes and options of all of them:

    batch, heads: number of sequences, and of query heads.
    seq: the number of queries and of keys; or q_len and kv_len are given instead.
    head_dim: width of a head of q and k; v_head_dim: of v and out, where it is another.
    kv_heads: heads of k and v, a divisor of `heads`; as many as `heads` where None.
    dtype: "float16", "bfloat16" or "float32", of the inputs and `out`; sums are in float32.
    scale: factor of the scores; 1/sqrt(head_dim) where None.
    return_lse: a second output `lse` (batch, heads, q_len) in float32, the natural logarithm of the sum over j of
        exp(score); -inf for a row without any position to see.
    empty_rows: what `out` is in such a row: "nan", or "zero" as in FlexAttention.

`score_mod(score, b, h, q, kv)` and `mask_mod(b, h, q, kv)` have FlexAttention's signatures.  One mod serves two
purposes: it is called once with symbols, which makes the definition, and again with NumPy arrays, which makes the
float64 reference.  So it is written in Python's operators (`+ - * / // % **`, comparisons, `&`, `|`, `~`) and the
functions of `operators.math` (torch's and NumPy's own functions of the same names work on a mod's arguments too),
and never in `if`, `and`, `or`, `not`, which would need one truth value for all positions.

    >>> def window(b, h, q, kv):
    ...     return (q >= kv) & (q - kv <= 2)
    >>> general(1, 1, 8, 8, 4, mask_mod=window).params["mask_mod"]
    'window'

A mod may read elements of tensors that it captures (`operators.capture`); each becomes an input of the operator, and
a kernel supplies it by itself:

    >>> slopes = np.array([0.5, 0.25])
    >>> print(general(1, 2, 8, 8, 4, lambda score, b, h, q, kv: score + slopes[h] * (kv - q)).inputs[3])
    slopes: float32[2]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypedDict, Unpack, get_args

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import math
from neptune_lab.operators.attention_definition import (
    EmptyRows,
    MaskMod,
    ScoreMod,
    attention_operator,
    define_attention,
    sizes_of,
)
from neptune_lab.operators.base import Operator, Params, name_of, positive
from neptune_lab.operators.presets import PRESETS
from neptune_lab.strict.values import check_choice, check_number, check_switch

__all__ = [
    "alibi",
    "causal",
    "define_attention",
    "document",
    "full",
    "general",
    "gqa",
    "prefix",
    "preset",
    "softcap",
    "window",
]  # fmt: skip

Own = ParamSpec("Own")


class Options(TypedDict, total=False):
    """What every operator of this module takes by keyword (the module says what each is)."""

    q_len: int | None
    kv_len: int | None
    kv_heads: int | None
    v_head_dim: int | None
    dtype: str
    scale: float | None
    return_lse: bool
    empty_rows: EmptyRows


_DEFAULTS: Options = {
    "q_len": None, "kv_len": None, "kv_heads": None, "v_head_dim": None, "dtype": "float16", "scale": None,
    "return_lse": False, "empty_rows": "nan",
}  # fmt: skip


def _with_options(make: Callable[Own, Operator]) -> Callable[Own, Operator]:
    """`make(..., **options)` with a signature that names every option: `help` and the command line read it."""
    signature = inspect.signature(make)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    hints = Options.__annotations__
    more = [inspect.Parameter(n, kind, default=d, annotation=hints[n]) for n, d in _DEFAULTS.items()]
    make.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return make


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
    return_lse: bool = False,
    empty_rows: EmptyRows = "nan",
    live: bool = False,
) -> Operator:
    """Attention with the mods that are given.

    Args:
        score_mod: the score after scaling, in float32, to another; None leaves it.
        mask_mod: where it is false, the score counts as -inf; None masks nothing.
        live: captured tensors are taken as they are, for a kernel that is given them at each call
            (`operators.capture`).

    The other arguments, and the tensors, are the module's.
    """
    params = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len, "head_dim": head_dim}
    mods = {
        name: None if mod is None else name_of(mod) for name, mod in (("score_mod", score_mod), ("mask_mod", mask_mod))
    }
    more = Options(
        dtype=dtype, scale=scale, kv_heads=kv_heads, v_head_dim=v_head_dim, return_lse=return_lse, empty_rows=empty_rows
    )
    return _operator("attention_general", "Attention", params, mods, more, score_mod, mask_mod, live)


@_with_options
def full(
    batch: int = 1, heads: int = 1, seq: int | None = None, head_dim: int = 64, **options: Unpack[Options]
) -> Operator:
    """Every query sees every key.  Arguments and tensors: the module's."""
    params = _lengths(batch, heads, seq, head_dim, options)
    return _operator("attention_full", "Full attention", params, {}, options, None, None)


@_with_options
def causal(
    batch: int = 1, heads: int = 1, seq: int | None = None, head_dim: int = 64, **options: Unpack[Options]
) -> Operator:
    """A query sees the keys up to its own position; the last query's position is the last key's.

    With more queries than keys, the first queries see nothing.  Arguments and tensors: the module's.
    """
    params = _lengths(batch, heads, seq, head_dim, options)
    return _operator("attention_causal", "Causal attention", params, {}, options, None, _causal_mask(params))


@_with_options
def gqa(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    causal: bool = True,
    **options: Unpack[Options],
) -> Operator:
    """Grouped-query attention under its own name: `causal`, or with causal=False `full`, with fewer kv_heads.

    Source: Neptune, Table 1 (GQA).  Arguments and tensors: the module's.
    """
    params = _lengths(batch, heads, seq, head_dim, options)
    mask = _causal_mask(params) if causal is True else None
    title = "Grouped-query attention"
    return _operator("attention_gqa", title, params, {"causal": causal}, options, None, mask)


@_with_options
def alibi(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    causal: bool = True,
    **options: Unpack[Options],
) -> Operator:
    """Attention with linear biases: 2**(-8 * (h + 1) / heads) * (key's position - query's) is added to a score.

    The last query's position is the last key's, so a decoded query stands at kv_len - 1.  Source: Press et al., "Train
    Short, Test Long"; Neptune, Table 1.

    Args:
        causal: a query sees the keys up to its own position only.

    The other arguments, and the tensors, are the module's.
    """
    params = _lengths(batch, heads, seq, head_dim, options)
    offset = params["kv_len"] - params["q_len"]

    def alibi_bias(score, b, h, q, kv):
        return score + math.exp2(-8.0 * (h + 1) / heads) * (kv - (q + offset))

    mask = _causal_mask(params) if causal is True else None
    title = "Attention with linear biases (ALiBi)"
    return _operator("attention_alibi", title, params, {"causal": causal}, options, alibi_bias, mask)


@_with_options
def softcap(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    cap: float = 50.0,
    causal: bool = True,
    **options: Unpack[Options],
) -> Operator:
    """Scores kept within ±cap: cap * tanh(score / cap).  Source: Gemma 2; Neptune, Table 1.

    Args:
        cap: a positive number.
        causal: a query sees the keys up to its own position only.

    The other arguments, and the tensors, are the module's.
    """
    check_number("cap", cap, DefinitionError, positive=True)
    params = _lengths(batch, heads, seq, head_dim, options)

    def softcapped(score, b, h, q, kv):
        return cap * math.tanh(score / cap)

    mask = _causal_mask(params) if causal is True else None
    own = {"cap": float(cap), "causal": causal}
    return _operator("attention_softcap", "Attention with soft capping", params, own, options, softcapped, mask)


@_with_options
def window(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    window: int = 4096,
    **options: Unpack[Options],
) -> Operator:
    """A query sees its own position and the window - 1 keys before it.  Source: Neptune, Table 1.

    Args:
        window: how many keys a query sees at most.

    The other arguments, and the tensors, are the module's.
    """
    positive(window=window)
    params = _lengths(batch, heads, seq, head_dim, options)
    offset = params["kv_len"] - params["q_len"]

    def window_mask(b, h, q, kv):
        return (kv <= q + offset) & (q + offset - kv < window)

    title = "Sliding-window attention"
    return _operator("attention_window", title, params, {"window": int(window)}, options, None, window_mask)


@_with_options
def prefix(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    prefix: int = 1,
    **options: Unpack[Options],
) -> Operator:
    """Every query sees the first `prefix` keys, and of the others those up to its own position (a prefix LM).

    Args:
        prefix: how many keys everybody sees.

    The other arguments, and the tensors, are the module's.
    """
    positive(prefix=prefix)
    params = _lengths(batch, heads, seq, head_dim, options)
    offset = params["kv_len"] - params["q_len"]

    def prefix_mask(b, h, q, kv):
        return (kv < prefix) | (kv <= q + offset)

    title = "Prefix attention"
    return _operator("attention_prefix", title, params, {"prefix": int(prefix)}, options, None, prefix_mask)


@_with_options
def document(doc: Any, heads: int = 1, head_dim: int = 64, causal: bool = True, **options: Unpack[Options]) -> Operator:
    """Several documents in one sequence: a query sees keys of its own document only.

    Args:
        doc: the document of each position, integers (batch, seq), as an array or a torch tensor; it becomes the
            fourth input. Batch and lengths are taken from it.
        causal: a query sees the keys up to its own position only.

    The other arguments, and the tensors, are the module's.
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


def preset(name: str, seq: int | None = None, batch: int = 1, **overrides: Any) -> Operator:
    """An operator at a published model's sizes: the paper's Table 1, or MCFuser's Table III (`operators.presets`).

    Args:
        name: one of `presets.PRESETS`, such as "causal_pf" or "s6".
        seq: keys, and for prefill queries; MCFuser's modules have their lengths already.
        batch: number of sequences.
        overrides: any argument of the operator that is to be another than the preset's, such as heads or window.
    """
    if name not in PRESETS:
        raise DefinitionError(f"there is no preset {name!r}", help=f"one of {', '.join(PRESETS)}")
    found = PRESETS[name]
    sizes = {**found.sizes, "batch": batch, **overrides}
    if found.decode and seq is not None:
        sizes = {"q_len": 1, "kv_len": seq, **sizes}
    elif seq is not None:
        sizes["seq"] = seq
    elif found.takes_seq and not {"q_len", "kv_len"} & set(overrides):
        raise DefinitionError(f"preset {name!r} needs seq", help="say how many keys there are, such as seq=2048")
    make = _OPERATORS[found.operator]
    unknown = [n for n in sizes if n not in inspect.signature(make).parameters]
    if unknown:
        raise DefinitionError(
            f"attention.{found.operator}, of which {name!r} is a preset, takes no {unknown[0]}",
            help="leave it out, or call the operator itself",
        )
    return make(**sizes)


def preset_function(name: str) -> Callable[..., Operator]:
    """The preset called `name` as a function with the operator's own parameters, for the command line."""
    found = PRESETS[name]
    taken = dict(inspect.signature(_OPERATORS[found.operator]).parameters)
    if found.takes_seq:
        del taken["q_len"], taken["kv_len"]
    else:
        del taken["seq"]
    make = partial(preset, name)
    parameters = [p.replace(kind=p.KEYWORD_ONLY, default=found.sizes.get(n, p.default)) for n, p in taken.items()]
    make.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    make.__doc__ = f"{found.operator} at the sizes of {found.model} ({found.paper})."
    return make


_OPERATORS: dict[str, Callable[..., Operator]] = {
    "full": full, "causal": causal, "alibi": alibi, "gqa": gqa, "softcap": softcap, "window": window,
}  # fmt: skip


def _causal_mask(params: Params) -> MaskMod:
    offset = params["kv_len"] - params["q_len"]

    def causal_mask(b, h, q, kv):
        return kv <= q + offset if offset else kv <= q

    return causal_mask


def _lengths(batch: int, heads: int, seq: int | None, head_dim: int, options: Options) -> Params:
    """The sizes, with `seq` written out; DefinitionError names an option that does not exist."""
    unknown = [n for n in options if n not in _DEFAULTS]
    if unknown:
        raise DefinitionError(f"there is no argument {unknown[0]!r}", help=f"one of {', '.join(_DEFAULTS)}")
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
    options: Options,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    live: bool = False,
) -> Operator:
    """The operator; kv_heads, v_head_dim, return_lse and empty_rows are recorded only where they say something."""
    if "causal" in own:
        check_switch("causal", own["causal"], DefinitionError)
    other = {"kv_heads": sizes["heads"], "v_head_dim": sizes["head_dim"]}
    positive(**{n: options[n] for n in other if options.get(n) is not None})
    given = {n: options.get(n) for n, usual in other.items() if options.get(n) not in (None, usual)}
    sizes = _checked({**sizes, **given})
    last: Params = {"dtype": options.get("dtype", "float16"), "scale": options.get("scale")}
    return_lse, empty_rows = options.get("return_lse", False), options.get("empty_rows", "nan")
    check_choice("empty_rows", empty_rows, get_args(EmptyRows), DefinitionError)
    if return_lse is not False:
        last["return_lse"] = return_lse
    if empty_rows != "nan":
        last["empty_rows"] = empty_rows
    params = {**sizes, **own, **last}
    return attention_operator(name, title, sizes_of(sizes), params, score_mod, mask_mod, live)
