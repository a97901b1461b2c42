"""split_k_update: partial reductions in parallel, combined and repaired by a second nest (paper, 4.3, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import (
    Block,
    Const,
    Expr,
    Load,
    Op,
    Program,
    Store,
    Var,
    bound_loops,
    map_store,
    reads,
    substitute,
    transform,
    walk,
)
from neptune_lab.loop_ir.reduction import OPERATORS, match_reduction
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import align, cannot_align, check_reads, loop_ref, names_under, under
from neptune_lab.loop_schedule.guards import TagReads, guard_reads
from neptune_lab.loop_schedule.kinds import BlockName, Formula, LoopRef, MapPolicy, Switch
from neptune_lab.loop_schedule.maps import find_producers, reorganize_dataflow, roll
from neptune_lab.loop_schedule.outcome import Outcome, Phase
from neptune_lab.loop_schedule.primitives.materialize_tags import run_along, tag_of
from neptune_lab.loop_schedule.primitives.privatize_reduction import Private, privatize
from neptune_lab.loop_schedule.primitives.rolling_update import check_target, dataflow_note, repaired_phase
from neptune_lab.loop_schedule.repairing import (
    Repair,
    apply_repair_term,
    nothing_to_repair,
    repair_info,
    solve_repair,
    user_repair_of,
)


@dataclass(frozen=True, slots=True)
class LocalAndGlobal:
    """A privatised producer: its global block's read of the local buffer, and where the tag stands in it."""

    whole: str
    local: str
    read: Load
    spatial: tuple[Expr, ...]
    tag: str
    axis: int


def local_and_global(program: Program, name: str, loop: str) -> LocalAndGlobal | None:
    """How the reduction `name` is split along `loop`; None where it is not."""
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    _, block, _ = tree.find_block(program, name)
    if block.role is not Role.GLOBAL:
        return None
    tags = [i.name for i in block.iters if i.kind == "reduce"]
    # The local half is of the same stage; a repair reads the producers' halves beside it.
    own = {b.writes for b in tree.blocks(program) if b.origin == block.origin and under(program, b.name, target)}
    found = next((e for e in _loads(match_reduction(block).term) if e.buffer in own), None)
    if found is None or len(tags) != 1:
        return None
    axis = found.indices.index(Var(tags[0]))
    return LocalAndGlobal(block.writes, found.buffer, found, block.body.indices, tags[0], axis)


def _loads(expr: Expr) -> list[Load]:
    return [e for e in walk(expr) if isinstance(e, Load)]


