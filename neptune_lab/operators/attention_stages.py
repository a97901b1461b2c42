"""The stages that the whole attention family shares, as tensor expressions (paper, Figure 12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neptune_lab.operators.attention_formats import Formats
from neptune_lab.operators.attention_sizes import AttentionSizes, EmptyRows, KeyPlace, MaskMod, ScoreMod
from neptune_lab.operators.base import TensorSpec, tensor_expressions
from neptune_lab.operators.calling import call_mod
from neptune_lab.operators.operations import product
from neptune_lab.operators.scalar import Scalar


def define_attention(
    sizes: AttentionSizes,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    formats: Formats,
    scale: float,
    return_lse: bool = False,
    captured: tuple[Any, ...] = (),
    empty_rows: EmptyRows = "nan",
    wide: bool = False,
    return_max: bool = False,
    place: KeyPlace | None = None,
) -> tuple[list[Any], list[Any]]:
    """Attention as tensor expressions: the inputs and the outputs; `captured` are placeholders that the mods read.

    `formats` gives the dtypes; for 16 and 32 bits, all tensors have the same, and none has a scale.

    With `wide`, mods get positions of 64 bits, as in PyTorch; 32 bits are faster, and enough for most mods.  With
    `place`, k and v are caches of pages.
    """
    te = tensor_expressions()
    inputs = [te.placeholder(t.shape, t.dtype, name=t.name) for t in input_specs(sizes, formats)]
    q, k, v, *own_scales = inputs
    scales = dict(zip((t.name for t in formats.scale_specs), own_scales, strict=True))
    key = _elements(te, sizes, k, formats.scores, place)
    score = scores(te, sizes, formats, q, key, scales, score_mod, mask_mod, scale, wide)
    value = _elements(te, sizes, v, formats.weights, place, formats.v_transposed)
    outputs = softmax_outputs(te, sizes, formats, score, value, scales, return_lse, return_max, empty_rows)
    return [*inputs, *captured], outputs


def _elements(
    te: Any, sizes: AttentionSizes, tensor: Any, dtype: str, place: KeyPlace | None, transposed: bool = False
) -> Callable[..., Any]:
    """Element d of the key or value j that a head of rows reads, as a factor of products in `dtype`: a function of
    (b, h, j, d)."""

    def element(b: Any, h: Any, j: Any, d: Any) -> Any:
        if place is None:
            at = (d, j) if transposed else (j, d)
            return _factor(tensor[(sizes.kv_sample(b), sizes.kv_head_of_rows(h), *at)], dtype)
        page, slot, held = (part.value for part in place(Scalar(b), Scalar(j)))
        value = te.if_then_else(held, tensor[page, slot, sizes.kv_head_of_rows(h), d], te.const(0, tensor.dtype))
        return _factor(value, dtype)

    return element


def input_specs(sizes: AttentionSizes, formats: Formats) -> tuple[TensorSpec, ...]:
    """q, k, v and the scales."""
    shapes = sizes.shapes
    if formats.v_transposed:
        shapes["v"] = (*shapes["v"][:2], sizes.v_head_dim, sizes.kv_len)
    own = (TensorSpec(name, shapes[name], getattr(formats, name)) for name in ("q", "k", "v"))
    return (*own, *formats.scale_specs)


def scores(
    te: Any,
    sizes: AttentionSizes,
    formats: Formats,
    q: Any,
    key: Callable[..., Any],
    scales: Mapping[str, Any],
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    scale: float,
    wide: bool,
) -> Any:
    """The scaled product of queries and keys, after the mods, in float32; `key` as made by `_elements`."""
    shape = (*sizes.rows, sizes.kv_len)
    d = te.reduce_axis((0, sizes.head_dim), name="d")

    def scored(b, h, i, j):
        head, query = sizes.query_of(h, i)
        return te.sum(_factor(q[b, head, query, d], formats.scores) * key(b, h, j, d), axis=d)

    qk = te.compute(shape, scored, name="qk")

    def modified(b, h, i, j):
        factor = te.const(scale, "float32")
        for own in (
            formats.scale_of("q", scales, b, sizes.query_of(h, i)[0]),
            formats.scale_of("k", scales, sizes.kv_sample(b), sizes.kv_head_of_rows(h)),
        ):
            factor = factor if own is None else product(own, factor)
        score = product(qk(b, h, i, j), factor)
        h, i = sizes.query_of(h, i)
        if wide:
            b, h, i, j = (position.astype("int64") for position in (b, h, i, j))
        if score_mod is not None:
            score = call_mod("score_mod", score_mod, score, b, h, i, j)
        if mask_mod is not None:
            mask = call_mod("mask_mod", mask_mod, b, h, i, j)
            score = te.if_then_else(mask, score, te.const(float("-inf"), "float32"))
        return score

    return te.compute(shape, modified, name="score")


def _factor(element: Any, dtype: str) -> Any:
    """A factor of a matrix product, exactly converted to `dtype`; products are added in float32."""
    return element.astype(dtype).astype("float32")


def softmax_outputs(
    te: Any,
    sizes: AttentionSizes,
    formats: Formats,
    score: Any,
    value_of: Callable[..., Any],
    scales: Mapping[str, Any],
    return_lse: bool,
    return_max: bool,
    empty_rows: EmptyRows,
) -> list[Any]:
    """`out`, and with `return_lse` and `return_max` also `lse` and `max_scores`, from the scores.

    For a query that sees no key, s_max is -inf, so exp(score - s_max), s_sum and acc are NaN.  The outputs test s_max,
    once per query, so that the loops over keys need no test.
    """
    shapes, scores, largest = sizes.shapes, tuple(score.shape), formats.largest_weight
    queries, results = sizes.rows, shapes["lse"]
    j = te.reduce_axis((0, sizes.kv_len), name="j")
    s_max = te.compute(queries, lambda b, h, i: te.max(score[b, h, i, j], axis=j), name="s_max")
    s_exp = te.compute(scores, lambda b, h, i, j: te.exp(score[b, h, i, j] - s_max[b, h, i]), name="s_exp")
    s_sum = te.compute(queries, lambda b, h, i: te.sum(s_exp[b, h, i, j], axis=j), name="s_sum")

    def weight(b, h, i, j):
        # The factor is not in the exponent, where s_max would absorb it if it is large.
        value = s_exp[b, h, i, j] if largest == 1.0 else s_exp[b, h, i, j] * te.const(largest, "float32")
        return value.astype(formats.weights)

    p = te.compute(scores, weight, name="p")
    acc = te.compute(
        (*queries, sizes.v_head_dim),
        lambda b, h, i, d: te.sum(p[b, h, i, j].astype("float32") * value_of(b, h, j.var, d), axis=j),
        name="acc",
    )
    lowest = te.const(float("-inf"), "float32")

    def normalised(b, h, i, d):
        h, i = sizes.row_of(h, i)
        average = acc[b, h, i, d] / s_sum[b, h, i]
        average = average if largest == 1.0 else average * te.const(1.0 / largest, "float32")
        own = formats.scale_of("v", scales, sizes.kv_sample(b), sizes.kv_head_of_rows(h))
        average = (average if own is None else product(average, own)).astype(formats.out)
        if empty_rows == "nan":
            return average
        return te.if_then_else(s_max[b, h, i].equal(lowest), te.const(0.0, formats.out), average)

    def log_sum(b, h, i):
        h, i = sizes.row_of(h, i)
        return te.if_then_else(s_max[b, h, i].equal(lowest), lowest, s_max[b, h, i] + te.log(s_sum[b, h, i]))

    out = te.compute(shapes["out"], normalised, name="out")
    outputs = [out]
    if return_lse:
        outputs.append(te.compute(results, log_sum, name="lse"))
    if return_max:
        outputs.append(te.compute(results, lambda b, h, i: s_max[(b, *sizes.row_of(h, i))], name="max_scores"))
    return outputs


__all__ = ["define_attention", "input_specs", "scores", "softmax_outputs"]
