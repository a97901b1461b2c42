"""Results that the last row block stores itself, in place of a kernel that reads a total of all heads.

    total[h, i] = 0                                (no zeros)
    for row blocks j:                              for row blocks j of n, in order:
        total[h, i] += t[j, i]                         j = 0:      total[h % s, i] = t[j, i]
                                                       between:    total[h % s, i] += t[j, i]
    out[h, i] = g(total[h, i])                         j = n - 1:  out[h, i] = g(total[h % s, i] + t[j, i])

So there is one launch less, and only s heads have a total at a time: as many as run at once.

Legality.  Formal statement: (1) programs add to a tile in the order of their row blocks, and every row block visits
every tile, from the first on: so row block 0 is the first of each tile, and n - 1 is the last.  (2) Of a head h, row
block j waits until the number of its tile is n (h // s) + j, and then sets it to one more: for j = 0, until the last
row block of head h - s has read the total.  (3) Programs are numbered as they start, the heads of a group side by side,
group after group.  A group has at most s heads, so head h - s is in an earlier one, and each program waits for smaller
numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import evaluate, names_of_index
from neptune_lab.htile_to_gluon.joint.match import Joint
from neptune_lab.htile_to_gluon.joint.vectors import columns_of
from neptune_lab.htile_to_gluon.launch_helpers import EVEN
from neptune_lab.htile_to_gluon.tile_schedule import row_axes

# Programs that run at a time.
TOGETHER = EVEN // 2
# The width of heads that this was measured with.
WIDTH = 64
# Tiles that the row blocks of a head which start together begin after each other; tiles that a tile of the last row
# block takes longer, as it waits for the total; and the part of all tiles that both may take, for less memory.  On an
# H200, 1 x 32 x 8192 took 2979 us with 4 totals, 3001 with 8 and 3175 with 2, in place of 2889 with all.
STEP, LATE, PART = 1.3, 0.44, 0.075
# Elements that an offset of 32 bits reaches.
REACHED = 2**31


@dataclass(frozen=True, slots=True)
class Finish:
    """The last row block stores the results.

    Args:
        heads, slots: how many heads there are, and how many have a total at a time.
        blocks: row blocks of a head.
    """

    heads: int
    slots: int
    blocks: int

    def slot(self, head: ir.IndexExpr) -> ir.IndexExpr:
        """Which total a head has."""
        return head if self.slots == self.heads else ir.Arith("%", head, ir.Int(self.slots))

    def number(self, head: ir.IndexExpr, row: ir.IndexExpr) -> ir.IndexExpr:
        """What a row block of a head waits for."""
        if self.slots == self.heads:
            return row
        before = ir.Arith("*", ir.Arith("//", head, ir.Int(self.slots)), ir.Int(self.blocks))
        return ir.Arith("+", before, row)


def head_of(shape: tuple[int, ...], index: tuple[ir.IndexExpr, ...]) -> ir.IndexExpr:
    """The number of a head.

    Args:
        shape: the dimensions of heads; `index`: of one head.
    """
    found: ir.IndexExpr = index[0] if index else ir.Int(0)
    for extent, at in zip(shape[1:], index[1:], strict=True):
        found = ir.Arith("+", ir.Arith("*", found, ir.Int(extent)), at)
    return found


def finish_of(program: ir.Program, joint: Joint, together: int | None) -> Finish | None:
    """How the last row block stores the results; None: they need a kernel of their own.

    Args:
        together: the number of heads that run at the same time, if it is given.
    """
    output = program.tensor(joint.output.target.tensor)
    extent = {axis.var: axis.extent for axis in joint.kernel.grid}
    heads, blocks = prod(output.shape[:-2]), extent[joint.row]
    if program.sizes or joint.around is not None or blocks < 2 or prod(output.shape) >= REACHED:
        return None
    if not (_visits_all(program, joint) and _in_one_order(joint, output.shape[:-2])):
        return None
    slots = _slots(heads, blocks, output.shape[-2] // columns_of(joint.structure.parts[0]).extent, output.shape[-1])
    return None if slots is None else Finish(heads, min(heads, max(slots, together or 1)), blocks)


def _slots(heads: int, blocks: int, tiles: int, width: int) -> int | None:
    """How many heads have a total at a time, a divisor of their number: the fewest with which a multiprocessor takes
    next to as long.  None: it takes longer with any.

    >>> [_slots(heads, n // 128, n // 128, 64) for heads, n in ((32, 1024), (32, 4096), (32, 8192), (128, 8192))]
    [None, None, 4, 4]
    """
    most = min(PART * heads * blocks / TOGETHER * tiles - LATE * tiles, tiles)
    for slots in (n for n in range(1, heads) if heads % n == 0 and n * blocks >= TOGETHER):
        if width == WIDTH and STEP * TOGETHER / slots <= most:
            return slots
    return None


def _visits_all(program: ir.Program, joint: Joint) -> bool:
    """Whether every row block visits every tile of queries, from the first on, and tiles are whole."""
    if len(joint.structure.parts) != 1:
        return False
    (this,) = joint.structure.parts
    columns, queries = columns_of(this), program.tensor(joint.output.target.tensor).shape[-2]
    if joint.row in names_of_index(columns.start) or queries % columns.extent:
        return False
    match this.loop:
        case ir.For(start=ir.Int(0), stop=ir.Int(tiles), within=None, listed=None, var=var):
            pass
        case _:
            return False
    if tiles * columns.extent != queries or names_of_index(columns.start) != {var}:
        return False
    return all(evaluate(columns.start, {var: n}) == n * columns.extent for n in range(tiles))


def _in_one_order(joint: Joint, shape: tuple[int, ...]) -> bool:
    """Whether the heads of the results are numbered as those of programs are (`tile_schedule.bind_program`)."""
    _, axes = row_axes(joint.structure, joint.kernel)
    extent = {axis.var: axis.extent for axis in joint.kernel.grid}
    if prod(extent[axis] for axis in axes) != prod(shape):
        return False
    head = head_of(shape, joint.heads)
    if not names_of_index(head) <= {*axes}:
        return False
    places = product(*(range(extent[axis]) for axis in reversed(axes)))
    return all(evaluate(head, dict(zip(reversed(axes), at, strict=True))) == n for n, at in enumerate(places))


__all__ = ["Finish", "finish_of", "head_of"]
