"""torch's scaled_dot_product_attention, taken apart into two products and a softmax between them."""

from __future__ import annotations

import math

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.lowering.contractions import contract
from neptune_lab.torch_to_stages.lowering.reductions import kept
from neptune_lab.torch_to_stages.lowering.softmax import parts
from neptune_lab.torch_to_stages.masks import chosen
from neptune_lab.torch_to_stages.values import Value


@lowers("scaled_dot_product_attention")
def attention(
    ctx: Context,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """softmax(scale * q @ k.T + mask) @ v; the division by the softmax's sum comes after the second product.

    A query whose scores are all -inf gives zeros, as torch does.
    """
    if dropout_p:
        raise ctx.refused(f"with dropout_p={dropout_p}")
    name = ctx.stages.hint
    most = max(q.ndim, k.ndim, v.ndim)
    q, k, v = (_with_dims(x, most) for x in (q, k, v))
    k, v = (_with_heads_of(x, q) if enable_gqa else x for x in (k, v))
    batch = "abcdef"[: q.ndim - 2]
    product = contract(ctx, q, k, (batch + "ik", batch + "jk", batch + "ij"), f"{name}_qk")
    factor = Const(1 / math.sqrt(q.shape[-1]) if scale is None else float(scale), "float32")
    mask = None if attn_mask is None else attn_mask.expanded(product.shape)

    def score(i: tuple[Expr, ...]) -> Expr:
        value: Expr = Op("mul", (product.at(i), ctx.as_dtype(factor, q.dtype)))
        lowest = ctx.as_dtype(Const(-math.inf, "float32"), q.dtype)
        if is_causal:
            value = chosen(Op("le", (i[-1], i[-2])), value, lowest)
        if mask is not None and mask.dtype == "bool":
            value = chosen(mask.at(i), value, lowest)
        elif mask is not None:
            value = Op("add", (value, ctx.as_dtype(mask.at(i), q.dtype)))
        return value

    scores = ctx.stages.map(Value(product.shape, q.dtype, score), f"{name}_scores")
    exponentials, largest, total = parts(ctx, scores, -1)
    values = contract(ctx, exponentials, v, (batch + "ij", batch + "je", batch + "ie"), f"{name}_acc")
    dims = (q.ndim - 1,)
    top, sums = (kept(x, scores, dims) for x in (largest, total))

    def normalised(a: Expr, s: Expr, m: Expr) -> Expr:
        value = Op("div", (a, s))
        if mask is None:
            return value
        lowest, zero = (ctx.as_dtype(Const(x, "float32"), q.dtype) for x in (-math.inf, 0.0))
        return Op("select", (Op("eq", (m, lowest)), zero, value))

    return ctx.elementwise(normalised, values, sums, top)


def _with_dims(x: Value, count: int) -> Value:
    """`x` with so many dimensions: those in front have the size 1."""
    skipped = count - x.ndim
    return x if not skipped else x.viewed((*(1 for _ in range(skipped)), *x.shape), lambda i: i[skipped:])


def _with_heads_of(x: Value, q: Value) -> Value:
    """`x` with as many heads as `q`: each of its heads serves a group of consecutive ones."""
    group = q.shape[-3] // x.shape[-3]
    if group == 1:
        return x
    shape = (*x.shape[:-3], q.shape[-3], *x.shape[-2:])
    return x.viewed(shape, lambda i: (*i[:-3], Op("floordiv", (i[-3], Const(group))), *i[-2:]))
