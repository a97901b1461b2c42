"""The vector repair of a consumer; f and g are read from it as for the paper's repair (`reduce_pattern`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Cast, Expr, Load, Program, Var
from neptune_lab.loop_ir.reduction import match_reduction
from neptune_lab.loop_ir.walks import loads, substitute, walk
from neptune_lab.loop_schedule.estimate import ReductionProgress, is_plain_sum, plain_reads, progress_of
from neptune_lab.loop_schedule.float_range import check_range
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.guards import TagReads, producer_values
from neptune_lab.loop_schedule.outcome import Phase, Refusal
from neptune_lab.loop_schedule.outcome_cache import resized
from neptune_lab.loop_schedule.reduce_pattern import ReducePattern, inlined_term, match_reduce_pattern
from neptune_lab.loop_schedule.repairing import FusedReduction, Repair, RepairRefused, points_of, solve_repair
from neptune_lab.loop_schedule.scalar_loop import scalar_loop
from neptune_lab.loop_schedule.singular_points import ProducerReads
from neptune_lab.loop_schedule.vector_matrix import moved_sum, reference_step
from neptune_lab.loop_to_repair.lower import lower
from neptune_lab.loop_to_repair.read import read_term
from neptune_lab.repair import VectorRepair, solve_vector, text

if TYPE_CHECKING:
    from sympy import Symbol


@dataclass(frozen=True, slots=True)
class FamilyRepair(ProducerReads):
    """The solved vector repair of one consumer.

    Args:
        term: the derivation, from `repair.solve_vector`.
        values: the expression, in the consumer's local block, of each symbol of the term's components.
        reference: u(r) as in the definition, so that it is rounded in the same way; None if it is no part of the term.
        progress: of the rolling loop, by which elements are counted.
    """

    term: VectorRepair
    values: dict[Symbol, Expr]
    reference: Expr | None
    progress: ReductionProgress


def find_family_repair(
    program: Program, consumer: Block, var: str, producers: dict[str, int | None], kept: tuple[str, ...]
) -> FamilyRepair:
    """The vector repair of `consumer` (its local block) along loop `var`;
    `producers` as in `match_reduce_pattern`.

    Raises:
        RepairError: with the step that failed.
    """
    asked = match_reduce_pattern(program, consumer, producers, kept)
    term = solve_vector(asked.reducer, asked.reading.term, asked.producers, assumptions=asked.assumptions)
    if len(term.growth) > 1:
        raise RepairError(
            f"the parts of the term grow at different rates ({', '.join(text(rate) for rate in term.growth)}) as "
            f"{', '.join(asked.producers)} changes: their sum would lose the digits of the smaller part",
            step="close",
            expression=text(term.g),
            node=consumer.name,
            help="write the parts as stages of their own, and add them up after the loop",
        )
    points = points_of(program, consumer, asked, term)
    dtype = program.buffer(consumer.writes).dtype

    def widened(expr: Expr) -> Expr:
        """The algebra has no dtypes: values that are read are converted to the dtype of the sum."""
        narrow = isinstance(expr, Load) and program.buffer(expr.buffer).dtype != dtype
        return Cast(dtype, expr) if narrow else expr

    values = {term.symbols[symbol]: widened(expr) for symbol, expr in asked.reading.reads if symbol in term.symbols}
    reference = _written(asked, term)
    stage = _stage_of(program, kept, asked, term)
    if stage is not None:
        values[term.u] = stage
    else:
        values[term.u] = lower(term.reference, values, dtype) if reference is None else reference
    progress = progress_of(program, consumer.name, var)
    repair = FamilyRepair(asked.reads, points, term, values, reference, progress)
    if resized():
        return repair
    return replace(repair, term=replace(term, ranges=(_in_range(program, consumer, repair),)))


def _in_range(program: Program, consumer: Block, repair: FamilyRepair) -> str:
    """A sentence on the comparison in float32 (`float_range`); RepairError, step "range", if the repair is wrong."""
    term, dtype = repair.term, program.buffer(consumer.writes).dtype
    (producer,) = repair.reads
    before, now = Var(f"{producer} before"), Var(f"{producer} now")
    values = producer_values(
        term, repair, TagReads(lambda *_: before, lambda *_: now, starts=True), program, dtype=dtype
    )
    if term.by_difference:
        values[term.step] = reference_step(term, repair.reference, values, dtype)
    carried = [Var(f"carried value {row}") for row in range(term.size)]
    terms = [match_reduction(consumer).term]
    terms += [lower(term.companion(k), repair.values, dtype) for k in range(1, term.size)]
    moved = [moved_sum(row, carried, term, values, dtype) for row in range(term.size)]
    estimates = [producer] if is_plain_sum(program, producer) else []
    loop = scalar_loop(
        program, consumer, "sum", terms, carried, moved, {producer: (before, now)}, repair.points, estimates
    )
    return check_range(loop)


def _is_reference(expr: Expr, named: dict[Expr, str], term: VectorRepair) -> bool:
    """Whether `expr`, in which `named` are the reads of the producer, is u(r)."""
    read = loads(expr)
    callers = {internal: symbol for symbol, internal in term.symbols.items()}
    return (
        bool(read) and all(x in named for x in read) and read_term(expr, named).term == term.reference.xreplace(callers)
    )


def _written(asked: ReducePattern, term: VectorRepair) -> Expr | None:
    """The part of the consumer's term that is u(r)."""
    return next((node for node in walk(asked.term) if _is_reference(node, asked.named, term)), None)


