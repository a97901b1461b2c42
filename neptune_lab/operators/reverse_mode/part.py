"""What one reader adds to a cotangent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, Var
from neptune_lab.loop_ir.walks import substitute, variables, walk
from neptune_lab.operators.reverse_mode.derivatives import Arithmetic
from neptune_lab.operators.reverse_mode.stages import Axis
from neptune_lab.operators.reverse_mode.transpose import transposed


@dataclass(frozen=True, slots=True)
class Part:
    """What one reader adds to a cotangent.

    Args:
        term: over the tensor's own axes and `free`.
        free: axes to sum over.
        reader: the stage that it comes from; "" for what is given.
        factor: of the whole part.  A constant stays apart from the term until a part with another one is added, or to
            the end: cotangents are linear, and a product per element is saved.
        rules: names of the rules that gave it (`rules.rule`), the outermost first.
    """

    term: Expr
    free: tuple[Axis, ...]
    reader: str = ""
    factor: float = 1.0
    rules: tuple[str, ...] = ()


def apart(slope: Expr, a: Arithmetic) -> tuple[float, Expr]:
    """A derivative as a number times the rest.

    Args:
        slope: the derivative.
        a: arithmetic of its dtype.

    Returns:
        The number, 1 if there is none, and the rest.
    """
    match slope:
        case Const(float(number)) if math.isfinite(number) and number != 0:
            return number, a.number(1)
        case Op("select", (condition, Const(float(number)), Const(0.0))) if math.isfinite(number) and number != 0:
            return number, Op("select", (condition, a.number(1), a.number(0)))
    return 1.0, slope


def placed(target: Sequence[Axis], index: Sequence[Expr], axes: Sequence[Axis], term: Expr, a: Arithmetic) -> Part:
    """A term, in every iteration of a reader, as a part over the axes of the tensor that it reads.

    Args:
        target: the tensor's axes.
        index: where the tensor is read, over `axes`.
        axes: the reader's.
        term: over `axes`.
        a: arithmetic of its dtype.

    Returns:
        The part, whose reader and factor are left open.
    """
    places = [(f"@{n}", extent) for n, (_, extent) in enumerate(target)]
    found = transposed(index, places, dict(axes))
    value: Expr = found.at(term)
    own = {axis for axis, _ in target}
    names: dict[str, Expr] = {place: Var(axis) for (place, _), (axis, _) in zip(places, target, strict=True)}
    free: list[Axis] = []
    for name, extent in found.free:
        new = unique(name, own | {axis for axis, _ in free}, "_")
        names[name] = Var(new)
        free.append((new, extent))
    for conditions in _guards(found.conditions):
        value = Op("select", (_all(conditions), value, a.number(0)))
    return Part(substitute(value, names), tuple(free))


def _guards(conditions: Sequence[Expr]) -> list[list[Expr]]:
    """The conditions in groups, the innermost first: one that reads an element where others hold is inside of these."""
    reads = [c for c in conditions if any(isinstance(e, Load) for e in walk(c))]
    others = [c for c in conditions if c not in reads]
    if any(variables(c) & variables(r) for c in others for r in reads):
        return [reads, others]
    return [list(conditions)] if conditions else []


def _all(conditions: Sequence[Expr]) -> Expr:
    """Whether all conditions hold."""
    return reduce(lambda a, b: Op("and", (a, b)), conditions)


__all__ = ["Part", "apart", "placed"]
