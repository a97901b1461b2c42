"""The order of the axes of what a part computes per pair, so that its products need no transposed tile.

The gradient of the keys is a sum over queries: `d_k[j, d] = sum over i of d_qk[i, j] * q[i, d]`.  Its product
multiplies the transpose of d_qk.  A matrix unit takes its left factor from registers only as it was computed, so a
transpose costs a copy through shared memory per tile.  If the scores are computed as `qk[j, i]` from the start, the
factor is d_qk[j, i] itself, and only k and q, which are in shared memory anyway, are read transposed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from neptune_lab.loop_ir.dimensions import Dimension, Dimensions
from neptune_lab.loop_ir.nodes import Block, Expr, Load
from neptune_lab.loop_ir.products import is_product
from neptune_lab.operators.reverse_mode.stages import Stage, with_term


def left_factors(
    stages: Sequence[Stage],
    results: Collection[str],
    fold: Collection[Dimension],
    dims: Dimensions,
    blocks: Mapping[str, Block],
) -> dict[str, tuple[int, ...]]:
    """The stages of a part whose axes should be reordered: what it computes along a dimension that its last products
    fold, and which is the left factor of each of them.

    Args:
        stages: of the part.
        results: names of stages that keep their order.
        fold: dimensions that the last sums of the part fold.
        dims: of the definition.
        blocks: the definition's blocks, by name.

    Returns:
        By name, the new order of its axes: the folded one is the last. Empty if some product has what the part computes
        as its right factor.
    """
    if len(fold) != 1:
        return {}
    (folded,) = fold
    products = [stage for stage in stages if stage.reducer == "sum" and is_product(blocks[stage.name])]
    last = [stage for stage in products if folded in dims.all_of(blocks[stage.name], "reduce")]
    own: dict[str, frozenset[Dimension]] = {}
    for stage in stages:
        along = frozenset(dims.all_of(blocks[stage.name], "spatial"))
        computed = stage in products or (stage.reducer is None and any(own.get(r) == along for r in stage.reads))
        if computed and folded in along and stage.name not in results:
            own[stage.name] = along
    for stage in last:
        rows, columns = (dims.of(blocks[stage.name], name) for name, _ in stage.axes[-2:])
        if any(columns in own[read] or rows not in own[read] for read in stage.reads & own.keys()):
            return {}
    if not any(stage.reads & own.keys() for stage in last):
        return {}
    orders = {}
    for stage in stages:
        if stage.name in own:
            at = [dims.of(blocks[stage.name], name) for name, _ in stage.axes].index(folded)
            order = (*(n for n in range(len(stage.axes)) if n != at), at)
            if order != tuple(range(len(order))):
                orders[stage.name] = order
    return orders


def reordered(stage: Stage, orders: Mapping[str, tuple[int, ...]]) -> Stage:
    """The stage with other orders of its own axes and of those of the tensors that it reads:

        d_qk[i, j] = w[i, j] * s[i, j]    ⇒    d_qk[j, i] = w[j, i] * s[j, i]

    Formal statement: every stage that reads a reordered tensor is rewritten with the same `orders`.

    Args:
        stage: any stage.
        orders: by tensor, for each new axis the number of the old one.

    Returns:
        The new stage; the same object if it neither is nor reads one of them.
    """

    def rule(node: Expr) -> Expr:
        if isinstance(node, Load) and node.buffer in orders:
            return Load(node.buffer, tuple(node.indices[n] for n in orders[node.buffer]))
        return node

    stage = with_term(stage, rule)
    if stage.name not in orders:
        return stage
    return replace(stage, axes=tuple(stage.axes[n] for n in orders[stage.name]))


__all__ = ["left_factors", "reordered"]
