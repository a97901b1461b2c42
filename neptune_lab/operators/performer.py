"""Performer attention: softmax attention approximated by positive random features, linear in the sequence length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import Arrays, Operator, TensorSpec, positive, source_of, supported, tensor_expressions
from neptune_lab.operators.dims import takes_dims
from neptune_lab.operators.stages import builder
from neptune_lab.strict.values import check_number

Definition = tuple[list[Any], list[Any]]


WIDE = "float32"


def define_performer(
    batch: int, heads: int, seq: int, head_dim: int, features: int, eps: float, dtype: str
) -> Definition:
    """Performer as tensor expressions: the inputs and the outputs.

    No reduction folds exponential + eps, for which there is no repair term; each folds the exponential alone.  So eps
    enters through sums of its own, which no maximum affects: sum((e + eps) * v) = sum(e * v) + eps * sum(v).
    """
    te = tensor_expressions()
    rows = (batch, heads, seq)
    q, k, v = (te.placeholder((*rows, head_dim), dtype, name=name) for name in "qkv")
    proj = te.placeholder((features, head_dim), dtype, name="proj")
    k_sum, kv = _key_sums(te, k, v, proj, eps)
    return [q, k, v, proj], [_query_outputs(te, q, proj, k_sum, kv, eps)]


def _projected(te: Any, x: Any, proj: Any, name: str) -> tuple[Any, Any]:
    """x @ proj.T, normalised; and half the squared norm of each row of x, normalised likewise."""
    *rows, head_dim = (int(n) for n in x.shape)
    norm, half = te.const(head_dim**-0.25, WIDE), te.const(0.5 * head_dim**-0.5, WIDE)
    c = te.reduce_axis((0, head_dim), name="c")
    scores = (*rows, int(proj.shape[0]))
    dot = te.compute(
        scores,
        lambda b, h, i, m: te.sum(x[b, h, i, c].astype(WIDE) * proj[m, c].astype(WIDE), axis=c),
        name=f"{name}_dot",
    )
    dash = te.compute(scores, lambda b, h, i, m: dot[b, h, i, m] * norm, name=f"{name}_dash")
    square = te.compute(
        rows,
        lambda b, h, i: te.sum(x[b, h, i, c].astype(WIDE) * x[b, h, i, c].astype(WIDE), axis=c),
        name=f"{name}_square",
    )
    return dash, te.compute(rows, lambda b, h, i: square[b, h, i] * half, name=f"{name}_diag")


def _key_sums(te: Any, k: Any, v: Any, proj: Any, eps: float) -> tuple[Any, Any]:
    """phi(k).T @ 1 and phi(k).T @ v: the keys' features, summed over positions."""
    *group, seq, head_dim = (int(n) for n in k.shape)
    features, dtype = int(proj.shape[0]), k.dtype
    ratio = te.const(features**-0.5, WIDE)
    dash, diag = _projected(te, k, proj, "k")
    i, m = te.reduce_axis((0, seq), name="i"), te.reduce_axis((0, features), name="m")
    k_max = te.compute(group, lambda b, h: te.max(dash[b, h, i, m], axis=[i, m]), name="k_max")
    k_exp = te.compute(
        (*group, seq, features),
        lambda b, h, i, m: te.exp(dash[b, h, i, m] - diag[b, h, i] - k_max[b, h]),
        name="k_exp",
    )
    k_exp_sum = te.compute((*group, features), lambda b, h, m: te.sum(k_exp[b, h, i, m], axis=i), name="k_exp_sum")
    k_weight = te.compute((*group, seq, features), lambda *p: k_exp[p].astype(dtype), name="k_weight")
    kv_exp = te.compute(
        (*group, features, head_dim),
        lambda b, h, m, d: te.sum(k_weight[b, h, i, m].astype(WIDE) * v[b, h, i, d].astype(WIDE), axis=i),
        name="kv_exp",
    )
    v_sum = te.compute((*group, head_dim), lambda b, h, d: te.sum(v[b, h, i, d].astype(WIDE), axis=i), name="v_sum")
    # eps * seq is one number: as a product of two constants it would be rounded to float32.
    count = te.const(eps * seq, WIDE)
    k_sum = te.compute((*group, features), lambda b, h, m: ratio * (k_exp_sum[b, h, m] + count), name="k_sum")
    kv = te.compute(
        (*group, features, head_dim),
        lambda b, h, m, d: (ratio * _with_eps(te, eps, kv_exp[b, h, m, d], lambda: v_sum[b, h, d])).astype(dtype),
        name="kv",
    )
    return k_sum, kv


