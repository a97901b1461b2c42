"""Stages of flattened rows along the dimensions that were flattened.

A loss of `x.reshape(-1, width)` has one axis r for the rows of x[r // 1024, r % 1024, c]; the gradient of x has two.
Stages along r and stages along both share no loop.  So an axis whose digits are read becomes two axes, one per digit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, Var
from neptune_lab.loop_ir.simplify import simplify
from neptune_lab.loop_ir.walks import substitute, transform, variables, walk
from neptune_lab.operators.reverse_mode.stages import Axis, Stage, with_term

# Axes that are cut at most, of all stages together.
_MOST = 256


@dataclass(frozen=True, slots=True)
class _Cut:
    """An axis of a stage, and the number of values of its lower digit."""

    stage: Stage
    axis: Axis
    size: int


def along_digits(stages: Sequence[Stage], results: Collection[str]) -> tuple[Stage, ...]:
    """Before => after, with 4 * 1024 rows:

        s[r] = sum over c of x[r // 1024, r % 1024, c]      (r in 4096)
        y[a, b, c] = x[a, b, c] - s[a * 1024 + b]
        =>
        s[a, b] = sum over c of x[a, b, c]                  (a in 4, b in 1024)
        y[a, b, c] = x[a, b, c] - s[a, b]

    Formal statement: a and b are the digits of r in base 1024, and r takes every value once, so a sum over r has the
    same terms in the same order.  A result keeps its shape: if a stage that would have to follow is one, or a stage is
    read at an index whose digits are not known, all stages stay as they are.

    Args:
        stages: each after those that it reads.
        results: stages whose shapes are given.

    Returns:
        The stages; the same objects where nothing is cut.
    """
    found = tuple(stages)
    for _ in range(_MOST):
        cut = next((cut for stage in found if (cut := _cut_of(stage))), None)
        if cut is None:
            return tuple(stages) if found == tuple(stages) else tuple(map(_simplified, found))
        if cut.stage.name in results and cut.axis in cut.stage.axes:
            break
        after = _with_axis_cut(found, cut)
        if after is None:
            break
        found = after
    return tuple(stages)


def _cut_of(stage: Stage) -> _Cut | None:
    """An axis of a stage of whose two digits its term reads at least one."""
    extents = stage.extents
    indices = (index for load in walk(stage.term) if isinstance(load, Load) for index in load.indices)
    for node in (node for index in indices for node in walk(index)):
        match node:
            case Op("floordiv" | "floormod", (Var(name), Const(int(size)))) if name in extents:
                extent = extents[name]
                if 1 < size < extent and extent % size == 0:
                    return _Cut(stage, (name, extent), size)
    return None


def _with_axis_cut(stages: Sequence[Stage], cut: _Cut) -> tuple[Stage, ...] | None:
    """The stages with one axis cut; None if a reader's digits are not known."""
    name, extent = cut.axis
    high, low = (unique(f"{name}{end}", cut.stage.extents.keys(), "_") for end in ("_high", "_low"))
    both: tuple[Axis, ...] = ((high, extent // cut.size), (low, cut.size))
    at: Expr = Op("add", (Op("mul", (Var(high), Const(cut.size))), Var(low)))

    def cut_axes(axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(new for axis in axes for new in (both if axis == cut.axis else (axis,)))

    own = replace(cut.stage, axes=cut_axes(cut.stage.axes), folded=cut_axes(cut.stage.folded))
    own = _simplified(replace(own, term=substitute(cut.stage.term, {name: at})))
    if own.axes == cut.stage.axes:
        return tuple(own if stage is cut.stage else stage for stage in stages)
    dim = cut.stage.axes.index(cut.axis)
    found: list[Stage] = []
    for stage in stages:
        if stage is cut.stage:
            found.append(own)
            continue
        reads = [x for x in walk(stage.term) if isinstance(x, Load) and x.buffer == own.name]
        digits = {x.indices[dim]: _digits(x.indices[dim], cut.size, stage.extents) for x in reads}
        if None in digits.values():
            return None

        def rule(node: Expr, digits: Mapping[Expr, tuple[Expr, Expr] | None] = digits) -> Expr:
            if isinstance(node, Load) and node.buffer == own.name:
                pair = digits[node.indices[dim]]
                assert pair is not None
                return Load(node.buffer, (*node.indices[:dim], *pair, *node.indices[dim + 1 :]))
            return node

        found.append(replace(stage, term=transform(stage.term, rule)) if reads else stage)
    return tuple(found)


def _digits(index: Expr, size: int, extents: Mapping[str, int]) -> tuple[Expr, Expr] | None:
    """The digits of an index: of a variable, which is then cut too, or of `a * size + b`; None for another one."""
    pair = Op("floordiv", (index, Const(size))), Op("floormod", (index, Const(size)))
    if isinstance(index, Var):
        return pair if extents.get(index.name, 0) % size == 0 else None
    high, low = (simplify(digit, extents) for digit in pair)
    divided = any(isinstance(x, Op) and x.name in ("floordiv", "floormod") for e in (high, low) for x in walk(e))
    return None if divided or not variables(index) else (high, low)


def _simplified(stage: Stage) -> Stage:
    """The stage with simplified indices."""
    extents = stage.extents

    def rule(node: Expr) -> Expr:
        if isinstance(node, Load):
            return Load(node.buffer, tuple(simplify(index, extents) for index in node.indices))
        return node

    return with_term(stage, rule)


__all__ = ["along_digits"]
