"""How many tiles of a loop a mask of positions alone shows, beside those of the range that bounds give the loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

import numpy as np

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Env
from neptune_lab.htile.interpret import evaluator
from neptune_lab.htile.walk import evaluate, names_of_index, names_of_tile
from neptune_lab.htile_passes.input_comparisons import trips
from neptune_lab.htile_passes.partition_masked_loops.formula import Atom, Formula, Junction, Unknown, formula_of
from neptune_lab.htile_passes.partition_masked_loops.ranges import Span, somewhere
from neptune_lab.htile_passes.position_limits import reads_inputs

# The most tiles of a mask that are computed to count them.  Of more, some are drawn: half of them one by one, since
# whole rows of a periodic mask are alike, and the others by rows, for the runs between them.
MOST_COMPUTED = 512
# A list may take the place of bounds if it has at most so many of twenty tiles that they leave: kernels with lists are
# in Triton, have the mask in each tile, and read the list.  On an H200, of causal masks over 512 to 8192 positions of
# 128 and 64 columns, lists of 5 to 6 of 20 tiles gained a factor of 1.0 to 2.1 over kernels in Gluon, of 10.3 to 10.6
# 1.01 to 1.11, of 11.2 none (0.98), and of 12.3 lost (0.80 to 0.93, once 1.12).
OF_TWENTY = 11
# The same for one run of tiles that a loop leaves out by itself: nothing is read, and no tile gets a mask.  Of 11.7
# tiles, 19 us became 15.
OF_TWENTY_BESIDE_GAP = 15
# If at most so many of twenty tiles show an element, of smaller ones few enough may do.
OF_TWENTY_LARGER = 15


@dataclass(frozen=True, slots=True)
class Shown:
    """Tiles of some programs of a kernel.

    Args:
        tiles: in which the mask shows an element.
        in_range: between the bounds of the loop.
        tiles_of_rows: those of whole rows, in which the mask shows an element.
        around_gap: those of the same rows, between the bounds without the longest run in which the mask shows nothing.
        periodic: the mask has a part without bounds, such as a remainder: of smaller tiles, far fewer may be shown.
    """

    tiles: int
    in_range: int
    tiles_of_rows: int
    around_gap: int
    periodic: bool

    def beats_bounds(self, of_twenty: int = OF_TWENTY) -> bool:
        """Whether so few of the tiles between the bounds are shown that visiting these alone can pay, by a list."""
        return 20 * self.tiles <= of_twenty * self.in_range

    @property
    def may_beat_bounds(self) -> bool:
        """Whether as few may be shown of smaller tiles."""
        return self.periodic or self.beats_bounds(OF_TWENTY_LARGER)

    @property
    def beats_gap(self) -> bool:
        """The same where a loop leaves out one run of tiles by itself (`joined_limits`)."""
        return 20 * self.tiles_of_rows <= OF_TWENTY * self.around_gap


def shown_tiles(kernel: ir.Kernel, loop: ir.For, env: Env, condition: ir.TileExpr) -> Shown | None:
    """Counts the tiles of a loop that a mask of positions shows, or of some of its programs.

    Args:
        kernel: of the loop.
        env: the values of the variables around.
        condition: of a `where` in the loop.

    Returns:
        None if it reads tensors, or its tiles are one run by its form: no `or`, and nothing that has no bounds.
    """
    formula, names = formula_of(condition), names_of_tile(condition)
    periodic = _is_periodic(formula, loop.var)
    if reads_inputs(condition) or loop.var not in names or not (periodic or _has_alternatives(formula)):
        return None
    axes = [axis for axis in kernel.grid if axis.var in names]
    if names != {loop.var, *(axis.var for axis in axes)}:
        return None
    extents, span, count = [axis.extent for axis in axes], Span.of(loop, env), trips(loop, env)
    found, value, rng = somewhere(formula, span), evaluator(), np.random.default_rng(0)

    def program(number: int) -> tuple[dict[str, int], int, int]:
        """The variables of a program, and its tiles between the bounds."""
        at = dict(zip((axis.var for axis in axes), map(int, np.unravel_index(number, extents)), strict=True))
        # (the bounds may read further axes, which the condition does not: they are the same for all)
        inside = {axis.var: 0 for axis in kernel.grid} | at
        first = evaluate(found.lo, inside)
        return at, first, max(first, evaluate(found.hi, inside))

    def is_shown(at: dict[str, int], tile: int) -> bool:
        return bool(value(condition, {**at, loop.var: tile}).any())

    programs, rows, pairs = prod(extents), Counter[str](), Counter[str]()
    whole = programs * count <= MOST_COMPUTED
    numbers = range(programs) if whole else rng.permutation(programs)[: max(2, MOST_COMPUTED // (2 * count))]
    for at, first, last in map(program, map(int, numbers)):
        shown = [tile for tile in range(first, last) if is_shown(at, tile)]
        gap = int(np.diff(shown).max(initial=1)) - 1
        rows += Counter(tiles=len(shown), in_range=last - first, around_gap=last - first - gap)
    for number in () if whole else rng.integers(programs, size=MOST_COMPUTED // 2):
        at, first, last = program(int(number))
        if last > first:
            shown_one = is_shown(at, int(rng.integers(first, last)))
            pairs += Counter(tiles=shown_one * (last - first), in_range=last - first)
    every = rows if whole else pairs
    return Shown(every["tiles"], every["in_range"], rows["tiles"], rows["around_gap"], periodic)


def _is_periodic(formula: Formula, var: str) -> bool:
    """Whether a part of a formula gives a loop no bounds, though it depends on its variable: a remainder, or a sum of
    quotients."""
    match formula:
        case Unknown():
            return True
        case Atom(form=form):
            own = [atom for atom, _ in form.terms if var in names_of_index(atom)]
            quotient = len(own) == 1 and isinstance(own[0], ir.Arith) and own[0].op == "//"
            return not quotient and any(atom != ir.Name(var) for atom in own)
        case Junction(parts=parts):
            return any(_is_periodic(part, var) for part in parts)


def _has_alternatives(formula: Formula) -> bool:
    match formula:
        case Junction(op=op, parts=parts):
            return (op == "or" and len(parts) > 1) or any(map(_has_alternatives, parts))
        case _:
            return False


__all__ = ["OF_TWENTY_BESIDE_GAP", "Shown", "shown_tiles"]