def _query_outputs(te: Any, q: Any, proj: Any, k_sum: Any, kv: Any, eps: float) -> Any:
    """phi(q) @ kv / (phi(q) @ k_sum): each query's features, multiplied by the sums over the keys."""
    *group, seq, head_dim = (int(n) for n in q.shape)
    rows, features, dtype = (*group, seq), int(proj.shape[0]), q.dtype
    ratio = te.const(features**-0.5, WIDE)
    dash, diag = _projected(te, q, proj, "q")
    m = te.reduce_axis((0, features), name="m")
    q_max = te.compute(rows, lambda b, h, i: te.max(dash[b, h, i, m], axis=m), name="q_max")
    q_exp = te.compute(
        (*rows, features),
        lambda b, h, i, m: te.exp(dash[b, h, i, m] - diag[b, h, i] - q_max[b, h, i]),
        name="q_exp",
    )
    den_exp = te.compute(rows, lambda b, h, i: te.sum(q_exp[b, h, i, m] * k_sum[b, h, m], axis=m), name="den_exp")
    q_weight = te.compute((*rows, features), lambda *p: q_exp[p].astype(dtype), name="q_weight")
    num_exp = te.compute(
        (*rows, head_dim),
        lambda b, h, i, d: te.sum(q_weight[b, h, i, m].astype(WIDE) * kv[b, h, m, d].astype(WIDE), axis=m),
        name="num_exp",
    )
    k_total = te.compute(group, lambda b, h: te.sum(k_sum[b, h, m], axis=m), name="k_total")
    kv_total = te.compute(
        (*group, head_dim), lambda b, h, d: te.sum(kv[b, h, m, d].astype(WIDE), axis=m), name="kv_total"
    )
    den = te.compute(
        rows, lambda b, h, i: ratio * _with_eps(te, eps, den_exp[b, h, i], lambda: k_total[b, h]), name="den"
    )
    num = te.compute(
        (*rows, head_dim),
        lambda b, h, i, d: ratio * _with_eps(te, eps, num_exp[b, h, i, d], lambda: kv_total[b, h, d]),
        name="num",
    )
    return te.compute((*rows, head_dim), lambda b, h, i, d: (num[b, h, i, d] / den[b, h, i]).astype(dtype), name="out")


def _with_eps(te: Any, eps: float, value: Any, term: Callable[[], Any]) -> Any:
    """value + eps * term(); if eps is 0, the value alone, so that the stage of the term is not needed."""
    return value + te.const(eps, WIDE) * term() if eps else value


# The parts of a feature map that depend on x alone come before its matrix product, and can be fused into its loop.
_STAGES = (
    *("k_square", "k_diag", "k_dot", "k_dash", "k_max", "k_exp", "k_exp_sum", "k_weight", "kv_exp", "v_sum"),
    *("k_sum", "kv", "k_total", "kv_total", "q_square", "q_diag", "q_dot", "q_dash", "q_max", "q_exp", "den_exp"),
    *("q_weight", "num_exp", "den", "num", "out"),
)


@takes_dims
def performer(
    batch: int = 1,
    heads: int = 1,
    seq: int = 8,
    head_dim: int = 64,
    features: int = 256,
    eps: float = 1e-4,
    dtype: str = "float16",
) -> Operator:
    """`q`, `k`, `v` (batch, heads, seq, head_dim) and `proj` (features, head_dim) to `out`, shaped like `q`.

    With the feature map phi(x) = features**-0.5 * (exp(dash - diag - max) + eps), where dash = head_dim**-0.25 *
    x @ proj.T and diag = |x|**2 / (2 * sqrt(head_dim)): out = phi(q) @ (phi(k).T @ v) / (phi(q) @ phi(k).T @ 1).
    For queries max is that of a row; for keys that of a (batch, head), over positions and features alike, so that it
    cancels.  The formulas are those of Neptune's appendix C (after Choromanski et al., "Rethinking Attention with
    Performers", 2021); eps is a common addition that keeps every feature positive.

    Exponentials, and the sums phi(k).T @ v, are rounded to `dtype` before a matrix product; sums are in float32.
    With 16-bit inputs and eps 0, keys whose exponentials are far below their maximum lose digits to that rounding.

    Args:
        batch: number of sequences.
        heads: number of heads.
        seq: number of positions.
        head_dim: width of a head.
        features: number of random features, the rows of `proj`.
        eps: number added to each exponential; 0 omits it and the stages that it needs.
        dtype: "float16", "bfloat16" or "float32", of the inputs and the output.

    Returns:
        The operator, from `q`, `k`, `v` and `proj` to `out`.

    Raises:
        DefinitionError: a size that is not a positive integer, another dtype, or an eps that is negative.
    """
    sizes = {"batch": batch, "heads": heads, "seq": seq, "head_dim": head_dim, "features": features}
    positive(**sizes)
    supported(dtype, "float16", "bfloat16", "float32")
    check_number("eps", eps, DefinitionError, from_zero=True)
    eps = float(eps)
    shape = (batch, heads, seq, head_dim)

    def compute(q: np.ndarray, k: np.ndarray, v: np.ndarray, proj: np.ndarray) -> Arrays:
        q_features = _feature_map(q, proj, eps, over=(-1,))
        k_features = _feature_map(k, proj, eps, over=(-2, -1))
        scores = q_features @ np.swapaxes(k_features, -1, -2)
        return (scores @ v / scores.sum(axis=-1, keepdims=True),)

    return Operator(
        name="performer",
        title="Performer attention",
        doc="Neptune, appendix C",
        params={**{name: int(size) for name, size in sizes.items()}, "eps": eps, "dtype": dtype},
        inputs=(*(TensorSpec(n, shape, dtype) for n in "qkv"), TensorSpec("proj", (features, head_dim), dtype)),
        outputs=(TensorSpec("out", shape, dtype),),
        source="\n".join(map(source_of, (define_performer, _projected, _key_sums, _query_outputs, _with_eps))),
        build=builder("performer", _STAGES, define_performer, batch, heads, seq, head_dim, features, eps, dtype),
        compute=compute,
        draw=lambda rng: tuple(rng.standard_normal(s) for s in (shape, shape, shape, (features, head_dim))),
    )


def _feature_map(x: np.ndarray, proj: np.ndarray, eps: float, over: tuple[int, ...]) -> np.ndarray:
    """phi(x) as one formula, its maximum taken over the axes `over`."""
    features, head_dim = proj.shape
    normal = x / head_dim**0.25
    dash = normal @ proj.T
    diag = np.square(normal).sum(axis=-1, keepdims=True) / 2
    return (np.exp(dash - diag - dash.max(axis=over, keepdims=True)) + eps) / features**0.5