def fuse_and_privatize(program: Program, name: str, loop: str) -> tuple[Program, str]:
    """FuseAndPrivatize of Algorithm 2: the local half under the loop, the global half where the block stood.

    A block that is under the loop already leaves its global half right behind that nest.
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
            help="name the loop of its local half, as Schedule.loops lists it",
        )
    if made.global_stmt is None:
        raise ScheduleError(
            f"loop {loop!r} iterates over the reduction of {name!r} one element per step: each split would hold one "
            "element",
            node=name,
            help=f"split the loop first, so that {loop!r} runs over tiles",
        )
    return made


def replace_tensor_reads(program: Program, name: str, half: LocalAndGlobal, var: str) -> Program:
    """Block `name` reads the local half instead of the whole (REPLACETENSORREADS)."""
    _, block, _ = tree.find_block(program, name)
    tag = tag_of(block, var)
    assert tag is not None

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer == half.whole:
            values = {i.name: v for i, v in zip(half.spatial, e.indices, strict=True) if isinstance(i, Var)}
            return Load(half.local, tuple(substitute(i, {**values, half.tag: tag}) for i in half.read.indices))
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
        repair: as in `rolling_update`; before is a split's own value of a producer, now the whole one.
        proved: as in `rolling_update`.

    Raises:
        ScheduleError: the loop is not one of the producers' reductions, or there is nothing to repair.
        RepairError: no h exists, or the given one is not proved.
    """
    given = user_repair_of("split_k_update", block, repair, proved)
    check_target(program, block, loop)
    _, var = loop_ref(loop)
    asked = loop
    above = find_producers(program, block, loop)
    done = reorganize_dataflow(program, block, loop, above.maps, maps)
    program = done.program
    phases = [Phase("dataflow", "dataflow reorganisation", dataflow_note(block, above.producers, done), done.sound)]
    there = names_under(program, loop)

    split_producers: list[LocalAndGlobal] = []
    if not above.producers:
        nothing_to_repair("split_k_update", block, given)
    for producer in above.producers:
        if local_and_global(program, producer, loop) is None:
            inner = find_producers(program, producer, loop)
            if inner.producers:
                raise ScheduleError(
                    f"block {block!r} depends on {producer!r}, which depends on {', '.join(inner.producers)} and is "
                    f"not split along {asked!r} yet",
                    node=producer,
                    help=f"apply split_k_update({producer!r}, {loop!r}) first",
                )
            program, made = fuse_and_privatize(program, producer, loop)
            if loop_ref(loop)[0] == producer:
                loop = f"{made}.{var}"  # the loop stays where it is; its block is the local half now
        half = local_and_global(program, producer, loop)
        assert half is not None
        split_producers.append(half)
    for kept in done.kept:
        program = run_along(roll(program, kept, loop), kept, var)
        for half in split_producers:
            program = replace_tensor_reads(program, kept, half, var)
    program, local = fuse_and_privatize(program, block, loop)
    for half in split_producers:
        program = replace_tensor_reads(program, local, half, var)
    check_reads(program, sorted(names_under(program, loop) - there), loop)
    early = tuple(
        (b, writer.name)
        for b in (*done.kept, local)
        for half in split_producers
        if reads(tree.find_block(program, b)[1], half.local) and (writer := writer_of(program, half.local)) is not None
    )
    names = ", ".join(h.local for h in split_producers)
    wrong = bool(split_producers) and tree.find_loop(program, *loop_ref(loop))[1].extent > 1
    note = f"{local} folds each split on its own, and {block} folds the splits."
    if split_producers:
        note = f"{local} folds each split on its own, reading {names} instead of the whole: "
        note += "the numbers are wrong." if wrong else "there is one split, so the numbers still hold."
    phases.append(
        Phase("naive", "naive fusion and privatisation", note, program, wrong=wrong, reads_early=early if wrong else ())
    )
    if not split_producers:
        phases.append(Phase("repaired", "split program", "There is nothing to repair.", program))
        return Outcome(program, tuple(phases), (local,))

    axes: dict[str, int | None] = {half.local: half.axis for half in split_producers}
    if given is not None:
        given = replace(given, shown=tuple((half.local, half.whole) for half in split_producers))
    h, solved = solve_repair(program, "split_k_update", block, asked, local, axes, done.kept, tuple(phases), given)
    phases.append(solved)
    for reader in (*done.kept, local):
        _, reading, _ = tree.find_block(program, reader)
        program = tree.replace_block(program, reader, guard_reads(reading, h, program, ends=False))
    program = tree.replace_block(program, block, _split_k_apply_repair_term(program, block, split_producers, h))
    whole = ", ".join(producer.whole for producer in split_producers)
    note = f"{block} repairs each split's value from {names} to {whole} as it combines them."
    phases.append(repaired_phase("repaired program", note, program, h))
    return Outcome(program, tuple(phases), (local,))


def _split_k_apply_repair_term(
    program: Program, name: str, split_producers: list[LocalAndGlobal], repair: Repair
) -> Block:
    """The global block with h on the right of f (Eq. 11)."""
    _, block, _ = tree.find_block(program, name)
    reduction = match_reduction(block)
    tag = next(i.name for i in block.iters if i.kind == "reduce")
    by_local = {half.local: half for half in split_producers}

    def previous(buffer: str, index: tuple[Expr, ...]) -> Expr:
        axis = by_local[buffer].axis
        return Load(buffer, (*index[:axis], Var(tag), *index[axis:]))

    def current(buffer: str, index: tuple[Expr, ...]) -> Expr:
        # A local half that keeps its tags is read at its last one; the whole has none.
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
