"""Multi-head latent attention in its absorbed form: all heads read one latent per position, as keys and as values.

DeepSeek's MLA keeps, for each position, a latent c and a rotated key r, from which a head's key is (W_uk c, r) and its
value W_uv c.  W_uk can be multiplied with the queries once instead of with every latent, and W_uv with the result:

    q . (W_uk c, r) = (W_uk^T q_nope) . c + q_rope . r        sum_j p_j (W_uv c_j) = W_uv (sum_j p_j c_j)

What is left between the two products with weights is this operator.  Its values are a part of its keys: the definition
says so, and a kernel loads each latent once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import Arrays, Operator, TensorSpec, positive, source_of, supported, tensor_expressions
from neptune_lab.operators.dims import takes_dims
from neptune_lab.operators.stages import builder
from neptune_lab.strict.values import check_number, check_switch

WIDE = "float32"


def define_mla(
    batch: int, heads: int, q_len: int, kv_len: int, latent: int, rope: int, scale: float, causal: bool, dtype: str
) -> tuple[list[Any], list[Any]]:
    """Absorbed MLA as tensor expressions: the inputs and the outputs.

    The product of queries and keys is the sum of two, so that the first reads the tile of latents that the values are.
    """
    te = tensor_expressions()
    q = te.placeholder((batch, heads, q_len, latent + rope), dtype, name="q")
    kv = te.placeholder((batch, kv_len, latent + rope), dtype, name="kv")
    rows, scores = (batch, heads, q_len), (batch, heads, q_len, kv_len)
    c, r = te.reduce_axis((0, latent), name="c"), te.reduce_axis((0, rope), name="r")
    qk_latent = te.compute(
        scores,
        lambda b, h, i, j: te.sum(q[b, h, i, c].astype(WIDE) * kv[b, j, c].astype(WIDE), axis=c),
        name="qk_latent",
    )
    qk_rope = te.compute(
        scores,
        lambda b, h, i, j: te.sum(q[b, h, i, latent + r].astype(WIDE) * kv[b, j, latent + r].astype(WIDE), axis=r),
        name="qk_rope",
    )

    def scaled(b, h, i, j):
        value = (qk_latent[b, h, i, j] + qk_rope[b, h, i, j]) * te.const(scale, WIDE)
        seen = j <= i + (kv_len - q_len)
        return te.if_then_else(seen, value, te.const(float("-inf"), WIDE)) if causal and q_len > 1 else value

    score = te.compute(scores, scaled, name="score")
    j = te.reduce_axis((0, kv_len), name="j")
    s_max = te.compute(rows, lambda b, h, i: te.max(score[b, h, i, j], axis=j), name="s_max")
    s_exp = te.compute(scores, lambda b, h, i, j: te.exp(score[b, h, i, j] - s_max[b, h, i]), name="s_exp")
    s_sum = te.compute(rows, lambda b, h, i: te.sum(s_exp[b, h, i, j], axis=j), name="s_sum")
    p = te.compute(scores, lambda *at: s_exp[at].astype(dtype), name="p")
    acc = te.compute(
        (*rows, latent),
        lambda b, h, i, c: te.sum(p[b, h, i, j].astype(WIDE) * kv[b, j, c].astype(WIDE), axis=j),
        name="acc",
    )
    out = te.compute((*rows, latent), lambda b, h, i, c: (acc[b, h, i, c] / s_sum[b, h, i]).astype(dtype), name="out")
    return [q, kv], [out]


_STAGES = ("qk_latent", "qk_rope", "score", "s_max", "s_exp", "s_sum", "p", "acc", "out")


@takes_dims
def mla(
    batch: int = 1,
    heads: int = 16,
    q_len: int = 1,
    kv_len: int = 8,
    latent: int = 512,
    rope: int = 64,
    nope: int = 128,
    causal: bool = True,
    scale: float | None = None,
    dtype: str = "float16",
) -> Operator:
    """Absorbed multi-head latent attention: `q` (batch, heads, q_len, latent + rope), the queries after W_uk and the
    rotated ones side by side, and `kv` (batch, kv_len, latent + rope), latents and rotated keys side by side, to `out`
    (batch, heads, q_len, latent), before W_uv.

        score[b, h, i, j] = scale * sum over d of q[b, h, i, d] * kv[b, j, d]
        out[b, h, i, c] = sum over j of softmax over j (score[b, h, i, j]) * kv[b, j, c]        for c < latent

    The defaults are the sizes of DeepSeek-V2-Lite.  Source: DeepSeek-AI, "DeepSeek-V2", 2024, 2.1 and appendix C.

    Args:
        batch: number of sequences.
        heads: number of query heads; all read the same latents.
        q_len: queries of a sequence, its last positions; 1 in decoding.
        kv_len: positions in the cache.
        latent: width of a latent.
        rope: width of a rotated key.
        nope: width of a head's query before W_uk; it determines the scale alone.
        causal: a query sees only the positions up to its own.
        scale: factor of the scores; None: (nope + rope)**-0.5, that of the form that is not absorbed.
        dtype: "float16", "bfloat16" or "float32", of the inputs and the output.

    Returns:
        The operator, from `q` and `kv` to `out`.

    Raises:
        DefinitionError: a size that is not a positive integer, another dtype, more queries than positions with
            causal=True, or a scale that is no number.
    """
    sizes = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len, "latent": latent, "rope": rope}
    positive(**sizes, nope=nope)
    supported(dtype, "float16", "bfloat16", "float32")
    check_switch("causal", causal, DefinitionError)
    if causal and q_len > kv_len:
        raise DefinitionError(
            f"q_len={q_len} with kv_len={kv_len}: expected at most as many queries as positions",
            help="queries are the last positions of the cache; give causal=False if they see all of it",
        )
    check_number("scale", scale, DefinitionError, optional=True)
    scale = float((nope + rope) ** -0.5 if scale is None else scale)
    shapes = (batch, heads, q_len, latent + rope), (batch, kv_len, latent + rope)

    def compute(q: np.ndarray, kv: np.ndarray) -> Arrays:
        score = np.einsum("bhid,bjd->bhij", q, kv) * scale
        if causal:
            score = np.where(np.arange(kv_len) <= np.arange(q_len)[:, None] + (kv_len - q_len), score, -np.inf)
        weights = np.exp(score - score.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (np.einsum("bhij,bjc->bhic", weights, kv[..., :latent]),)

    made = (batch, heads, q_len, kv_len, latent, rope, scale, causal, dtype)
    params = {**{name: int(n) for name, n in sizes.items()}, "nope": int(nope), "causal": causal, "scale": scale}
    return Operator(
        name="mla",
        title="Multi-head latent attention, absorbed",
        doc="DeepSeek-V2, 2.1",
        params={**params, "dtype": dtype},
        inputs=tuple(TensorSpec(name, shape, dtype) for name, shape in zip(("q", "kv"), shapes, strict=True)),
        outputs=(TensorSpec("out", (batch, heads, q_len, latent), dtype),),
        source=source_of(define_mla),
        build=builder("mla", _STAGES, define_mla, *made),
        compute=compute,
        draw=lambda rng: tuple(rng.standard_normal(shape) for shape in shapes),
    )


__all__ = ["define_mla", "mla"]
