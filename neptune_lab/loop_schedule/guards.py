"""Guards of a repair, as expressions of the program: in g, and in h where it reads the previous and the current value.

`singular_points` finds the points that need a guard, and has shown that nothing was accumulated at each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.dtypes import widened
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Load, Op, Program, Store
from neptune_lab.loop_ir.reduction import IDENTITIES, reducer_of
from neptune_lab.loop_ir.walks import transform, walk
from neptune_lab.loop_schedule.singular_points import Point, ProducerReads
from neptune_lab.repair import RepairTerm, VectorRepair

if TYPE_CHECKING:
    from sympy import Symbol


def guarded(value: Expr, points: tuple[Point, ...], dtype: str, is_last: Expr | None = None) -> Expr:
    """`value`, with a guard at each singular point.

    Args:
        value: a read of a producer.
        points: the producer's points; absorbing ones get no guard.
        dtype: the dtype of the read.
        is_last: the condition that this is the last tag, at which points that show are not guarded; None: the loop does
            not complete the reduction.
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
    """The block with a guard around every read of a producer in its term.

    Args:
        block: a block that reads producers.
        repair: their reads and points.
        program: the program.
        ends: whether the loop along which the producers have tags completes the reduction; False in a split.
    """

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load) and repair.points.get(e.buffer):
            buffer = program.buffer(e.buffer)
            is_last = is_last_tag(program, e.buffer, e.indices[0]) if ends and buffer.tagged else None
            return guarded(e, repair.points[e.buffer], buffer.dtype, is_last)
        return e

    if any(isinstance(e, Op) and e.name == "guard" for e in walk(block.body.value)):
        return block  # a shared map that the repair of an earlier consumer has guarded
    return replace(block, body=Store(block.body.buffer, block.body.indices, transform(block.body.value, rule)))


Read = Callable[[str, tuple[Expr, ...]], Expr]


@dataclass(frozen=True, slots=True)
class TagReads:
    """The reads of producers in h: their previous and their current values.

    Args:
        previous: from a producer's buffer and an index to the read of its previous value.
        current: likewise for its current value.
        starts: whether the first previous value is the start value of the producer's reduction, which may be singular.
        is_last: from a producer's buffer to the condition that this step completes the reduction; None if none does.
    """

    previous: Read
    current: Read
    starts: bool = False
    is_last: Callable[[str], Expr | None] = lambda _: None


def producer_values(
    term: RepairTerm | VectorRepair, repair: ProducerReads, reads: TagReads, program: Program, *, dtype: str
) -> dict[Symbol, Expr]:
    """r and r' of each producer as guarded reads, by the symbols of `term`."""
    values: dict[Symbol, Expr] = {}
    for producer, index in repair.reads.items():
        points = repair.points[producer]
        current, before = (
            widened(read, dtype, program) for read in (reads.current(producer, index), reads.previous(producer, index))
        )
        now = guarded(current, points, dtype, reads.is_last(producer))
        empty = {point.value: point.identity for point in points if not point.absorbing}
        if reads.starts:
            source = writer_of(program, producer)
            reducer = None if source is None else reducer_of(source)
            assert reducer is not None
            first = float(IDENTITIES[reducer])
            if first not in empty and term.initial_value(producer, reducer) is not None:
                empty[first] = True
        for point, identity in empty.items():
            # Nothing needs a repair: with the current value as the previous one, h changes nothing and cannot overflow.
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
    """Whether h at this previous value keeps the identity without a guard: exp(-inf - r') * 0 = 0."""
    return any(
        IDENTITIES[reducer] == point and term.initial_value(producer, reducer) is None for reducer in ("max", "min")
    )
