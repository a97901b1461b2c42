"""The singular points that a producer can reach, and how each is guarded.

A guard replaces a singular value with a regular one, in g and in h, and only if nothing has been accumulated by then
(`identity_at_point`).  Two conditions remain:

- h must keep the identity: at a point at which exp(r - r') * 0 would not be 0, the current value replaces the previous
  one, and h changes nothing.
- If a producer ends at the point, the result must be that of the definition (0/0, exp(-inf + inf)), not the identity.
  Usually the outputs do not differ (0/0 after a sum of 0 or of NaN).  If they do, the guard is omitted at the last tag
  of a rolling loop, and in the kernel that combines splits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Expr, Load, Previous, Program, Var
from neptune_lab.loop_ir.reduction import IDENTITIES, OPERATORS, reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.sign import may_be_infinite, range_of
from neptune_lab.loop_ir.walks import distinct_reads, loads, substitute, transform, variables
from neptune_lab.loop_schedule.identity_at_point import folded_element, identity_at_point, makes_nan, operands_of
from neptune_lab.loop_to_repair.constant_terms import becomes_nan, is_always, same_where_finite
from neptune_lab.repair import RepairTerm, VectorRepair, text


@dataclass(frozen=True, slots=True)
class Point:
    """A singular value that a producer can reach.

    Args:
        value: the point.
        replacement: the regular value that replaces it.
        identity: whether everything accumulated at the point is the identity, which h may keep by itself.
        shows: whether an output would differ with a guard at the end, so that it is omitted there.
        absorbing: whether the producer stays at the point once it is there (a sum that has overflowed); g is regular
            there, and h must change nothing from then on.
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
        program: the program.
        consumer: the local block of the consumer.
        reducer: f of the consumer.
        term: g of the consumer, with the maps between inlined.
        named: each read of a producer in the term, and the producer's buffer.
        solved: the solved repair.

    Returns:
        The points by the producer's buffer.

    Raises:
        RepairError: step "guard": the program does not show that nothing has been accumulated at a point.
    """
    points_of: dict[str, tuple[Point, ...]] = {}
    for producer in dict.fromkeys(named.values()):
        block = writer_of(program, producer)
        own = None if block is None else reducer_of(block)
        assert own is not None
        points = []
        for guard in solved.reachable_guards(producer, own):
            if guard.point.free_symbols:  # where a constant of the row is: no number that a guard could compare with
                raise _refusal(producer, guard.point, consumer, solved)
            point, replacement = float(guard.point), float(guard.replacement)
            if np.isinf(point) and not may_be_infinite(program, Load(producer, ()), 1 if point > 0 else -1):
                continue
            replacements = {read: replacement for read, buffer in named.items() if buffer == producer}
            nothing = identity_at_point(program, consumer, reducer, term, producer, point, replacements)
            if nothing is None and not (isinstance(solved, RepairTerm) and solved.unproved):
                raise _refusal(producer, guard.point, consumer, solved)
            # `_shows_anyway` supposes that a guarded consumer ends as its identity.
            alike = nothing is not None and nothing.is_identity and _shows_anyway(program, producer, point)
            shows = nothing is not None and nothing.differs_at_point and not alike
            if shows and nothing is not None and not nothing.differs_unguarded:
                raise _unclear_end(producer, guard.point, consumer, solved)
            points.append(Point(point, replacement, nothing is None or nothing.is_identity, shows))
        if isinstance(solved, VectorRepair) or solved.unproved is None:
            _check_cancelled(program, consumer, term, named, producer, own, solved)
        points_of[producer] = (*points, *_absorbing(program, consumer, term, named, producer, own, solved))
    return points_of


def _check_cancelled(
    program: Program,
    consumer: Block,
    term: Expr,
    named: Mapping[Expr, str],
    producer: str,
    reducer: str,
    solved: RepairTerm | VectorRepair,
) -> None:
    """Refuses a term that is NaN as long as a producer is its identity, though no guard is there.

    Algebra cancels x + r - r and x * r / r, so it sees no singular point; the program computes them as they are.
    """
    point = float(IDENTITIES[reducer])
    if any(float(guard.point) == point for guard in solved.reachable_guards(producer, reducer)):
        return
    values = range_of(program, Load(producer, ()))
    if np.isinf(point):
        reached = may_be_infinite(program, Load(producer, ()), 1 if point > 0 else -1)
    else:
        reached = values.low <= point <= values.high
    reads = [read for read, buffer in named.items() if buffer == producer]
    if reached and becomes_nan(program, term, dict.fromkeys(reads, point)):
        raise _refused(
            solved,
            f"{producer!r} can be {point:g} before the loop ends, where the term of {consumer.name!r} is NaN, though "
            "it is a number afterwards; algebra cancels what makes it so, such as x + r - r, and a kernel does not",
            f"write the definition without what cancels, or keep {producer!r} away from {point:g}",
        )


# The infinities at which each reducer stays, other than its identity.
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
    """The infinities at which a producer stays while g is finite: x / sqrt(inf) is 0, and so is exp(x - max |x|).

    An extremum is infinite only if one of its elements is. If the term is NaN then anyway (exp(inf - inf)), no guard is
    needed.
    """
    reads = [read for read, buffer in named.items() if buffer == producer]
    points = []
    for guard in solved.guards:
        point = float(guard.point) if guard.point.is_infinite else 0.0
        if guard.producer != producer or not guard.final_repair or point not in _STAYS.get(reducer, ()):
            continue
        if not may_be_infinite(program, Load(producer, ()), 1 if point > 0 else -1):
            continue
        if reducer == "sum" or not makes_nan(program, consumer, term, producer, point, reads):
            points.append(Point(point, float(guard.replacement), absorbing=True))
    return tuple(points)


def _refused(solved: RepairTerm | VectorRepair, reason: str, remedy: str) -> RepairError:
    shown = text(solved.h) if isinstance(solved, RepairTerm) else text(solved.g)
    return RepairError(reason, step="guard", expression=shown, help=remedy)


def _refusal(producer: str, point: object, consumer: Block, solved: RepairTerm | VectorRepair) -> RepairError:
    at = text(point)  # type: ignore[arg-type]
    return _refused(
        solved,
        f"{producer!r} can be {at} before the loop ends, where h is undefined, and the program does not show that "
        f"{consumer.name!r} is still its identity then: its value would be lost, or an infinity hidden",
        f"keep {producer!r} away from {at} in the definition, for example with a small constant, or fold terms "
        f"that are the identity as long as {producer!r} is {at}",
    )


def _unclear_end(producer: str, point: object, consumer: Block, solved: RepairTerm | VectorRepair) -> RepairError:
    at = text(point)  # type: ignore[arg-type]
    return _refused(
        solved,
        f"if {producer!r} ends at {at}, some terms of {consumer.name!r} are NaN and others, such as masked ones, are "
        "not; a loop that visits each tile once cannot tell which occurred, but an output depends on it",
        f"keep {producer!r} away from {at} in the definition, or mask its elements and those of {consumer.name!r} "
        "alike, with a mask that leaves each row its first element or its last",
    )


def _shows_anyway(program: Program, producer: str, point: float) -> bool:
    """Whether every output is the same with guarded consumers, which end as their identities, as by the definition.

    Formal statement, at random values of everything else: with the producer at the point, every output is the same
    number, or not finite, whether the reductions that depend on the producer are their identities or NaN.
    """
    block = writer_of(program, producer)
    assert block is not None
    known = _Dependents(program, block.origin)
    return all(known.same(output, point) for output in program.outputs)


def tells_infinity(program: Program, consumer: Block) -> bool:
    """Whether an output differs if the result of `consumer` is infinite or NaN: tanh(r) does, r / y does not."""
    known = _Dependents(program, consumer.origin)
    return any(not known.same(output, infinity, np.nan) for output in program.outputs for infinity in (np.inf, -np.inf))


class _Dependents:
    """The blocks of a program that depend on one stage of the definition."""

    def __init__(self, program: Program, origin: str) -> None:
        self.program = program
        self.origin = origin
        self.blocks = {b.writes: b for b in tree.blocks(program) if b.role not in (Role.RETIRE, Role.INITIAL)}
        self.known: dict[str, bool] = {}
        self.rows: dict[str, frozenset[tuple[Expr, ...]]] = {}
        whole = [b for b in self.blocks.values() if b.origin == origin][-1]
        tags = 1 if program.buffer(whole.writes).tagged else 0
        self.stage_names = {i.name for i in whole.body.indices[tags:] if isinstance(i, Var)}

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
            output: the output's buffer.
            point: the value of the stage itself, with identities.
            other: its value with NaN; None: `point` too.
        """
        block = self.blocks.get(output)
        if block is None or not self.depends(output):
            return True
        if reducer_of(block) is not None:
            return other is not None and block.origin == self.origin
        value = self.inlined(block.body.value)
        if value is None or not self.is_of_one_row(block):
            return False
        identities: dict[Expr, float] = {}
        spoilt: dict[Expr, float] = {}
        for read in distinct_reads(value):
            source = self.blocks.get(read.buffer)
            if source is None or not self.depends(read.buffer):
                continue
            reducer = reducer_of(source)
            at_point = source.origin == self.origin
            if reducer is not None and not at_point and (other is not None or not self.keeps_identity(source)):
                return False  # its elements may differ: the smallest of x / r is 0, or NaN
            identities[read] = point if at_point or reducer is None else float(IDENTITIES[reducer])
            spoilt[read] = (point if other is None else other) if at_point else np.nan
            if at_point and other is None:
                with_it = self.constants_at(read, point)
                identities |= with_it
                spoilt |= with_it
        return same_where_finite(self.program, value, identities, spoilt)

    def constants_at(self, read: Load | Previous, point: float) -> dict[Expr, float]:
        """What else is at the point if the stage is: the constants that it takes in (`row_constants`), over the indices
        of `read`."""
        source, folded = self.blocks[read.buffer], folded_element(self.program, read.buffer)
        if folded is None or point != IDENTITIES[folded[1]] or folded[1] not in ("max", "min"):
            return {}
        tags = 1 if self.program.buffer(read.buffer).tagged else 0
        own = zip(source.body.indices[tags:], read.indices[tags:], strict=True)
        names = {i.name: index for i, index in own if isinstance(i, Var)}
        operands = operands_of(folded[2], OPERATORS[folded[1]])
        return {substitute(e, names): point for e in operands if isinstance(e, Load) and variables(e) <= names.keys()}

    def keeps_identity(self, reduction: Block) -> bool:
        """Whether a reduction is its identity if the guarded consumers of the stage are theirs: it is one of them, or
        its terms are then the identity, as in a sum of products with them. It is not if it folds several rows of the
        stage, since others need not be at the point."""
        if not self.is_of_one_row(reduction):
            return False
        if self.reads_it(reduction):
            return True
        folded = folded_element(self.program, reduction.writes)
        term = None if folded is None else self.inlined(folded[2])
        if folded is None or term is None:
            return False
        known: dict[Expr, float] = {}
        for read in distinct_reads(term):
            source = self.blocks.get(read.buffer)
            if source is None or not self.depends(read.buffer):
                continue
            reducer = reducer_of(source)
            if reducer is None or not self.keeps_identity(source):
                return False
            known[read] = float(IDENTITIES[reducer])
        return is_always(self.program, term, known, float(IDENTITIES[folded[1]]))

    def is_of_one_row(self, block: Block) -> bool:
        """Whether each element that the block writes depends on one element of the stage."""
        rows = self.rows_of(block)
        names = {i.name for i in block.body.indices if isinstance(i, Var)}
        return len(rows) == 1 and all(variables(i) <= names for row in rows for i in row)

    def rows_of(self, block: Block) -> frozenset[tuple[Expr, ...]]:
        """The indices of the stage's elements on which an element of the block depends, over the block's iterators."""
        if block.writes in self.rows:
            return self.rows[block.writes]
        self.rows[block.writes] = frozenset()  # its own previous value
        if block.origin == self.origin:
            names = [i.name for i in block.body.indices if isinstance(i, Var)]
            # A partial result has indices of its own: its tile, or its split.
            found = {tuple(Var(name) for name in names if name in self.stage_names)}
        else:
            found = {
                tuple(substitute(i, dict(zip(self.stored_names(source), read.indices, strict=True))) for i in row)
                for read in loads(block.body.value)
                if self.depends(read.buffer)
                for source in (self.blocks[read.buffer],)
                for row in self.rows_of(source)
            }
        self.rows[block.writes] = frozenset(found)
        return self.rows[block.writes]

    def stored_names(self, block: Block) -> list[str]:
        """The names of the iterators that index what the block writes; "" for an index that is none."""
        return [i.name if isinstance(i, Var) else "" for i in block.body.indices]

    def reads_it(self, reduction: Block) -> bool:
        """Whether the terms of a reduction read the stage itself, not only other reductions that read it."""
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
        """The value with every map that depends on the stage inlined; None if the index of a map is no variable."""
        plain = True
        done: dict[Expr, Expr] = {}

        def rule(e: Expr) -> Expr:
            if not isinstance(e, Load) or not self.depends(e.buffer):
                return e
            if e not in done:
                done[e] = computed(e)
            return done[e]

        def computed(e: Load) -> Expr:
            nonlocal plain
            source = self.blocks[e.buffer]
            if reducer_of(source) is not None or source.role is Role.SCAN:
                return e
            names = [i.name for i in source.body.indices if isinstance(i, Var)]
            if len(names) != len(e.indices):
                plain = False
                return e
            return transform(substitute(source.body.value, dict(zip(names, e.indices, strict=True))), rule)

        result = transform(value, rule)
        return result if plain else None
