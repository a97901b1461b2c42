"""Which columns of a nest the masks of positions show: the others need no tile."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

import numpy as np

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.iteration_domain import evaluate
from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, Program
from neptune_lab.loop_ir.walks import conjuncts, loads, variables, walk
from neptune_lab.loop_schedule.plan import NestPlan

# Positions at which a mask is evaluated, at most.
MOST_POSITIONS = 1 << 22


def shown_columns(program: Program, nest: NestPlan, rows: range | None = None) -> tuple[int, int]:
    """The columns that masks of positions show.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        rows: of the nest's row axis, if it has one; None: all of them.

    Returns:
        The first column that is shown to any of the rows, and the one after the last; all columns if a mask is of
        something else than positions, or has too many of them.
    """
    dims = dimensions(program)
    first = tree.find_block(program, nest.first)[1]
    column, row = dims.of(first, nest.reduce_axis), nest.row_axis and dims.of(first, nest.row_axis)
    columns = first.iter(nest.reduce_axis).extent
    shown = np.ones(columns, bool)
    for block in (b for b in tree.blocks(program) if b.name in (*nest.maps, *nest.independent_maps)):
        names = dims.all_of(block)
        values = {it.name: range(it.extent) for it in block.iters}
        if rows is not None and row in names:
            values[names[row]] = rows
        for part in walk(block.body.value) if column in names else ():
            match part:
                case Op("select", (condition, _, Const(float(other)))) if other == -inf:
                    shown &= _shown(condition, names[column], values)
    at = np.flatnonzero(shown)
    return (int(at[0]), int(at[-1]) + 1) if len(at) else (0, columns)


def shows_equal_elements(program: Program, nest: NestPlan) -> bool:
    """Whether a mask shows a column where an element of an input equals that of the only row, as documents do."""
    dims = dimensions(program)
    column = dims.of(tree.find_block(program, nest.first)[1], nest.reduce_axis)
    for block in (b for b in tree.blocks(program) if b.name in (*nest.maps, *nest.independent_maps)):
        axis = dims.all_of(block).get(column)
        several = {it.name for it in block.iters if it.extent > 1}
        for part in walk(block.body.value):
            match part:
                case Op("select", (condition, _, Const(float(other)))) if other == -inf:
                    for conjunct in conjuncts(condition):
                        match conjunct:
                            case Op("eq", (Load() as a, Load() as b)):
                                of_columns, of_row = (a, b) if axis in variables(a) else (b, a)
                                if axis in variables(of_columns) and not (
                                    variables(of_row) & (several - variables(of_columns) | {axis})
                                ):
                                    return True
                            case _:
                                pass
    return False


def _shown(condition: Expr, axis: str, values: Mapping[str, range]) -> np.ndarray:
    """For which columns a condition holds in some row; all of them if that is not known."""
    used = sorted(variables(condition) - {axis})
    everything = np.ones(len(values[axis]), bool)
    if loads(condition) or len(everything) * prod(len(values[name]) for name in used) > MOST_POSITIONS:
        return everything
    axes = (axis, *used)
    env = {n: np.arange(values[n].start, values[n].stop).reshape([-1 if n == m else 1 for m in axes]) for n in axes}
    try:
        held = np.broadcast_to(evaluate(condition, env), [len(values[n]) for n in axes])
    except KeyError:
        return everything
    return np.asarray(held.reshape(len(everything), -1).any(axis=1))


__all__ = ["shown_columns", "shows_equal_elements"]
