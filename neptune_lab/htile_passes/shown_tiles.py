"""How many tiles of a loop a mask of positions alone shows, beside those of the range that bounds give the loop."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Env
from neptune_lab.htile.interpret import interpret
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import evaluate, names_of_tile
from neptune_lab.htile_passes.input_comparisons import literal, trips
from neptune_lab.htile_passes.partition_masked_loops.formula import Formula, Junction, Unknown, formula_of
from neptune_lab.htile_passes.partition_masked_loops.ranges import Span, somewhere
from neptune_lab.htile_passes.position_limits import reads_inputs

# The most tiles of a mask that are computed to count them; of more programs, some are taken.
MOST_COMPUTED = 512
# A list may take the place of bounds if it has at most so many of four tiles that they leave: a loop with bounds has a
# part without a mask, and a list is read.
OF_FOUR = 3


@dataclass(frozen=True, slots=True)
class Shown:
    """Tiles of some programs of a kernel.

    Args:
        tiles: in which the mask shows an element.
        in_range: between the bounds of the loop.
        around_gap: between them without the longest run inside in which the mask shows nothing.
    """

    tiles: int
    in_range: int
    around_gap: int

    @property
    def beats_bounds(self) -> bool:
        """Whether so few of the tiles between the bounds are shown that visiting these alone can pay."""
        return 4 * self.tiles <= OF_FOUR * self.in_range

    @property
    def beats_gap(self) -> bool:
        """The same where a loop leaves out one run of tiles too (`joined_limits`)."""
        return 4 * self.tiles <= OF_FOUR * self.around_gap


def shown_tiles(kernel: ir.Kernel, loop: ir.For, env: Env, condition: ir.TileExpr) -> Shown | None:
    """Counts the tiles of a loop that a mask of positions shows, in programs that are spread over the grid.

    Args:
        kernel: of the loop.
        env: the values of the variables around.
        condition: of a `where` in the loop.

    Returns:
        None if it reads tensors, or its tiles are one run by its form: no `or`, and nothing that has no bounds.
    """
    formula, names = formula_of(condition), names_of_tile(condition)
    if reads_inputs(condition) or loop.var not in names or not _may_have_gaps(formula):
        return None
    axes = [axis for axis in kernel.grid if axis.var in names]
    if names != {loop.var, *(axis.var for axis in axes)}:
        return None
    span, count, programs = Span.of(loop, env), trips(loop, env), prod(axis.extent for axis in axes)
    found, tiles, in_range, gaps = somewhere(formula, span), 0, 0, 0
    for program in np.unique(np.linspace(0, programs - 1, min(programs, max(2, MOST_COMPUTED // count))).astype(int)):
        at = dict(
            zip((a.var for a in axes), map(int, np.unravel_index(program, [a.extent for a in axes])), strict=True)
        )
        # (the bounds may read further axes, which the condition does not: they are the same for all)
        inside = {axis.var: 0 for axis in kernel.grid} | at
        first, last = evaluate(found.lo, inside), evaluate(found.hi, inside)
        shown = np.flatnonzero(_shown(condition, loop.var, count, at))
        tiles += len(shown)
        in_range += max(0, last - first)
        gaps += int(np.diff(shown).max(initial=1)) - 1
    return Shown(tiles, in_range, in_range - gaps)


def _shown(condition: ir.TileExpr, var: str, count: int, at: dict[str, int]) -> np.ndarray:
    """Whether each tile has an element that the condition shows, with the variables around as in `at`."""
    tensor = ir.Tensor("shown", (count,), "int32", "output")
    some: ir.TileExpr = ir.Elementwise("where", (condition, literal(1), literal(0)), "int32")
    program = ir.Program("shown", (tensor,), (), ("shown",), ())
    for _ in shape_of(some, program):
        some = ir.Reduce("max", some, 0)
    body: tuple[ir.Stmt, ...] = (ir.Store("shown", ir.Access("shown", (ir.Name(var),)), some, ""),)
    for name, value in at.items():
        body = (ir.For(name, name, ir.Int(value), ir.Int(value + 1), body, ""),)
    kernel = ir.Kernel("shown", "shown", (ir.GridAxis(var, count),), body)
    return interpret(ir.Program("shown", (tensor,), (), ("shown",), (kernel,)), {})["shown"]


def _may_have_gaps(formula: Formula) -> bool:
    match formula:
        case Unknown():
            return True
        case Junction(op=op, parts=parts):
            return (op == "or" and len(parts) > 1) or any(map(_may_have_gaps, parts))
        case _:
            return False


__all__ = ["Shown", "shown_tiles"]