def _stage_of(program: Program, kept: tuple[str, ...], asked: ReducePattern, term: VectorRepair) -> Expr | None:
    """A read of the shared stage that computes u(r), such as a mean; None if there is none."""
    for name in kept:
        _, block, _ = tree.find_block(program, name)
        value = inlined_term(program, plain_reads(block), kept)
        named: dict[Expr, str] = {e: e.buffer for e in loads(value) if isinstance(e, Load) and e.buffer in asked.reads}
        if not _is_reference(value, named, term):
            continue
        # The consumer's index of the stage follows from the indices at which both read the producer.
        (theirs,) = dict.fromkeys(e for e in loads(value))
        spatial = [e for e in theirs.indices if isinstance(e, Var)][-len(asked.reads[theirs.buffer]) :]
        env = {e.name: index for e, index in zip(spatial, asked.reads[theirs.buffer], strict=False)}
        if all(isinstance(i, Var) and i.name in env for i in block.body.indices):
            return Load(block.writes, tuple(substitute(i, env) for i in block.body.indices))
    return None


def solve_any_repair(
    fused: FusedReduction, program: Program, phases: tuple[Phase, ...]
) -> tuple[Repair | FamilyRepair, Phase]:
    """As `repairing.solve_repair`; if the paper's solver refuses, the vector repair.

    A repair that the user gives is a single h, and no matrix replaces it.

    Raises:
        RepairRefused: both refuse. It has the reasons of both, and the step of the first.
    """
    block = fused.block
    try:
        return solve_repair(fused, program, phases)
    except RepairRefused as error:
        if fused.given is not None:
            raise
        refused = error
    scalar = refused.__cause__
    assert isinstance(scalar, RepairError)
    _, consumer, _ = tree.find_block(program, fused.local)
    if scalar.step == "read" or match_reduction(consumer).reducer != "sum":
        raise refused from scalar
    try:
        repair = find_family_repair(program, consumer, loop_ref(fused.loop)[1], fused.buffers, fused.kept)
    except RepairError as error:
        if error.reason == scalar.reason:
            raise refused from scalar
        also = f"; and for a vector repair, step {error.step!r} failed: {error.reason}"
        last = replace(
            refused.phases[-1],
            note=refused.phases[-1].note + also,
            refusal=Refusal(scalar.step, scalar.expression, scalar.reason + also, "sum", scalar.passed),
        )
        raise RepairRefused(
            refused.reason + also, node=block, help=refused.help, phases=(*refused.phases[:-1], last), cause=scalar
        ) from scalar
    term = repair.term
    producers = ", ".join(repair.reads)
    note = f"{block} has no repair term of its own (step {scalar.step!r}: {scalar.reason}). But its term belongs to "
    note += f"{term.size} functions that are closed under a change of {producers}: {block} carries their sums, and a "
    note += f"matrix moves these from one value of {producers} to another."
    early = phases[-1].reads_early
    return repair, Phase("repair", "repair function", note, program, term, wrong=phases[-1].wrong, reads_early=early)
