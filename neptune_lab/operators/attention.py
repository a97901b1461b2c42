"""Attention, as in the paper's Figure 12: scores, a mod, a mask, softmax, and the weighted sum of values.

`score_mod(score, b, h, q, kv)` and `mask_mod(b, h, q, kv)` have FlexAttention's signatures.  One mod serves two
purposes: it is called once with symbols, which makes the definition, and again with NumPy arrays, which makes the
float64 reference.  So it is written in Python's operators (`+ - * / // % **`, comparisons, `&`, `|`, `~`) and the
functions of `operators.math` (torch's and NumPy's own functions of the same names work on a mod's arguments too),
and never in `if`, `and`, `or`, `not`, which would need one truth value for all positions.

    >>> def window(b, h, q, kv):
    ...     return (q >= kv) & (q - kv <= 2)
    >>> general(1, 1, 8, 8, 4, mask_mod=window).params["mask_mod"]
    'window'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import (
    Arrays,
    Operator,
    Params,
    TensorSpec,
    name_of,
    positive,
    source_of,
    supported,
    tensor_expressions,
)
from neptune_lab.operators.math import call_mod

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Program, Stmt

ScoreMod: TypeAlias = Callable[[Any, Any, Any, Any, Any], Any]
MaskMod: TypeAlias = Callable[[Any, Any, Any, Any], Any]

# Rows of the score matrix that the reference holds at once: at most 2**22 float64 values, 32 MiB.
_REFERENCE_VALUES = 1 << 22


def define_attention(
    batch: int,
    heads: int,
    q_len: int,
    kv_len: int,
    head_dim: int,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    dtype: str,
    scale: float,
) -> tuple[list[Any], list[Any]]:
    """Attention as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    queries, scores = (batch, heads, q_len), (batch, heads, q_len, kv_len)
    q = te.placeholder((batch, heads, q_len, head_dim), dtype, name="q")
    k = te.placeholder((batch, heads, kv_len, head_dim), dtype, name="k")
    v = te.placeholder((batch, heads, kv_len, head_dim), dtype, name="v")
    d = te.reduce_axis((0, head_dim), name="d")
    qk = te.compute(
        scores,
        lambda b, h, i, j: te.sum(q[b, h, i, d].astype("float32") * k[b, h, j, d].astype("float32"), axis=d),
        name="qk",
    )

    def modified(b, h, i, j):
        score = qk[b, h, i, j] * te.const(scale, "float32")
        if score_mod is not None:
            score = call_mod("score_mod", score_mod, score, b, h, i, j)
        if mask_mod is not None:
            mask = call_mod("mask_mod", mask_mod, b, h, i, j)
            score = te.if_then_else(mask, score, te.const(float("-inf"), "float32"))
        return score

    score = te.compute(scores, modified, name="score")
    j = te.reduce_axis((0, kv_len), name="j")
    s_max = te.compute(queries, lambda b, h, i: te.max(score[b, h, i, j], axis=j), name="s_max")
    s_exp = te.compute(scores, lambda b, h, i, j: te.exp(score[b, h, i, j] - s_max[b, h, i]), name="s_exp")
    s_sum = te.compute(queries, lambda b, h, i: te.sum(s_exp[b, h, i, j], axis=j), name="s_sum")
    p = te.compute(scores, lambda b, h, i, j: s_exp[b, h, i, j].astype(dtype), name="p")
    acc = te.compute(
        (batch, heads, q_len, head_dim),
        lambda b, h, i, d: te.sum(p[b, h, i, j].astype("float32") * v[b, h, j, d].astype("float32"), axis=j),
        name="acc",
    )
    out = te.compute(
        (batch, heads, q_len, head_dim),
        lambda b, h, i, d: (acc[b, h, i, d] / s_sum[b, h, i]).astype(dtype),
        name="out",
    )
    return [q, k, v], [out]


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
) -> Operator:
    """`q` (batch, heads, q_len, head_dim), `k` and `v` (batch, heads, kv_len, head_dim) to `out`, shaped like `q`.

    Args:
        batch: number of sequences.
        heads: number of heads, the same for queries, keys and values.
        q_len: number of queries.
        kv_len: number of keys and values.
        head_dim: width of a head.
        score_mod: the score after scaling, in float32, to another; None leaves it.
        mask_mod: where it is false, the score counts as -inf; None masks nothing.  A row without any true position
            is NaN in the output.
        dtype: "float16" or "float32", of the inputs and the output; sums are in float32.
        scale: factor of the scores; 1/sqrt(head_dim) where None.
    """
    params = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len, "head_dim": head_dim}
    positive(**params)
    params = {name: int(size) for name, size in params.items()}
    mods = {"score_mod": score_mod and name_of(score_mod), "mask_mod": mask_mod and name_of(mask_mod)}
    return _attention(
        "attention_general", "Attention", {**params, **mods, "dtype": dtype, "scale": scale}, score_mod, mask_mod
    )


def global_(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    *,
    q_len: int | None = None,
    kv_len: int | None = None,
    dtype: str = "float16",
    scale: float | None = None,
) -> Operator:
    """Every query sees every key; `seq` is both lengths, or `q_len` and `kv_len` are given.  Otherwise as `general`."""
    params = _lengths(batch, heads, seq, q_len, kv_len, head_dim)
    return _attention("attention_global", "Global attention", {**params, "dtype": dtype, "scale": scale}, None, None)


