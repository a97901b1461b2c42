"""Gradients that a definition stops, in the stages of its backward pass.

A maximum that only keeps numbers in range has no gradient (`stabilisers`), so that a mark on it changes nothing:

    e[r, c] = exp(x[r, c] - stop_gradient(m[r]))    ⇒    e[r, c] = exp(x[r, c] - m[r])

Without it the stages are those of a softmax, for which there are better backward passes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neptune_lab.loop_ir.gradient_marks import followed, is_mark
from neptune_lab.loop_ir.nodes import Expr, Load, Op
from neptune_lab.loop_ir.walks import loads, walk
from neptune_lab.operators.reverse_mode.derivatives import Arithmetic
from neptune_lab.operators.reverse_mode.softmaxes import without_casts
from neptune_lab.operators.reverse_mode.stabilisers import without_gradient
from neptune_lab.operators.reverse_mode.stages import Stage, with_term


def without_needless_marks(
    stages: Sequence[Stage], outputs: Collection[str], arithmetic: Arithmetic
) -> tuple[Stage, ...]:
    """The stages without marks on maxima and minima on which no result depends.

    Formal statement: the cotangent of such a stage is 0 in the stages without these marks, and every read of it is
    marked, so the cotangents of all others are the same with them and without.

    Args:
        stages: of a definition, each after those that it reads.
        outputs: names of its results.
        arithmetic: of derivatives.
    """
    if not any(map(is_mark, (node for stage in stages for node in walk(stage.term)))):
        return tuple(stages)
    read = set().union(*(followed(stage.term) | _beside(stage.term) for stage in stages))
    asked = {s.name for s in stages if s.reducer in ("max", "min")} - read - set(outputs)
    while asked:
        plain = tuple(_unmarked(stage, asked) for stage in stages)
        proved = set(without_gradient(plain, outputs, asked, arithmetic))
        if proved == asked:
            return plain
        asked = proved
    return tuple(stages)


def without_marks(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages without marks."""
    return tuple(with_term(stage, lambda node: node.args[0] if is_mark(node) else node) for stage in stages)


def _unmarked(stage: Stage, names: Collection[str]) -> Stage:
    """The stage without marks on these tensors' elements."""
    return with_term(stage, lambda node: node.args[0] if is_mark(node) and _marks(node) in names else node)


def _marks(mark: Op) -> str:
    """The tensor of which the operand is an element, perhaps converted; "" for another expression."""
    element = without_casts(mark.args[0])
    return element.buffer if isinstance(element, Load) else ""


def _beside(expr: Expr) -> set[str]:
    """Names of the tensors that are read inside of marks on other expressions than an element."""
    inside = (mark.args[0] for mark in walk(expr) if is_mark(mark) and not _marks(mark))
    return {read.buffer for part in inside for read in loads(part)}


__all__ = ["without_marks", "without_needless_marks"]
