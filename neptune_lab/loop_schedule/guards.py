"""Guards of a repair, as expressions of the program: in g, and in h where it reads the previous and the current value.

`singular_points` finds the points that need a guard, and has shown that nothing was accumulated at each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Load, Op, Program, Store, transform, walk
from neptune_lab.loop_ir.reduction import IDENTITIES, reducer_of
from neptune_lab.loop_schedule.singular_points import Point, ProducerReads
from neptune_lab.repair import RepairTerm, VectorRepair

if TYPE_CHECKING:
    from sympy import Symbol


def guarded(value: Expr, points: tuple[Point, ...], dtype: str, is_last: Expr | None = None) -> Expr:
    """`value`, with a stand-in where it sits at a singular point.

    Args:
        is_last: whether this is the last tag, where points that show are not guarded; None where the loop ends nothing.
    """
    for point in points:
        if point.absorbing:
            continue
        replacement: Expr = Const(point.replacement, dtype)
        if point.shows and is_last is not None:
            if is_last == Const(True, "bool"):
                continue
            replacement = Op("select", (is_last, Const(point.value, dtype), replacement))
        value = Op("guard", (value, Const(point.value, dtype), replacement))
    return value


def is_last_tag(program: Program, buffer: str, tag: Expr) -> Expr:
    """Whether `tag` is the last one of a scan buffer."""
    last = program.buffer(buffer).shape[0] - 1
    return Const(True, "bool") if last == 0 else Op("eq", (tag, Const(last)))


def guard_reads(block: Block, repair: ProducerReads, program: Program, *, ends: bool) -> Block:
    """Every read of a producer in the block's term behind its guard.

    Args:
        ends: the loop that the producers keep tags along ends the reduction; False in a split, which a combine step
            ends.
    """

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load) and repair.points.get(e.buffer):
            buffer = program.buffer(e.buffer)
            is_last = is_last_tag(program, e.buffer, e.indices[0]) if ends and buffer.tagged else None
            return guarded(e, repair.points[e.buffer], buffer.dtype, is_last)
        return e

    if any(isinstance(e, Op) and e.name == "guard" for e in walk(block.body.value)):
        return block  # an earlier consumer's repair guards this shared map already
    return replace(block, body=Store(block.body.buffer, block.body.indices, transform(block.body.value, rule)))


Read = Callable[[str, tuple[Expr, ...]], Expr]


@dataclass(frozen=True, slots=True)
class TagReads:
    """Where h reads its producers: before and now.

    Args:
        previous, current: the read of a producer at an index.
        starts: the first previous value is the start value of the producer's reduction, which may be singular too.
        is_last: for a producer's buffer, whether this step ends the reduction, as a condition; None where it does not.
    """

    previous: Read
    current: Read
    starts: bool = False
    is_last: Callable[[str], Expr | None] = lambda _: None


def producer_values(
    term: RepairTerm | VectorRepair, repair: ProducerReads, moment: TagReads, program: Program, *, dtype: str
) -> dict[Symbol, Expr]:
    """r and r' of each producer as guarded reads, by the symbols of `term`."""
    values: dict[Symbol, Expr] = {}
    for producer, index in repair.reads.items():
        points = repair.points[producer]
        now = guarded(moment.current(producer, index), points, dtype, moment.is_last(producer))
        before = moment.previous(producer, index)
        empty = {point.value: point.identity for point in points if not point.absorbing}
        if moment.starts:
            source = writer_of(program, producer)
            reducer = None if source is None else reducer_of(source)
            assert reducer is not None
            first = float(IDENTITIES[reducer])
            if first not in empty and term.initial_value(producer, reducer) is not None:
                empty[first] = True
        for point, identity in empty.items():
            # Nothing needs a repair: with the current value for the previous one, h does nothing, nor overflows.
            if not (identity and _departs_clean(term, producer, point)):
                before = Op("guard", (before, Const(point, dtype), now))
        for point in points:
            if point.absorbing:
                there, replacement = Const(point.value, dtype), Const(point.replacement, dtype)
                now = Op("select", (Op("eq", (before, there)), replacement, now))
                before = Op("guard", (before, there, replacement))
        values[term.previous[producer]] = before
        values[term.current[producer]] = now
    return values


def _departs_clean(term: RepairTerm | VectorRepair, producer: str, point: float) -> bool:
    """Whether h keeps the identity by itself when it departs from this singular point: exp(-inf - r') * 0 = 0."""
    return any(
        IDENTITIES[reducer] == point and term.initial_value(producer, reducer) is None for reducer in ("max", "min")
    )