def causal(
    batch: int = 1,
    heads: int = 1,
    seq: int | None = None,
    head_dim: int = 64,
    *,
    q_len: int | None = None,
    kv_len: int | None = None,
    dtype: str = "float16",
    scale: float | None = None,
) -> Operator:
    """A query sees the keys up to its own position; the last query's position is the last key's.

    `seq` is both lengths, or `q_len` and `kv_len` are given.  With more queries than keys, the first queries see
    nothing, and their rows are NaN.  Otherwise as `general`.
    """
    params = _lengths(batch, heads, seq, q_len, kv_len, head_dim)
    offset = params["kv_len"] - params["q_len"]

    def causal_mask(b, h, q, kv):
        return kv <= q + offset if offset else kv <= q

    record = {**params, "dtype": dtype, "scale": scale}
    return _attention("attention_causal", "Causal attention", record, None, causal_mask)


def _lengths(
    batch: int, heads: int, seq: int | None, q_len: int | None, kv_len: int | None, head_dim: int
) -> dict[str, int]:
    """The sizes, with `seq` written out."""
    if (seq is None) == (q_len is None and kv_len is None):
        raise DefinitionError(f"seq={seq!r}, q_len={q_len!r}, kv_len={kv_len!r}: give seq, or q_len and kv_len")
    if seq is not None:
        positive(seq=seq)
        q_len = kv_len = seq
    sizes: dict[str, Any] = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len, "head_dim": head_dim}
    positive(**sizes)
    return {name: int(size) for name, size in sizes.items()}


def _attention(name: str, title: str, params: Params, score_mod: ScoreMod | None, mask_mod: MaskMod | None) -> Operator:
    b, h, q_len, kv_len, d = (params[n] for n in ("batch", "heads", "q_len", "kv_len", "head_dim"))
    dtype, scale = params["dtype"], params["scale"]
    supported(dtype, "float16", "float32")
    if scale is None:
        scale = d**-0.5
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not isfinite(scale):
        raise DefinitionError(f"scale={scale!r}: expected a finite number")
    scale = float(scale)
    # The mods are tried on one position, so that a mistake in them shows here and needs no TVM.
    zero = np.zeros((1, 1, 1, 1), dtype=np.int64)
    if score_mod is not None:
        call_mod("score_mod", score_mod, zero.astype(np.float64), zero, zero, zero, zero)
    if mask_mod is not None:
        call_mod("mask_mod", mask_mod, zero, zero, zero, zero)

    def build() -> Program:
        from neptune_lab.loop_ir.tvm_compat import from_te

        program = from_te(name, *define_attention(b, h, q_len, kv_len, d, score_mod, mask_mod, dtype, scale))
        return replace(program, body=tuple(sorted(program.body, key=_stage)))

    def compute(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Arrays:
        return (_reference(q, k, v, score_mod, mask_mod, scale),)

    def draw(rng: np.random.Generator) -> Arrays:
        return tuple(rng.standard_normal((b, h, n, d)) for n in (q_len, kv_len, kv_len))

    mods = [source_of(mod) for mod in (score_mod, mask_mod) if mod is not None]
    return Operator(
        name=name,
        title=title,
        doc="Neptune, Figure 12 (appendix A)",
        params={**params, "scale": scale},
        inputs=(
            TensorSpec("q", (b, h, q_len, d), dtype),
            TensorSpec("k", (b, h, kv_len, d), dtype),
            TensorSpec("v", (b, h, kv_len, d), dtype),
        ),
        outputs=(TensorSpec("out", (b, h, q_len, d), dtype),),
        source="\n\n".join([*mods, source_of(define_attention)]),
        template="split_k_update" if q_len == 1 else "rolling_update",
        build=build,
        compute=compute,
        draw=draw,
    )


# The order of the definition; TVM gives the stages in the order in which `out` reaches them.
_STAGES = ("qk", "score", "s_max", "s_exp", "s_sum", "p", "acc", "out")


def _stage(stmt: Stmt) -> int:
    """Where the one block of a loop nest stands in the definition."""
    from neptune_lab.loop_ir.nodes import Loop

    while isinstance(stmt, Loop):
        (stmt,) = stmt.body
    return _STAGES.index(stmt.name)


def _reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    scale: float,
) -> np.ndarray:
    """The definition in float64, a head and a chunk of rows at a time; a fully masked row is NaN."""
    out = np.empty_like(q)
    batch, heads, q_len, _ = q.shape
    kv_len = k.shape[2]
    rows = max(1, _REFERENCE_VALUES // kv_len)
    for b, h in np.ndindex(batch, heads):
        for start in range(0, q_len, rows):
            stop = min(start + rows, q_len)
            index = np.ogrid[b : b + 1, h : h + 1, start:stop, 0:kv_len]
            score = (q[b, h, start:stop] @ k[b, h].T * scale)[None, None]
            if score_mod is not None:
                score = call_mod("score_mod", score_mod, score, *index)
            if mask_mod is not None:
                score = np.where(call_mod("mask_mod", mask_mod, *index), score, -np.inf)
            score = np.broadcast_to(score, (1, 1, stop - start, kv_len))[0, 0]
            with np.errstate(invalid="ignore"):
                weights = np.exp(score - score.max(axis=1, keepdims=True))
                out[b, h, start:stop] = weights @ v[b, h] / weights.sum(axis=1, keepdims=True)
    return out
