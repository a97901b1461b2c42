"""The derivative of masked scores: the mask of a softmax need not be applied again to the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op
from neptune_lab.loop_ir.walks import loads
from neptune_lab.operators.reverse_mode.part import Part
from neptune_lab.operators.reverse_mode.softmaxes import Softmax
from neptune_lab.operators.reverse_mode.stages import Stage


def is_weighted(stage: Stage, parts: Sequence[Part], softmaxes: Sequence[Softmax]) -> bool:
    """Whether the cotangent of a stage is a multiple of the weights of a softmax whose scores the stage is.

    Args:
        stage: of the definition.
        parts: of its cotangent.
        softmaxes: of the definition.
    """
    own = (s for s in softmaxes if isinstance(s.scores, Load) and s.scores.buffer == stage.name)
    return any(all(part.reader == s.weights for part in parts) for s in own)


def is_of_products(stage: Stage, stages: Sequence[Stage]) -> bool:
    """Whether a stage is computed from a reduction, such as scores from products of queries and keys.

    Elsewhere a mask is applied to the gradient again, which costs nothing beside reading the scores: so hidden elements
    have gradient 0 in a row with a NaN too, whose weights are NaN.

    Args:
        stage: of the definition.
        stages: all of them.
    """
    by_name = {s.name: s for s in stages}
    waiting, seen = [stage], {stage.name}
    while waiting:
        for read in loads(waiting.pop().term):
            source = by_name.get(read.buffer)
            if source is None or source.name in seen:
                continue
            if source.reducer is not None:
                return True
            seen.add(source.name)
            waiting.append(source)
    return False


def of_visible(term: Expr, slope: Expr) -> Expr:
    """The derivative of a score where it is not -inf, in place of 0 where it is:

        score = select(mask, x, -inf)        d_x = select(mask, d_score * slope, 0)    ⇒    d_x = d_score * slope

    Formal statement: `d_score` is a multiple of the weight exp(score - lse) (`is_weighted`), of scores that are
    computed from products (`is_of_products`), where hidden tiles are skipped.  Where the mask hides an element, its
    score is -inf and its weight 0, so the multiple is 0 already.  As where tiles are skipped, the other factor is
    assumed to be finite: it is the product of a value and the gradient of the output.

    Args:
        term: of the stage of the scores.
        slope: its derivative with respect to one read.

    Returns:
        The derivative; the same object if the term is no choice of -inf.
    """
    match term, slope:
        case Op("select", (mask, x, Const(lowest))), Op("select", (same, inner, Const(zero))) if (
            mask == same and lowest == -math.inf and zero == 0
        ):
            return of_visible(x, inner)
    return slope


__all__ = ["is_of_products", "is_weighted", "of_visible"]
