"""Guards of a repair: which singular points a producer can reach, what stands in for them, and what the end must show.

A guard puts a regular value in the place of a singular one, in g and in h, and only where nothing has been accumulated
(`identity_at_point`).  Two things remain to be kept:

- h must not spoil the identity: at a point from which exp(r - r') * 0 would not be 0, the current value stands in for
  the previous one, and h does nothing.
- A producer that ends at the point must give what the definition gives there (0/0, exp(-inf + inf)), not the identity.
  Mostly what reads the result makes no difference (0/0 after a sum of 0 and after a sum of NaN); where it does, the
  guard is left out at the last tag of a rolling loop, and in the combine step of a split reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import (
    Block,
    Expr,
    Load,
    Program,
    Var,
    loads,
    substitute,
    transform,
)
from neptune_lab.loop_ir.reduction import IDENTITIES, reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.sign import may_be_infinite
from neptune_lab.loop_schedule.identity_at_point import folded_element, identity_at_point, makes_nan
from neptune_lab.loop_to_repair.constant_terms import is_always, same_where_finite
from neptune_lab.repair import RepairTerm, VectorRepair, text

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Point:
    """A singular value that a producer can reach.

    Args:
        value: the point. replacement: a regular value.
        identity: all that was accumulated at the point is the identity, which h keeps if it departs cleanly.
        shows: a producer that ends at the point must not be guarded at the end.
        absorbing: an infinity at which the producer stays (a sum that has overflowed); g is regular, and only h must do
            nothing from then on.
    """

    value: float
    replacement: float
    identity: bool = True
    shows: bool = False
    absorbing: bool = False


@dataclass(frozen=True, slots=True)
class ProducerReads:
    """How one consumer reads its producers.

    Args:
        reads: for each producer's buffer, the index (its tag left out) at which the consumer reads it.
        points: for each producer's buffer, the singular points that it can reach.
    """

    reads: dict[str, tuple[Expr, ...]]
    points: dict[str, tuple[Point, ...]]


def find_points(
    program: Program,
    consumer: Block,
    reducer: str,
    term: Expr,
    named: Mapping[Expr, str],
    solved: RepairTerm | VectorRepair,
) -> dict[str, tuple[Point, ...]]:
    """The singular points of every producer that `consumer` reads.

    Args:
        reducer, term: f and g of the consumer, with the maps between written out.
        named: the reads of producers in the term, and the producer's buffer.

    Raises:
        RepairError: step "guard": the program does not show that nothing has been accumulated at a point.
    """
    found = {}
    for producer in dict.fromkeys(named.values()):
        block = writer_of(program, producer)
        own = None if block is None else reducer_of(block)
        assert own is not None
        points = []
        for guard in solved.reachable_guards(producer, own):
            point, replacement = float(guard.point), float(guard.replacement)
            if np.isinf(point) and not may_be_infinite(program, Load(producer, ()), 1 if point > 0 else -1):
                continue
            replacements = {read: replacement for read, buffer in named.items() if buffer == producer}
            nothing = identity_at_point(program, consumer, reducer, term, producer, point, replacements)
            if nothing is None and not (isinstance(solved, RepairTerm) and solved.unproved):
                raise _refusal(producer, guard.point, consumer, solved)
            # Behind a guard the end is the identity: of another number `_shows_anyway` knows nothing.
            alike = nothing is not None and nothing.is_identity and _shows_anyway(program, producer, point)
            shows = nothing is not None and nothing.differs_at_point and not alike
            if shows and nothing is not None and not nothing.differs_unguarded:
                raise _unclear_end(producer, guard.point, consumer, solved)
            points.append(Point(point, replacement, nothing is None or nothing.is_identity, shows))
        found[producer] = (*points, *_absorbing(program, consumer, term, named, producer, own, solved))
    return found


# Where each reducer stays once it is there, among the infinities that are not its identity.
_STAYS: Mapping[str, tuple[float, ...]] = {"sum": (np.inf, -np.inf), "max": (np.inf,), "min": (-np.inf,)}


def _absorbing(
    program: Program,
    consumer: Block,
    term: Expr,
    named: Mapping[Expr, str],
    producer: str,
    reducer: str,
    solved: RepairTerm | VectorRepair,
) -> tuple[Point, ...]:
    """The infinities at which a producer stays, where g is finite: x / sqrt(inf) is 0, and so is exp(x - max |x|).

    An extremum is infinite only if one of its elements is; where that makes NaN of the term anyway (exp(inf - inf)),
    there is nothing to keep.
    """
    reads = [read for read, buffer in named.items() if buffer == producer]
    found = []
    for guard in solved.guards:
        point = float(guard.point) if guard.point.is_infinite else 0.0
        if guard.producer != producer or not guard.final_repair or point not in _STAYS.get(reducer, ()):
            continue
        if not may_be_infinite(program, Load(producer, ()), 1 if point > 0 else -1):
            continue
        if reducer == "sum" or not makes_nan(program, consumer, term, producer, point, reads):
            found.append(Point(point, float(guard.replacement), absorbing=True))
    return tuple(found)


def _refusal(producer: str, point: object, consumer: Block, solved: RepairTerm | VectorRepair) -> RepairError:
    at = text(point)  # type: ignore[arg-type]
    return RepairError(
        f"{producer!r} can be {at} before the loop ends, where h is undefined, and the program does not show that "
        f"{consumer.name!r} is still its identity then: its value would be lost, or an infinity hidden",
        step="guard",
        expression=text(solved.h) if isinstance(solved, RepairTerm) else text(solved.g),
        help=f"keep {producer!r} away from {at} in the definition, for example with a small constant, or fold terms "
        f"that are the identity as long as {producer!r} is {at}",
    )


def _unclear_end(producer: str, point: object, consumer: Block, solved: RepairTerm | VectorRepair) -> RepairError:
    at = text(point)  # type: ignore[arg-type]
    return RepairError(
        f"if {producer!r} ends at {at}, some terms of {consumer.name!r} are NaN and others, such as masked ones, are "
        "not; a loop that visits each tile once cannot tell which occurred, but an output depends on it",
        step="guard",
        expression=text(solved.h) if isinstance(solved, RepairTerm) else text(solved.g),
        help=f"keep {producer!r} away from {at} in the definition, or mask its elements and those of {consumer.name!r} "
        "alike, with a mask that leaves each row its first element or its last",
    )


def _shows_anyway(program: Program, producer: str, point: float) -> bool:
    """Whether no output tells apart the consumers' identities, with which guards end, from what the definition gives.

    Formal statement, at random values of all else: with the producer at the point, every output is the same number, or
    not finite, whether the reductions that depend on the producer are their identities or NaN.
    """
    block = writer_of(program, producer)
    assert block is not None
    known = _Dependents(program, block.origin)
    return all(known.same(output, point) for output in program.outputs)


def tells_infinity(program: Program, consumer: Block) -> bool:
    """Whether an output tells an infinite result of `consumer` from NaN, as tanh(r) does, and r / y does not."""
    known = _Dependents(program, consumer.origin)
    return any(not known.same(output, infinity, np.nan) for output in program.outputs for infinity in (np.inf, -np.inf))


class _Dependents:
    """Which reductions of a program depend on one stage of the definition."""

    def __init__(self, program: Program, origin: str) -> None:
        self.program = program
        self.origin = origin
        self.blocks = {b.writes: b for b in tree.blocks(program) if b.role not in (Role.RETIRE, Role.INITIAL)}
        self.known: dict[str, bool] = {}

    def depends(self, buffer: str) -> bool:
        """Whether the buffer's value depends on the stage; the stage itself does."""
        block = self.blocks.get(buffer)
        if block is None:
            return False
        if block.origin == self.origin:
            return True
        if buffer not in self.known:
            self.known[buffer] = False  # its own previous value
            self.known[buffer] = any(self.depends(read.buffer) for read in loads(block.body.value))
        return self.known[buffer]

    def same(self, output: str, point: float, other: float | None = None) -> bool:
        """Whether the output is the same number, or not finite, with identities and with NaN.

        Args:
            point, other: what the stage itself is, with identities and with NaN; `point` both times if there is none.
        """
        block = self.blocks.get(output)
        if block is None or not self.depends(output):
            return True
        if reducer_of(block) is not None:
            return other is not None and block.origin == self.origin
        value = self.inlined(block.body.value)
        if value is None:
            return False
        identities: dict[Expr, float] = {}
        spoilt: dict[Expr, float] = {}
        for read in loads(value):
            source = self.blocks.get(read.buffer)
            if source is None or not self.depends(read.buffer):
                continue
            reducer = reducer_of(source)
            at_point = source.origin == self.origin
            if reducer is not None and not at_point and (other is not None or not self.keeps_identity(source)):
                return False  # what it folds may tell: the smallest of x / r is 0, or NaN
            identities[read] = point if at_point or reducer is None else float(IDENTITIES[reducer])
            spoilt[read] = (point if other is None else other) if at_point else np.nan
        return same_where_finite(self.program, value, identities, spoilt)

    def keeps_identity(self, reduction: Block) -> bool:
        """Whether a reduction is its identity where the stage's own consumers, which are guarded, are theirs: one of
        them, or one whose terms vanish then, as a sum of products with them."""
        if self.reads_it(reduction):
            return True
        found = folded_element(self.program, reduction.writes)
        term = None if found is None else self.inlined(found[2])
        if found is None or term is None:
            return False
        known: dict[Expr, float] = {}
        for read in loads(term):
            source = self.blocks.get(read.buffer)
            if source is None or not self.depends(read.buffer):
                continue
            reducer = reducer_of(source)
            if reducer is None or not self.keeps_identity(source):
                return False
            known[read] = float(IDENTITIES[reducer])
        return is_always(self.program, term, known, float(IDENTITIES[found[1]]))

    def reads_it(self, reduction: Block) -> bool:
        """Whether the terms of a reduction read the stage, and not only other reductions of it."""
        waiting, seen = [reduction], {reduction.writes}
        while waiting:
            for read in loads(waiting.pop().body.value):
                source = self.blocks.get(read.buffer)
                if source is None or read.buffer in seen:
                    continue
                if source.origin == self.origin:
                    return True
                seen.add(read.buffer)
                if source.origin == reduction.origin or reducer_of(source) is None:
                    waiting.append(source)
        return False

    def inlined(self, value: Expr) -> Expr | None:
        """The value with every map that depends on the stage written out; None where one has no plain index."""
        plain = True

        def rule(e: Expr) -> Expr:
            nonlocal plain
            if not isinstance(e, Load) or not self.depends(e.buffer):
                return e
            source = self.blocks[e.buffer]
            if reducer_of(source) is not None or source.role is Role.SCAN:
                return e
            names = [i.name for i in source.body.indices if isinstance(i, Var)]
            if len(names) != len(e.indices):
                plain = False
                return e
            return transform(substitute(source.body.value, dict(zip(names, e.indices, strict=True))), rule)

        found = transform(value, rule)
        return found if plain else None
