"""Step 4 of a rolling update: tags on the producers, guards on the readers, and h on the values that a loop carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.iteration_domain import always
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Load, Op, Previous, Program
from neptune_lab.loop_ir.reduction import match_reduction
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import reads, substitute, variables
from neptune_lab.loop_schedule.estimate import ReductionProgress, estimated, is_plain_sum, progress_of, with_estimates
from neptune_lab.loop_schedule.guards import TagReads, guard_reads, is_last_tag
from neptune_lab.loop_schedule.primitives.materialize_tags import cache_reduction_results, own_tag, start_of
from neptune_lab.loop_schedule.repairing import Repair, apply_repair_term, repair_info, with_repair
from neptune_lab.loop_schedule.vector_repair import Member, apply_family
from neptune_lab.loop_schedule.vector_solve import FamilyRepair


def reference_values(
    program: Program,
    local: str,
    var: str,
    buffers: tuple[str, ...],
    kept: tuple[str, ...],
    there: frozenset[str],
    repair: Repair | FamilyRepair,
) -> dict[str, ReductionProgress]:
    """The producers that are read through running estimates of their final values, with the progress of the loop.

    If an earlier step has rolled a shared map (its name is in `there`), the producers that the map reads are estimated
    as they are in the map. Otherwise a vector repair estimates plain sums (`estimate`).
    """
    references: dict[str, ReductionProgress] = {}
    for buffer in buffers:
        maps = [tree.find_block(program, name)[1] for name in kept if name in there]
        settled = [buffer in b.estimates for b in maps if reads(b, buffer)]
        by_default = isinstance(repair, FamilyRepair) and is_plain_sum(program, buffer)
        if settled[0] if settled else by_default:
            references[buffer] = progress_of(program, local, var)
    return references


def _are_combined(program: Program, wholes: Sequence[str]) -> bool:
    """Whether these are reductions of a split, which another kernel combines: the loop does not complete them."""
    made = [tree.find_block(program, whole)[1] for whole in wholes]
    return any(
        b.origin == block.origin and b.role is Role.GLOBAL and b.name not in wholes and reads(b, block.writes)
        for block in made
        for b in tree.blocks(program)
    )


def _check_last_iteration(program: Program, whole: str, var: str) -> None:
    """Raises RepairError unless the last iteration of loop `var` runs the block `whole`.

    Formal statement: where an output shows that a producer ended at a singular point, the last tag has no guard, so
    the block runs at the last tag.
    """
    _, block, loops = tree.find_block(program, whole)
    extents = {loop.var: loop.extent for loop in loops}
    last = Const(extents[var] - 1)
    for predicate in block.predicates:
        if var in variables(predicate) and not always(substitute(predicate, {var: last}), extents):
            raise RepairError(
                f"block {whole!r} does not run in the last iteration of loop {var!r}, where "
                f"{expression(predicate)} is false; an output shows where that iteration ends",
                step="guard",
                expression=expression(predicate),
                node=whole,
                help=f"fuse loops into {var!r} only if their sizes divide the reduced dimension, or roll over the "
                "outer one of a split",
            )


def apply_repair(
    program: Program,
    members: Sequence[Member],
    var: str,
    producers: tuple[str, ...],
    kept: tuple[str, ...],
    repair: Repair | FamilyRepair,
    references: Mapping[str, ReductionProgress],
) -> Program:
    """Tags on the producers, guards on the readers, h on the carried values (Algorithm 1, lines 7 to 11).

    Args:
        program: the program after naive fusion, with the companions of a vector repair.
        members: the consumer, and the sums that are carried with it.
        var: the rolling loop.
        producers: the reductions that the consumer depends on.
        kept: the maps between that are separate blocks.
        repair: the solved repair.
        references: producers that are read through running estimates.

    Returns:
        The repaired program.
    """
    starts: dict[str, Const] = {}
    completes = not _are_combined(program, [m.whole for m in members if m.whole is not None])
    if completes and any(point.shows for points in repair.points.values() for point in points):
        for whole in (m.whole for m in members if m.whole is not None):
            _check_last_iteration(program, whole, var)
    for producer in producers:
        program = cache_reduction_results(program, producer)
        _, scan, _ = tree.find_block(program, producer)
        start = start_of(scan)
        assert start is not None
        starts[scan.writes] = start
    for name in (*kept, *(m.local for m in members if m.local is not None)):
        _, reader, _ = tree.find_block(program, name)
        guarded = guard_reads(reader, repair, program, ends=completes)
        guarded = with_estimates(guarded, references, own_tag(reader, var), program)
        program = tree.replace_block(program, name, guarded)
    tags = _Tags(program, var, starts, references, completes)
    info = repair_info(program, repair)
    if isinstance(repair, FamilyRepair):
        return apply_family(program, members, repair, var, tags.reads_of, info)
    whole = members[0].whole
    assert whole is not None
    _, consumer, _ = tree.find_block(program, whole)
    carried = match_reduction(consumer).carried
    h = apply_repair_term(consumer, carried, repair, tags.reads_of(consumer), program)
    return tree.replace_block(program, whole, with_repair(consumer, h, info))


@dataclass(frozen=True, slots=True)
class _Tags:
    """How blocks in a rolling loop read the tagged values of producers.

    Args:
        program: the program, in which the producers have tags.
        var: the rolling loop.
        starts: the value of each producer's buffer before its first tag.
        references: producers that are read through running estimates.
        completes: whether the loop completes the reductions.
    """

    program: Program
    var: str
    starts: Mapping[str, Const]
    references: Mapping[str, ReductionProgress]
    completes: bool

    def reads_of(self, block: Block) -> TagReads:
        """The previous and the current value of a producer, as `block` reads them."""
        tag = own_tag(block, self.var)
        return TagReads(
            lambda buffer, index: self._previous(tag, buffer, index),
            lambda buffer, index: self._current(tag, buffer, index),
            starts=True,
            is_last=lambda buffer: is_last_tag(self.program, buffer, tag) if self.completes else None,
        )

    def _previous(self, tag: Expr, buffer: str, index: tuple[Expr, ...]) -> Expr:
        value = Previous(buffer, (tag, *index), self.starts[buffer])
        if buffer not in self.references:
            return value
        # Before the first tag no element was seen. Any estimate is right then, since the carried value is 0.
        count = Op("max", (self.references[buffer].seen_before(tag), Const(1)))
        return estimated(value, self.references[buffer], count, self.program.buffer(buffer).dtype)

    def _current(self, tag: Expr, buffer: str, index: tuple[Expr, ...]) -> Expr:
        value = Load(buffer, (tag, *index))
        if buffer not in self.references:
            return value
        progress = self.references[buffer]
        return estimated(value, progress, progress.seen(tag), self.program.buffer(buffer).dtype)


def companions_note(block: str, members: Sequence[Member], references: Mapping[str, ReductionProgress]) -> str:
    """The part of the note about the sums that are carried with `block`, and about estimates."""
    carried = [m.whole for m in members[1:] if m.whole is not None]
    text = f" {', '.join(carried)} {'is' if len(carried) == 1 else 'are'} carried with it." if carried else ""
    if len(carried) < len(members) - 1:
        text += " The number of elements so far needs no sum."
    for buffer in references:
        text += f" The final value of {buffer} is estimated from the elements so far, so that {block} is taken about a "
        text += "value that changes little; at the last tag the estimate is exact."
    return text
