"""Attention, as in the paper's Figure 12: scores, a mod, a mask, softmax, and the weighted sum of values.

`general` takes any mods; `full`, `causal`, `alibi`, `softcap`, `window`, `prefix`, `document` and `gqa` have theirs;
`preset` gives one of them at a published model's sizes. Each computes

    score[b, h, i, j] = mod(scale * sum over d of q[b, h, i, d] * k[b, h // group, j, d])
    out[b, h, i, :] = sum over j of softmax over j (score[b, h, i, j]) * v[b, h // group, j, :]

from `q` (batch, heads, q_len, head_dim), `k` (batch, kv_heads, kv_len, head_dim) and `v` (batch, kv_heads, kv_len,
v_head_dim) to `out` (batch, heads, q_len, v_head_dim), all of one dtype, with group = heads // kv_heads, as in
FlexAttention's enable_gqa.

`score_mod(score, b, h, q, kv)` and `mask_mod(b, h, q, kv)` have FlexAttention's signatures.  A mod is called twice:
with symbols, which gives the definition, and with NumPy arrays, which gives the float64 reference.  So it must use
Python's operators (`+ - * / // % **`, comparisons, `&`, `|`, `~`) and the functions of `operators.math` (torch's and
NumPy's functions of the same names also accept a mod's arguments), and not `if`, `and`, `or`, `not`, which need one
truth value for all positions.

    >>> def window(b, h, q, kv):
    ...     return (q >= kv) & (q - kv <= 2)
    >>> general(1, 1, 8, 8, 4, mask_mod=window).params["mask_mod"]
    'window'

A mod may read elements of tensors that it captures (`operators.capture`); each becomes an input of the operator,
which a kernel supplies unless the caller does:

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


class AttentionOptions(TypedDict, total=False):
    """The keyword arguments of every operator of this module (`_SHARED` describes them)."""

    q_len: int | None
    kv_len: int | None
    kv_heads: int | None
    v_head_dim: int | None
    dtype: str
    scale: float | None
    return_lse: bool
    empty_rows: EmptyRows


_DEFAULTS: AttentionOptions = {
    "q_len": None, "kv_len": None, "kv_heads": None, "v_head_dim": None, "dtype": "float16", "scale": None,
    "return_lse": False, "empty_rows": "nan",
}  # fmt: skip


# The arguments of all operators of this module, for their docstrings.
_SHARED = {
    "batch": "number of sequences.",
    "heads": "number of query heads.",
    "seq": "number of queries and of keys; or give q_len and kv_len instead.",
    "q_len": "number of queries.",
    "kv_len": "number of keys.",
    "head_dim": "width of a head of `q` and `k`.",
    "kv_heads": "heads of `k` and `v`, a divisor of `heads`; None: as many as `heads`.",
    "v_head_dim": "width of a head of `v` and `out`; None: head_dim.",
    "dtype": '"float16", "bfloat16" or "float32", of the inputs and `out`; sums are in float32.',
    "scale": "factor of the scores; None: 1/sqrt(head_dim).",
    "return_lse": "also return `lse` (batch, heads, q_len) in float32, the natural logarithm of the sum over j of\n"
    "        exp(score); -inf for a row without any position to see.",
    "empty_rows": 'the value of `out` in such a row: "nan", or "zero" as in FlexAttention.',
}
_TENSORS = """\
`q` (batch, heads, q_len, head_dim), `k` (batch, kv_heads, kv_len, head_dim) and `v` (batch, kv_heads, kv_len,
v_head_dim) to `out` (batch, heads, q_len, v_head_dim); the module has the formula."""
_RETURNS = """\
Returns:
    The operator, from `q`, `k`, `v` and the captured tensors to `out`, or to (`out`, `lse`); shapes as above.

Raises:
    DefinitionError: a size that is not a positive integer, another dtype, an argument out of range, or a mod that
        cannot be compiled; the message names it."""


def _documented(make: Callable[Own, Operator]) -> Callable[Own, Operator]:
    """`make` with a docstring that describes the shared arguments, after its own, and the tensors."""
    if make.__doc__:  # None under python -OO
        text, _, own = inspect.cleandoc(make.__doc__).partition("\n\nArgs:\n")
        shared = [n for n in inspect.signature(make).parameters if n in _SHARED and f"    {n}: " not in own]
        arguments = [*own.rstrip().splitlines(), *(f"    {n}: {_SHARED[n]}" for n in shared)]
        make.__doc__ = "\n".join([text, "", _TENSORS, "", "Args:", *arguments, "", _RETURNS])
    return make


def _with_options(make: Callable[Own, Operator]) -> Callable[Own, Operator]:
    """`make(..., **options)` with a signature that names every option: `help` and the command line read it."""
    signature = inspect.signature(make)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    hints = AttentionOptions.__annotations__
    more = [inspect.Parameter(n, kind, default=d, annotation=hints[n]) for n, d in _DEFAULTS.items()]
    make.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return _documented(make)


@_documented
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
    """Attention with a score mod and a mask mod.

    Args:
        score_mod: from a scaled score in float32 to a new one; None: unchanged.
        mask_mod: if it is false, the score is -inf; None: no mask.
        live: do not copy captured tensors, for a kernel that gets them at each call (`operators.capture`).
    """
    params = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len, "head_dim": head_dim}
    mods = {
        name: None if mod is None else name_of(mod) for name, mod in (("score_mod", score_mod), ("mask_mod", mask_mod))
    }
    more = AttentionOptions(
        dtype=dtype, scale=scale, kv_heads=kv_heads, v_head_dim=v_head_dim, return_lse=return_lse, empty_rows=empty_rows
    )
    return _operator("attention_general", "Attention", params, mods, more, score_mod, mask_mod, live)


@_with_options
def full(
    batch: int = 1, heads: int = 1, seq: int | None = None, head_dim: int = 64, **options: Unpack[AttentionOptions]
) -> Operator:
    """Full attention: every query sees every key."""
    params = _lengths(batch, heads, seq, head_dim, options)
    return _operator("attention_full", "Full attention", params, {}, options, None, None)


@_with_options
def causal(
    batch: int = 1, heads: int = 1, seq: int | None = None, head_dim: int = 64, **options: Unpack[AttentionOptions]
) -> Operator:
    """Causal attention: a query sees the keys up to its own position.

    The last query's position is the last key's. With more queries than keys, the first queries see nothing.
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


@_with_options
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


@_with_options
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


@_with_options
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


@_with_options
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


@_with_options
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
    found = PRESETS[name]
    sizes = {**found.sizes, "batch": batch, **overrides}
    if found.decode and seq is not None:
        sizes = {"q_len": 1, "kv_len": seq, **sizes}
    elif seq is not None:
        sizes["seq"] = seq
    elif found.takes_seq and not {"q_len", "kv_len"} & set(overrides):
        raise DefinitionError(f"preset {name!r} needs seq", help="give the number of keys, such as seq=2048")
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


def _lengths(batch: int, heads: int, seq: int | None, head_dim: int, options: AttentionOptions) -> Params:
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
    options: AttentionOptions,
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
