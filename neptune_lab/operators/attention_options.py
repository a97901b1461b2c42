"""The options that all attention operators share: their types, defaults and documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import ParamSpec, TypedDict

from neptune_lab.operators.attention_sizes import EmptyRows
from neptune_lab.operators.base import Operator

Own = ParamSpec("Own")


class AttentionOptions(TypedDict, total=False):
    """The keyword arguments of every attention operator, each of which describes them."""

    q_len: int | None
    kv_len: int | None
    kv_heads: int | None
    v_head_dim: int | None
    dtype: str
    scale: float | None
    return_lse: bool
    empty_rows: EmptyRows


DEFAULTS: AttentionOptions = {
    "q_len": None, "kv_len": None, "kv_heads": None, "v_head_dim": None, "dtype": "float16", "scale": None,
    "return_lse": False, "empty_rows": "nan",
}  # fmt: skip


# The arguments that all attention operators share, for their docstrings.
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
    "        exp(score); -inf for a query that sees no key.",
    "empty_rows": 'the value of `out` for a query that sees no key: "nan", or "zero" as in FlexAttention.',
}
_TENSORS = """\
`q` (batch, heads, q_len, head_dim), `k` (batch, kv_heads, kv_len, head_dim) and `v` (batch, kv_heads, kv_len,
v_head_dim) to `out` (batch, heads, q_len, v_head_dim); see the module for the formula."""
_RETURNS = """\
Returns:
    The operator, from `q`, `k`, `v` and the captured tensors to `out`, or to (`out`, `lse`); shapes as above.

Raises:
    DefinitionError: a size that is not a positive integer, another dtype, an argument out of range, or a mod that
        cannot be compiled; the message names it."""


def documented(make: Callable[Own, Operator]) -> Callable[Own, Operator]:
    """`make` with a docstring that also describes the tensors, the shared arguments, the result and the errors."""
    if make.__doc__:  # None under python -OO
        text, _, own = inspect.cleandoc(make.__doc__).partition("\n\nArgs:\n")
        shared = [n for n in inspect.signature(make).parameters if n in _SHARED and f"    {n}: " not in own]
        arguments = [*own.rstrip().splitlines(), *(f"    {n}: {_SHARED[n]}" for n in shared)]
        make.__doc__ = "\n".join([text, "", _TENSORS, "", "Args:", *arguments, "", _RETURNS])
    return make


def with_options(make: Callable[Own, Operator]) -> Callable[Own, Operator]:
    """`make(..., **options)` with a signature that names every option, for `help` and the command line."""
    signature = inspect.signature(make)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    hints = AttentionOptions.__annotations__
    more = [inspect.Parameter(n, kind, default=d, annotation=hints[n]) for n, d in DEFAULTS.items()]
    make.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return documented(make)


__all__ = ["DEFAULTS", "AttentionOptions", "documented", "with_options"]
