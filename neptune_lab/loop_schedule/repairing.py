"""Solving for h of a fused reduction, and writing h back (paper, Algorithm 1, lines 5 to 11)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from neptune_lab.errors import RepairError, ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.dtypes import widened
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Load, Op, Program, Store, Var
from neptune_lab.loop_ir.reduction import IDENTITIES, OPERATORS, match_reduction, reducer_of
from neptune_lab.loop_ir.roles import RepairInfo
from neptune_lab.loop_ir.sign import range_of
from neptune_lab.loop_ir.walks import loads
from neptune_lab.loop_schedule.float_range import check_range
from neptune_lab.loop_schedule.guards import TagReads, producer_values
from neptune_lab.loop_schedule.moved_extrema import check_ties
from neptune_lab.loop_schedule.outcome import Phase, Refusal
from neptune_lab.loop_schedule.outcome_cache import resized
from neptune_lab.loop_schedule.reduce_pattern import ReducePattern, match_reduce_pattern
from neptune_lab.loop_schedule.scalar_loop import scalar_loop
from neptune_lab.loop_schedule.singular_points import Point, ProducerReads, find_points
from neptune_lab.loop_schedule.user_repair import UserRepair
from neptune_lab.loop_to_repair.check_lowered import ProducerNodes, check_lowered
from neptune_lab.loop_to_repair.lower import lower
from neptune_lab.repair import (
    Counterexample,
    RepairTerm,
    VectorRepair,
    WrongRepair,
    at_most_one,
    in_names,
    prove_supplied,
    solve,
)

if TYPE_CHECKING:
    from sympy import Symbol


@dataclass(frozen=True, slots=True)
class Repair(ProducerReads):
    """The solved repair of one consumer.

    Args:
        term: the derivation, from `repair.solve`.
        checked: a sentence on the numeric check of h as it is in the program.
        given: the text of h if the user gave it; None if it was derived.
        constants: the expression, in the consumer's local block, of each symbol of h that is constant in a row.
    """

    term: RepairTerm
    checked: str = ""
    given: str | None = None
    constants: dict[Symbol, Expr] = field(default_factory=dict)


def find_repair(program: Program, consumer: Block, producers: dict[str, int | None], kept: tuple[str, ...]) -> Repair:
    """h of `consumer` (its local block); `producers` as in `match_reduce_pattern`.

    Raises:
        RepairError: with the step that failed.
    """
    asked = match_reduce_pattern(program, consumer, producers, kept)
    try:
        term = _solved(asked)
        held = {own: asked.constants[symbol] for symbol, own in term.pairs if symbol in asked.constants}
        constants = {own: held[own] for own in term.separation.constants}
        repair = Repair(asked.reads, points_of(program, consumer, asked, term), term, constants=constants)
        if resized():
            return repair
        checked = check_lowered(*lowered_problem(program, consumer, asked, repair))
        return replace(repair, term=with_ranges(program, consumer, asked, repair), checked=checked)
    except RepairError as error:
        raise _in_schedule(error, consumer) from error.__cause__


def _in_schedule(error: RepairError, consumer: Block) -> RepairError:
    """The error of a step: it names the block, and not the solver's `assumptions=`, which no primitive has."""
    error.node = consumer.name
    if error.help is not None and "assumptions=" in error.help:
        error.help = (
            "signs follow from the definition: fold what cannot be negative, such as squares, absolute values or "
            "exponentials, or give h as repair='...'"
        )
        error.args = (f"{error.reason}\n  help: {error.help}",)
    return error


def _solved(asked: ReducePattern) -> RepairTerm:
    """h by the algebra; only if the term does not separate otherwise may h read what is constant in a row."""

    def solved(constants: tuple[Symbol, ...]) -> RepairTerm:
        known = asked.assumptions
        return solve(asked.reducer, asked.reading.term, asked.producers, assumptions=known, constants=constants)

    try:
        return solved(())
    except RepairError as error:
        if error.step != "separate" or not asked.constants:
            raise
        try:
            return solved(tuple(asked.constants))
        except RepairError:
            raise error from None


def points_of(
    program: Program, consumer: Block, asked: ReducePattern, term: RepairTerm | VectorRepair
) -> dict[str, tuple[Point, ...]]:
    """The singular points that the consumer's producers can reach; RepairError, step "guard"."""
    return find_points(program, consumer, asked.reducer, asked.term, asked.named, term)


