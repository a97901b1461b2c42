"""Questions about the terms of stages, and small rewrites of them, that reverse mode asks."""

from __future__ import annotations

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op
from neptune_lab.loop_ir.walks import loads, transform, variables
from neptune_lab.operators.reverse_mode.softmaxes import without_casts
from neptune_lab.operators.reverse_mode.stages import Stage


def by_value(slope: Expr, stage: Stage) -> Expr:
    """The derivative of a map with the map's value in place of the same term, such as exp(x) in that of exp(x)."""
    if stage.reducer is not None or isinstance(stage.term, Load | Const | Cast):
        return slope
    return transform(slope, lambda node: stage.element if node == stage.term else node)


def variables_of(read: Load) -> set[str]:
    """The variables in a read's indices."""
    return set().union(*map(variables, read.indices))


def is_rounded(term: Expr, element: Load) -> bool:
    """Whether a term is an element rounded, or 0 under a condition."""
    match term:
        case Op("select", (condition, a, b)):
            zeros = [x for x in (a, b) if isinstance(x, Const) and x.value == 0]
            others = [x for x in (a, b) if x not in zeros]
            return (
                bool(zeros) and len(others) == 1 and is_rounded(others[0], element) and element not in loads(condition)
            )
    return without_casts(term) == element


__all__ = ["by_value", "is_rounded", "variables_of"]
