"""Which blocks of a definition are matrix products, and of which factors."""

from __future__ import annotations

from neptune_lab.loop_ir.nodes import Block, Cast, Expr, Op
from neptune_lab.loop_ir.walks import loads, variables


def factors_of(block: Block) -> tuple[Expr, Expr] | None:
    """The two factors of the product that a block sums up.

    Args:
        block: a block of a definition.

    Returns:
        The factors; None if the block is no sum of products.
    """
    if not block.is_reduction or not isinstance(block.body.value, Op):
        return None
    term = block.body.value.args[1]
    while isinstance(term, Cast):
        term = term.arg
    return (term.args[0], term.args[1]) if isinstance(term, Op) and term.name == "mul" else None


def axes_of(factor: Expr) -> set[str]:
    """The variables in the indices of what an expression reads."""
    return {v for read in loads(factor) for i in read.indices for v in variables(i)}


def is_product(block: Block) -> bool:
    """Whether a block is a matrix product: a sum of products whose factors each have an axis that the other lacks.

    Args:
        block: a block of a definition.

    Returns:
        True if it is one.
    """
    if (factors := factors_of(block)) is None:
        return False
    spatial = {it.name for it in block.iters if it.kind == "spatial"}
    left, right = map(axes_of, factors)
    return bool((left - right) & spatial and (right - left) & spatial)


__all__ = ["axes_of", "factors_of", "is_product"]