def check_user_repair(
    program: Program, consumer: Block, producers: dict[str, int | None], kept: tuple[str, ...], given: UserRepair
) -> Repair:
    """As `find_repair`, with an h that the user gives. If it is not proved and need not be, `term.unproved` says why.

    Raises:
        RepairError, WrongRepair: as `prove_supplied`.
    """
    asked = match_reduce_pattern(program, consumer, producers, kept)
    try:
        term = prove_supplied(
            asked.reducer,
            asked.reading.term,
            asked.producers,
            given.h,
            assumptions=asked.assumptions,
            shown=dict(given.shown),
            falling=[p for p in asked.producers if _falls(program, p)],
            unproved=not given.proved,
        )
        repair = Repair(asked.reads, points_of(program, consumer, asked, term), term, given=given.h.strip())
        if term.unproved is not None or resized():
            return repair
        checked = check_lowered(*lowered_problem(program, consumer, asked, repair))
        term = with_ranges(program, consumer, asked, repair)
        derived = in_names(term, given.names(term.producers))
        return replace(repair, term=term, checked=f"{checked}; it is {derived}")
    except RepairError as error:
        raise _in_schedule(error, consumer) from error.__cause__


# The partial result in h. No loop can have this name: h may hold loop variables beside it.
_CARRIED = Var("carried value")


def _falls(program: Program, producer: str) -> bool:
    block = writer_of(program, producer)
    return block is not None and reducer_of(block) == "min"


def lowered_problem(
    program: Program, consumer: Block, asked: ReducePattern, repair: Repair
) -> tuple[Program, str, Expr, Expr, Expr, list[ProducerNodes], list[Expr]]:
    """What `check_lowered` takes: the h that goes into the program, and g as the program has it.

    Nothing of it comes from the algebra system, so that a mistake there is found.
    """

    def before(buffer: str, _: tuple[Expr, ...]) -> Expr:
        return Var(f"{buffer} before")

    def now(buffer: str, _: tuple[Expr, ...]) -> Expr:
        return Var(f"{buffer} now")

    carried = _CARRIED
    h = apply_repair_term(consumer, carried, repair, TagReads(before, now), program)
    places = [ProducerNodes(read, before(buffer, ()), now(buffer, ())) for read, buffer in asked.named.items()]
    held: list[Expr] = [read for value in repair.constants.values() for read in loads(value)]
    return program, asked.reducer, asked.term, h, carried, places, held


def with_ranges(program: Program, consumer: Block, asked: ReducePattern, repair: Repair) -> RepairTerm:
    """The term with the reasons why it is right in float32 (`float_range`); RepairError, step "range", if it is not."""
    carried = _CARRIED
    places = {p: (Var(f"{p} before"), Var(f"{p} now")) for p in repair.reads}
    moment = TagReads(lambda p, _: places[p][0], lambda p, _: places[p][1], starts=True)
    h = apply_repair_term(consumer, carried, repair, moment, program)
    if h == carried:
        return replace(repair.term, ranges=("h changes nothing",))
    term = match_reduction(consumer).term
    loop = scalar_loop(program, consumer, asked.reducer, [term], [carried], [h], places, repair.points)
    ways = {p: way for p in repair.reads if (way := _way(program, p))}
    why = at_most_one(repair.term, ways)
    return replace(repair.term, ranges=(*((why,) if why else ()), check_range(loop)))


def _way(program: Program, producer: str) -> int:
    """1 if the producer can only rise as a loop runs, -1 if it can only fall, 0 if it may do both."""
    block = writer_of(program, producer)
    reducer = None if block is None else reducer_of(block)
    if block is None or is_repaired(block):
        return 0
    if reducer == "sum":
        values = range_of(program, Load(producer, ()))
        return 1 if values.low >= 0 else -1 if values.high <= 0 else 0
    return {"max": 1, "min": -1}.get(str(reducer), 0)


class RepairRefused(ScheduleError):
    """The algebra found no repair.

    `phases` are those up to the refusal. `failed_step` and `expression` are those of the RepairError that caused it.
    `counterexample` shows that a repair which the user gave is wrong.
    """

    def __init__(
        self, message: str, *, node: str, help: str | None, phases: tuple[Phase, ...], cause: RepairError
    ) -> None:
        super().__init__(message, node=node, help=help)
        self.phases = phases
        self.failed_step = cause.step
        self.expression = cause.expression
        self.counterexample: Counterexample | None = cause.counterexample if isinstance(cause, WrongRepair) else None


@dataclass(frozen=True, slots=True)
class FusedReduction:
    """A reduction after naive fusion, of which a repair is asked.

    Args:
        primitive: the primitive's name, for messages.
        block: the reduction.
        loop: the loop that it is fused under, as "block.loop".
        local: its local block, from which f and g are read.
        buffers: as `producers` in `match_reduce_pattern`.
        kept: the maps between that are separate blocks.
        given: a repair to prove by Eqs. 3 and 4; None: one is derived.
    """

    primitive: str
    block: str
    loop: str
    local: str
    buffers: dict[str, int | None]
    kept: tuple[str, ...]
    given: UserRepair | None = None


