"""Rows that lanes reduce (`reduce_in_lanes`): which ones, in which pieces, and what a lane keeps of each reduction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.aligned import AT_ONCE
from neptune_lab.htile.walk import read_tensors, reads, stores, subexpressions
from neptune_lab.htile_passes.about_parts import AboutNumber, about_number
from neptune_lab.htile_passes.cut_long_rows import Pieces, head_of_rows
from neptune_lab.htile_passes.rewrite import DEFAULT_WARPS, LANES
from neptune_lab.htile_passes.whole_rows import is_reduction, only_rows, slices
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import NVIDIA_REGISTERS

# The most elements of a lane of rows that a program holds: as many as registers of a thread if the rows are written,
# and of others, as many as it loads before it begins.
MOST_OF_THREAD, MOST_READ_ONCE = 224, 160
# The shortest of these others that are reduced lane by lane: on an H200, a cross entropy of 4000 x 20001 takes 40.2 us
# so and 53.3 in one piece, 6000 x 15001 43.8 and 47.2, 11501 x 10187 57.5 and 55.5.
SHORTEST = 14000
# The elements that a lane loads at once of rows of 16 bits each, which were measured.
MEASURED = 8
# Pieces of a row that an iteration reads, each of as many elements as all lanes load at once: of written rows, programs
# of at most 8 warps have more, since few of them run at a time.
PIECES, FEW_WARPS, OF_FEW_WARPS = 4, 8, 8


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A row that lanes reduce.

    Args:
        pieces: of as many elements as all lanes load at once.
        group: the elements of a lane of a piece.
        held: whether a program loads all of it before it begins.
        at_once: the pieces of an iteration.
    """

    pieces: Pieces
    group: int
    held: bool
    at_once: int

    @property
    def whole(self) -> int:
        """How many pieces have all of their elements."""
        return sum(self.pieces.left(n) is None for n in range(self.pieces.count))

    @property
    def iterations(self) -> int:
        """How many iterations the loop over pieces has."""
        return 0 if self.held else self.whole // self.at_once


def lane_row(kernel: ir.Kernel, program: ir.Program) -> LaneRow | None:
    """The row of a kernel; None if it is short, or the kernel holds it for what it stores of it."""
    own = [stmt for stmt in kernel.body if isinstance(stmt, ir.Store)]
    threads = LANES * (kernel.num_warps or DEFAULT_WARPS)
    extent = max((index.extent for store in own for index in slices(store)), default=1)
    if program.sizes or len(own) < len(kernel.body):
        return None
    stored = any(isinstance(index, ir.Slice) for store in own for index in store.target.index)
    held = extent <= threads * min(MOST_OF_THREAD if stored else MOST_READ_ONCE, NVIDIA_REGISTERS // threads)
    if held and (stored or extent < SHORTEST):
        return None
    rows = {a.tensor for s in own for a in (s.target, *reads(s)) if any(isinstance(i, ir.Slice) for i in a.index)}
    if not rows:  # every element is gathered
        return None
    head, block = head_of_rows(program, kernel, extent)
    block = AT_ONCE // min(itemsize(program.tensor(name).dtype) for name in rows) if head is None else block
    if held and block != MEASURED:
        return None
    at_once = OF_FEW_WARPS if stored and threads <= LANES * FEW_WARPS else PIECES
    row = LaneRow(Pieces(extent, threads * block, head, 1 if head is None else block), block, held, at_once)
    return row if only_rows(program, kernel, row.pieces) and (held or row.iterations) else None


@dataclass(frozen=True, slots=True)
class LaneState:
    """What the lanes keep of a reduction.

    Args:
        node: the reduction.
        name: of the number that it is for.
        about: the form of a reduction about the largest element, which another state has.
        is_number: whether another state is about this one.
    """

    node: ir.Reduce
    name: str
    about: AboutNumber | None
    is_number: bool = False


def lane_states(kernel: ir.Kernel, program: ir.Program, row: Pieces) -> tuple[LaneState, ...] | None:
    """The reductions of a kernel, in order; None if one of them waits for another in a way that has no form."""
    made: dict[str, ir.TileExpr] = {}
    waits: set[str] = set()
    found: dict[ir.Reduce, LaneState] = {}
    for store in stores(kernel.body):
        for node in (e for e in subexpressions(store.value) if is_reduction(e, program, row)):
            assert isinstance(node, ir.Reduce)
            about = about_number(node, made)
            if about is not None and about.form == "exp" and about.own in found:
                found[about.own] = replace(found[about.own], is_number=True)
                found.setdefault(node, LaneState(node, store.target.tensor, about))
            elif not {e.tensor for e in subexpressions(node) if isinstance(e, ir.Access)} & waits:
                found.setdefault(node, LaneState(node, store.target.tensor, None))
            else:
                return None
        made[store.target.tensor] = store.value
        if read_tensors(store) & waits or any(is_reduction(e, program, row) for e in subexpressions(store.value)):
            waits.add(store.target.tensor)
    return tuple(found.values())


__all__ = ["LaneRow", "LaneState", "lane_row", "lane_states"]
