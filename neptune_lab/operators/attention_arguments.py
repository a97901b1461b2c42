"""What all operators of attention do with their arguments: sizes and options are checked, and become its params."""

from __future__ import annotations

from typing import Any, get_args

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.operators.attention_definition import attention_operator
from neptune_lab.operators.attention_options import DEFAULTS, AttentionOptions
from neptune_lab.operators.attention_sizes import EmptyRows, KeyPlace, MaskMod, ScoreMod, sizes_of
from neptune_lab.operators.base import Operator, Params, positive
from neptune_lab.strict.values import check_choice, check_switch


def lengths_of(batch: int, heads: int, seq: int | None, head_dim: int, options: AttentionOptions) -> Params:
    """The sizes, with q_len and kv_len in place of `seq`; DefinitionError if an option does not exist."""
    unknown = [n for n in options if n not in DEFAULTS]
    if unknown:
        known = ["batch", "heads", "seq", "head_dim", *DEFAULTS]
        raise DefinitionError(f"attention has no argument {unknown[0]!r}", help=nearest(unknown[0], known, "arguments"))
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
    return checked_sizes(sizes)


def checked_sizes(sizes: dict[str, Any]) -> Params:
    """The sizes as integers.

    Raises:
        DefinitionError: one is not a positive integer.
    """
    positive(**sizes)
    return {name: int(size) for name, size in sizes.items()}


def made_operator(
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
    sizes = checked_sizes(sizes)
    defaults = {"kv_heads": sizes["heads"], "v_head_dim": sizes["head_dim"]}
    positive(**{n: options[n] for n in defaults if options.get(n) is not None})
    differing = {n: options.get(n) for n, default in defaults.items() if options.get(n) not in (None, default)}
    sizes = checked_sizes({**sizes, **differing})
    last: Params = {"dtype": options.get("dtype", "float16"), "scale": options.get("scale")}
    return_lse, empty_rows = options.get("return_lse", False), options.get("empty_rows", "nan")
    check_choice("empty_rows", empty_rows, get_args(EmptyRows), DefinitionError)
    if return_lse is not False:
        last["return_lse"] = return_lse
    if empty_rows != "nan":
        last["empty_rows"] = empty_rows
    params = {**sizes, **own, **last}
    return attention_operator(name, title, sizes_of(params), params, score_mod, mask_mod, live, place)


__all__ = ["checked_sizes", "lengths_of", "made_operator"]