def solve_repair(fused: FusedReduction, program: Program, phases: tuple[Phase, ...]) -> tuple[Repair, Phase]:
    """The repair of a reduction, and the phase that derives it.

    Args:
        fused: the reduction.
        program: the program after naive fusion.
        phases: the phases so far.

    Raises:
        RepairRefused: there is no repair; the last of its phases is that of the refusal.
    """
    _, consumer, _ = tree.find_block(program, fused.local)
    try:
        if fused.given is None:
            repair = find_repair(program, consumer, fused.buffers, fused.kept)
        else:
            repair = check_user_repair(program, consumer, fused.buffers, fused.kept, fused.given)
        check_ties(program, fused.block, consumer, by_factor=repair.term.factor is not None)
    except RepairError as error:
        refused = Phase(
            "repair",
            "repair function",
            f"refused at step {error.step!r}: {error.reason}",
            program,
            wrong=phases[-1].wrong,
            reads_early=phases[-1].reads_early,
            refusal=Refusal(error.step, error.expression, error.reason, reducer_of(consumer) or "", error.passed),
        )
        what = "no repair term" if fused.given is None else "the repair that is given is refused"
        help = error.help
        if isinstance(error, WrongRepair):
            help = f"{help}; proved=False takes it in as it is, marked, to see where it goes wrong"
        raise RepairRefused(
            f"{fused.primitive}({fused.block!r}, {fused.loop!r}): {what}, step {error.step!r} failed: {error.reason}",
            node=fused.block,
            help=help,
            phases=(*phases, refused),
            cause=error,
        ) from error
    early = phases[-1].reads_early
    if repair.term.unproved is not None:
        why = repair.term.unproved
        note = f"h = {repair.given} was given and is not proved: step {why.step!r} failed: {why.reason}."
        wrong = phases[-1].wrong or why.wrong
        title = "repair function, not proved"
        return repair, Phase("repair", title, note, program, repair.term, wrong=wrong, reads_early=early)
    note = f"f is {repair.term.reducer}, and g is the term of {fused.local}. h moves the value of {fused.block} from "
    note += f"one value of {', '.join(fused.buffers)} to another. {repair.checked[:1].upper()}{repair.checked[1:]}."
    if repair.given is not None:
        note = f"h was given and is proved. {note}"
    return repair, Phase(
        "repair", "repair function", note, program, repair.term, wrong=phases[-1].wrong, reads_early=early
    )


def apply_repair_term(block: Block, carried: Expr, repair: Repair, moment: TagReads, program: Program) -> Expr:
    """h(carried, r, r') as a scalar expression."""
    term = repair.term
    dtype = program.buffer(block.writes).dtype
    values = producer_values(term, repair, moment, program, dtype=dtype)
    values |= {symbol: widened(value, dtype, program) for symbol, value in repair.constants.items()}
    values[term.t] = carried
    if term.factor is not None:
        if term.factor == 1:
            return carried
        moved: Expr = Op("mul", (lower(term.factor, values, dtype), carried))
        overflows = any(point.absorbing for points in repair.points.values() for point in points)
        if overflows and term.reducer in ("max", "min"):
            # The factor can be 0, and 0 times the identity is NaN: an accumulator that is the identity stays.
            nothing = Const(float(IDENTITIES[term.reducer]), dtype)
            return Op("select", (Op("eq", (carried, nothing)), nothing, moved))
        return moved
    return lower(term.h, values, dtype)


def is_repaired(block: Block) -> bool:
    """Whether the block has a repair term already, from an earlier rolling update that fused and privatised it."""
    return block.repair is not None


def repair_info(program: Program, repair: ProducerReads) -> RepairInfo:
    """The note on a block that `repair` repairs: the stages that the repair reads, and whether it is proved."""
    by = tuple(sorted({w.origin for p in repair.reads if (w := writer_of(program, p)) is not None}))
    if not isinstance(repair, Repair) or repair.term.unproved is None:
        return RepairInfo(by)
    return RepairInfo(by, str(repair.given), repair.term.unproved.wrong)


def with_repair(block: Block, h: Expr, info: RepairInfo) -> Block:
    """The block with `h` in place of the read of its own value (Eq. 7)."""
    reduction = match_reduction(block)
    value = Op(OPERATORS[reduction.reducer], (h, reduction.term))
    return replace(block, body=Store(block.body.buffer, block.body.indices, value), repair=info)
