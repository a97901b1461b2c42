"""What a nest stores for a later part: pairs in 16 bits, if it rounds them anyway and the result has no more digits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neptune_lab.loop_ir.nodes import Cast, Expr, Load
from neptune_lab.operators.reverse_mode.stages import Stage, needed, with_term

# A dtype of 16 bits with the exponents of float32, so that small cotangents, of which many are added up, are not 0.
ROUNDED = "bfloat16"


def read_rounded(rest: Sequence[Stage], nest: Sequence[Stage], results: Collection[str]) -> tuple[Stage, ...]:
    """The stages of a later part, which read rounded what the nest before rounds for its product.

    before ⇒ after:
        nest: d_score[b, h, i, j] = …; rounded[b, h, i, j] = bfloat16(d_score[b, h, i, j]); d_q = sum of rounded * k
        rest: d_bias[h, i, j] = sum over b of d_score[b, h, i, j]   ⇒   sum over b of float32(rounded[b, h, i, j])

    Formal statement: the nest rounds every element of that stage, and every result that reads it in the rest is of the
    dtype that it is rounded to, so it has no more digits; the gradient of the queries is a sum of the same numbers.

    Args:
        rest: the stages of the later part.
        nest: the stages of the nest.
        results: names of the definition's results.
    """
    rounded = {
        stage.term.arg.buffer: stage
        for stage in nest
        if isinstance(stage.term, Cast) and stage.dtype == ROUNDED and isinstance(stage.term.arg, Load)
        if stage.reducer is None and stage.term.arg.indices == stage.place
    }
    own = {stage.name: stage for stage in nest}
    for name in [*rounded]:
        ends = [s for s in rest if s.name in results and any(name in x.reads for x in needed(rest, [s.name]))]
        if name not in own or not ends or any(end.dtype != ROUNDED for end in ends):
            del rounded[name]

    def rule(node: Expr) -> Expr:
        if isinstance(node, Load) and node.buffer in rounded:
            return Cast(own[node.buffer].dtype, Load(rounded[node.buffer].name, node.indices))
        return node

    return tuple(with_term(stage, rule) for stage in rest)


__all__ = ["read_rounded"]
