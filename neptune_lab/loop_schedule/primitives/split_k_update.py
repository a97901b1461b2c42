"""split_k_update: partial reductions in parallel, combined and repaired by a second nest (paper, 4.3, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Load, Op, Program, Store, Var
from neptune_lab.loop_ir.reduction import OPERATORS, match_reduction
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import bound_loops, map_store, reads, substitute, transform, walk
from neptune_lab.loop_schedule.alignment import align
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import cannot_align, check_reads, loop_ref, names_under, under
from neptune_lab.loop_schedule.guards import TagReads, guard_reads
from neptune_lab.loop_schedule.kinds import BlockName, Formula, LoopRef, MapPolicy, Switch
from neptune_lab.loop_schedule.maps import find_producers, reorganize_dataflow, roll
from neptune_lab.loop_schedule.outcome import Outcome, Phase
from neptune_lab.loop_schedule.primitives.materialize_tags import run_along, tag_of
from neptune_lab.loop_schedule.primitives.privatize_reduction import Private, privatize
from neptune_lab.loop_schedule.primitives.rolling_update import check_target, dataflow_note, repaired_phase
from neptune_lab.loop_schedule.repairing import FusedReduction, Repair, apply_repair_term, repair_info, solve_repair
from neptune_lab.loop_schedule.row_constants import solve_with_constants
from neptune_lab.loop_schedule.user_repair import nothing_to_repair, user_repair_of


@dataclass(frozen=True, slots=True)
class LocalAndGlobal:
    """A privatised producer.

    Args:
        whole: the buffer of the global block.
        local: the buffer of the local block.
        read: the global block's read of the local buffer.
        spatial: the indices at which the global block stores.
        tag: the global block's variable over splits.
        axis: the dimension of the local buffer that the tag indexes.
    """

    whole: str
    local: str
    read: Load
    spatial: tuple[Expr, ...]
    tag: str
    axis: int


def local_and_global(program: Program, name: str, loop: str) -> LocalAndGlobal | None:
    """The reduction `name` as it is split along `loop`; None if it is not."""
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    _, block, _ = tree.find_block(program, name)
    if block.role is not Role.GLOBAL:
        return None
    tags = [i.name for i in block.iters if i.kind == "reduce"]
    # The local block is of the same stage. A repair also reads the local blocks of its producers.
    own = {b.writes for b in tree.blocks(program) if b.origin == block.origin and under(program, b.name, target)}
    terms = walk(match_reduction(block).term)
    read = next((e for e in terms if isinstance(e, Load) and e.buffer in own), None)
    if read is None or len(tags) != 1:
        return None
    axis = read.indices.index(Var(tags[0]))
    return LocalAndGlobal(block.writes, read.buffer, read, block.body.indices, tags[0], axis)


def fuse_and_privatize(program: Program, name: str, loop: str) -> tuple[Program, str]:
    """FuseAndPrivatize of Algorithm 2: the local block goes under the loop, the global block to the place of `name`.

    If the block is under the loop already, the global block comes directly after that nest.

    Returns:
        The program, and the local block's name.
    """
    _, var = loop_ref(loop)
    held = f"{name}@"
    path, block, _ = tree.find_block(program, name)
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    if under(program, name, target):
        made = _private(program, name, var, loop)
        after = made.global_stmt
        assert after is not None
        return tree.edit(made.program, path[:1], lambda stmt: (stmt, after)), made.local
    aligned = align(program, block, target)
    if var not in bound_loops(aligned.iters):
        raise cannot_align(name, loop, var, aligned)
    program = tree.replace_block(program, name, replace(block, name=held))
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    moved = replace(block, iters=aligned.iters, predicates=aligned.predicates)
    program = tree.append_to_loop(program, target, (tree.loop_nest(list(aligned.inner), moved),))
    made = _private(program, name, var, loop)
    assert made.global_stmt is not None
    return tree.replace_nest(made.program, held, (made.global_stmt,)), made.local


def _private(program: Program, name: str, var: str, loop: str) -> Private:
    made = privatize(program, name, var, Role.LOCAL, outside=True)
    if made.global_stmt is None and tree.find_block(program, name)[1].role is Role.GLOBAL:
        raise ScheduleError(
            f"loop {loop!r} combines the splits of {name!r}; it is not the loop over splits",
            node=name,
            help="name the loop of its local block, as Schedule.loops lists it",
        )
    if made.global_stmt is None:
        raise ScheduleError(
            f"each iteration of loop {loop!r} folds a single element of {name!r}: each split would have one element",
            node=name,
            help=f"split the loop first, so that {loop!r} runs over tiles",
        )
    return made


def replace_tensor_reads(program: Program, name: str, producer: LocalAndGlobal, var: str) -> Program:
    """Block `name`, reading the local buffer of `producer` instead of its complete one (REPLACETENSORREADS)."""
    _, block, _ = tree.find_block(program, name)
    tag = tag_of(block, var)
    assert tag is not None

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer == producer.whole:
            places = zip(producer.spatial, e.indices, strict=True)
            values: dict[str, Expr] = {i.name: value for i, value in places if isinstance(i, Var)}
            values[producer.tag] = tag
            return Load(producer.local, tuple(substitute(i, values) for i in producer.read.indices))
        return e

    return tree.replace_block(program, name, replace(block, body=map_store(block.body, lambda e: transform(e, rule))))


@primitive(ours=True, makes="several", made="The local blocks that were made.", partial=True)
def split_k_update(
    program: Program,
    *,
    block: BlockName,
    loop: LoopRef,
    maps: MapPolicy = "auto",
    repair: Formula | None = None,
    proved: Switch = True,
) -> Outcome:
    """Splits a reduction into parallel local ones and one that combines and repairs them, in four phases.

    before ⇒ after (t the split):
        R[i] = R[i] (fr) …              for t: R_local[i, t] = R_local[i, t] (fr) …
        X[i] = X[i] (f) g(R[i], c)  ⇒          X_local[i, t] = X_local[i, t] (f) g(R_local[i, t], c)
                                        for t: R[i] = R[i] (fr) R_local[i, t]
                                        for t: X[i] = X[i] (f) h(X_local[i, t], R_local[i, t], R[i])

    Args:
        block: the reduction to fuse (L_t).
        loop: the loop over splits, "block.loop".
        maps: as in `rolling_update`.
        repair: as in `rolling_update`; "before" is the split's own value of a producer, "now" its complete value.
        proved: as in `rolling_update`.

    Raises:
        ScheduleError: the loop is not one of the producers' reductions, or there is nothing to repair.
        RepairError: no h exists, or the given one is not proved.
    """
    given = user_repair_of("split_k_update", block, repair, proved)
    check_target(program, block, loop)
    _, var = loop_ref(loop)
    above = find_producers(program, block, loop)
    done = reorganize_dataflow(program, block, loop, above.maps, maps)
    phases = [Phase("dataflow", "dataflow reorganisation", dataflow_note(block, above.producers, done), done.sound)]
    there = names_under(done.program, loop)
    if not above.producers:
        nothing_to_repair("split_k_update", block, given)

    # Naive fusion. The program is wrong from here until the repair.
    program, inner_loop, producers = _split_producers(done.program, block, loop, above.producers)
    for kept in done.kept:
        program = run_along(roll(program, kept, inner_loop), kept, var)
        for producer in producers:
            program = replace_tensor_reads(program, kept, producer, var)
    program, local = fuse_and_privatize(program, block, inner_loop)
    for producer in producers:
        program = replace_tensor_reads(program, local, producer, var)
    check_reads(program, sorted(names_under(program, inner_loop) - there), inner_loop)
    one_split = tree.find_loop(program, *loop_ref(inner_loop))[1].extent == 1
    phases.append(_naive_phase(program, block, local, producers, (*done.kept, local), one_split))
    if not producers:
        phases.append(Phase("repaired", "split program", "There is nothing to repair.", program))
        return Outcome(program, tuple(phases), (local,))

    axes: dict[str, int | None] = {producer.local: producer.axis for producer in producers}
    if given is not None:
        given = replace(given, shown=tuple((producer.local, producer.whole) for producer in producers))
    asked = FusedReduction("split_k_update", block, loop, local, axes, done.kept, given)
    program, phases, h = solve_with_constants(program, tuple(axes), phases, partial(solve_repair, asked))
    for reader in (*done.kept, local):
        _, reading, _ = tree.find_block(program, reader)
        program = tree.replace_block(program, reader, guard_reads(reading, h, program, ends=False))
    program = tree.replace_block(program, block, _split_k_apply_repair_term(program, block, producers, h))
    locals_, wholes = (", ".join(names) for names in zip(*((p.local, p.whole) for p in producers), strict=True))
    note = f"As {block} combines the splits, it repairs the value of each from {locals_} to {wholes}."
    phases.append(repaired_phase("repaired program", note, program, h))
    return Outcome(program, tuple(phases), (local,))


def _split_producers(
    program: Program, block: str, loop: str, names: tuple[str, ...]
) -> tuple[Program, str, list[LocalAndGlobal]]:
    """The program with the producers `names` of `block` split along `loop`, the loop by the name that it then has, and
    the split producers."""
    _, var = loop_ref(loop)
    asked = loop
    producers: list[LocalAndGlobal] = []
    for name in names:
        if local_and_global(program, name, loop) is None:
            above = find_producers(program, name, loop)
            if above.producers:
                raise ScheduleError(
                    f"block {block!r} depends on {name!r}, which depends on {', '.join(above.producers)} and is "
                    f"not split along {asked!r} yet",
                    node=name,
                    help=f"apply split_k_update({name!r}, {loop!r}) first",
                )
            program, local = fuse_and_privatize(program, name, loop)
            if loop_ref(loop)[0] == name:
                loop = f"{local}.{var}"  # the loop is the same, but contains the local block now
        producer = local_and_global(program, name, loop)
        assert producer is not None
        producers.append(producer)
    return program, loop, producers


def _naive_phase(
    program: Program,
    block: str,
    local: str,
    producers: list[LocalAndGlobal],
    readers: tuple[str, ...],
    one_split: bool,
) -> Phase:
    """The phase after naive fusion.

    Args:
        block: the global block.
        local: its local block.
        readers: the blocks that may read local values of producers.
        one_split: whether the loop over splits has one iteration.
    """
    wrong = bool(producers) and not one_split
    note = f"{local} folds each split separately, and {block} folds the splits."
    if producers:
        names = ", ".join(producer.local for producer in producers)
        note = f"{local} folds each split separately. It reads {names} instead of the complete value: "
        note += "the numbers are wrong." if wrong else "there is one split, so the numbers are still right."
    early = tuple(
        (name, writer.name)
        for name in readers
        for producer in producers
        if reads(tree.find_block(program, name)[1], producer.local)
        and (writer := writer_of(program, producer.local)) is not None
    )
    title = "naive fusion and privatisation"
    return Phase("naive", title, note, program, wrong=wrong, reads_early=early if wrong else ())


def _split_k_apply_repair_term(program: Program, name: str, producers: list[LocalAndGlobal], repair: Repair) -> Block:
    """The global block with h on the right of f (Eq. 11)."""
    _, block, _ = tree.find_block(program, name)
    reduction = match_reduction(block)
    tag = next(i.name for i in block.iters if i.kind == "reduce")
    by_local = {producer.local: producer for producer in producers}

    def previous(buffer: str, index: tuple[Expr, ...]) -> Expr:
        axis = by_local[buffer].axis
        return Load(buffer, (*index[:axis], Var(tag), *index[axis:]))

    def current(buffer: str, index: tuple[Expr, ...]) -> Expr:
        # A local value that keeps its tags is read at its last one; the complete value has no tags.
        tags = program.buffer(buffer).tagged and not program.buffer(by_local[buffer].whole).tagged
        return Load(by_local[buffer].whole, index[1:] if tags else index)

    ends = Const(True, "bool")
    h = apply_repair_term(block, reduction.term, repair, TagReads(previous, current, is_last=lambda _: ends), program)
    value = Op(OPERATORS[reduction.reducer], (reduction.carried, h))
    return replace(
        block,
        body=Store(block.body.buffer, block.body.indices, value),
        repair=repair_info(program, repair),
    )
