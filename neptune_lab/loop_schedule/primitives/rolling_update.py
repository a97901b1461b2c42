"""rolling_update: a reduction fused under a loop of the reductions it depends on (paper, 4.2, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Load, Op, Previous, Program, reads, transform
from neptune_lab.loop_ir.reduction import match_reduction
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.estimate import (
    ReductionProgress,
    estimated,
    is_plain_sum,
    progress_of,
    with_estimates,
)
from neptune_lab.loop_schedule.fusion import check_reads, fuse_naively, loop_ref, names_under, under
from neptune_lab.loop_schedule.guards import TagReads, guard_reads, is_last_tag
from neptune_lab.loop_schedule.kinds import BlockName, Formula, LoopRef, MapPolicy, Switch
from neptune_lab.loop_schedule.maps import ReorganizedDataflow, find_producers, reorganize_dataflow, roll
from neptune_lab.loop_schedule.outcome import Outcome, Phase
from neptune_lab.loop_schedule.primitives.materialize_tags import (
    cache_reduction_results,
    own_tag,
    run_along,
    start_of,
    tag_of,
)
from neptune_lab.loop_schedule.primitives.privatize_reduction import privatize
from neptune_lab.loop_schedule.repairing import (
    Repair,
    apply_repair_term,
    is_repaired,
    nothing_to_repair,
    repair_info,
    user_repair_of,
    with_repair,
)
from neptune_lab.loop_schedule.vector_repair import Member, add_companions, apply_family
from neptune_lab.loop_schedule.vector_solve import FamilyRepair, solve_any_repair


def check_target(program: Program, block: str, loop: str) -> None:
    """Formal statement: `block` is a reduction, and `loop` does not enclose it."""
    name, _ = loop_ref(loop)
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    _, consumer, _ = tree.find_block(program, block)
    if under(program, block, target):
        raise ScheduleError(
            f"loop {loop!r} encloses block {block!r} already: there is nothing to fuse",
            node=block,
            help="leave this step out if an earlier one has fused it; else name a loop of a block that comes before it",
        )
    match_reduction(consumer)
    order = [b.name for b in tree.blocks(program)]
    if order.index(block) < order.index(name):
        raise ScheduleError(
            f"block {block!r} comes before loop {loop!r}; it can only be fused under a loop of an earlier nest",
            node=block,
            help="name a loop of a block that comes before it",
        )


def check_serial(program: Program, loop: str) -> None:
    """Formal statement: the rolling loop runs in order, since its iterations hand values on."""
    _, found, _ = tree.find_loop(program, *loop_ref(loop))
    if found.kind != "serial":
        raise ScheduleError(
            f"loop {loop!r} is bound to {found.kind}: its iterations run in parallel and cannot carry a value",
            node=loop_ref(loop)[0],
            help="roll over a loop that is not bound, or use split_k_update, whose splits are parallel",
        )


def fuse_producers(program: Program, block: str, loop: str, producers: tuple[str, ...]) -> Program:
    """Producers that are not under the loop yet are fused and made private first (Algorithm 1, line 3)."""
    _, var = loop_ref(loop)
    for producer in producers:
        target, _, _ = tree.find_loop(program, *loop_ref(loop))
        if not under(program, producer, target):
            above = find_producers(program, producer, loop)
            if above.producers:
                raise ScheduleError(
                    f"block {block!r} depends on {producer!r}, which depends on {', '.join(above.producers)} and is "
                    f"not under {loop!r} yet",
                    node=producer,
                    help=f"apply rolling_update({producer!r}, {loop!r}) first",
                )
            program = fuse_naively(program, producer, loop)
        _, found, _ = tree.find_block(program, producer)
        if found.role is not Role.SCAN and not is_repaired(found):
            program = privatize_here(program, producer, var)[0]
    return program


def privatize_here(program: Program, name: str, var: str) -> tuple[Program, str]:
    """Privatises `name` along the loop it stands under, the global part right behind; its local block's name."""
    made = privatize(program, name, var, Role.TILE, outside=False)
    if made.global_stmt is None:
        return program, name
    path, _, loops = tree.find_block(made.program, made.local)
    depth = tree.depth_of(loops, var)
    program = tree.append_to_loop(made.program, path[: depth + 1], (made.global_stmt,))
    return program, made.local


@primitive(ours=True, makes="several", made="The local blocks that were made.", partial=True)
def rolling_update(
    program: Program,
    *,
    block: BlockName,
    loop: LoopRef,
    maps: MapPolicy = "auto",
    repair: Formula | None = None,
    proved: Switch = True,
) -> Outcome:
    """Fuses a reduction under a loop of the reductions that it depends on, and repairs it, in four phases.

    before ⇒ after (T the rolling loop):
        for t: R[i] = R[i] (fr) …                   for t: R⟨t⟩[i] = R⟨t-1⟩[i] (fr) …
        for t: X[i] = X[i] (f) g(R[i], c)     ⇒            X[i] = h(X[i], R⟨t-1⟩[i], R⟨t⟩[i]) (f) g(R⟨t⟩[i], c)

    Args:
        block: the reduction to fuse (L_t).
        loop: the rolling loop, "block.loop".
        maps: "auto", "inline" or "keep" the elementwise stages between (see `maps.reorganize_dataflow`).
        repair: h as text, over t, `<buffer>_before` and `<buffer>_now` of each producer; default: it is derived.
        proved: refuse a given h that is not proved; False accepts it, and marks the program if it is wrong. A wrong
            program cannot be compiled to a kernel.

    Raises:
        ScheduleError: the loop is not one of the producers' reductions, or there is nothing to repair.
        RepairError: no h exists, or the given one is not proved.
    """
    given = user_repair_of("rolling_update", block, repair, proved)
    check_target(program, block, loop)
    _, var = loop_ref(loop)
    check_serial(program, loop)

    # Step 1: dataflow reorganisation.
    above = find_producers(program, block, loop)
    done = reorganize_dataflow(program, block, loop, above.maps, maps)
    program = done.program
    phases = [Phase("dataflow", "dataflow reorganisation", dataflow_note(block, above.producers, done), done.sound)]
    there = names_under(program, loop)

    # Step 2: naive fusion. The program is wrong from here until the repair.
    program = fuse_producers(program, block, loop, above.producers)
    for kept in done.kept:
        program = run_along(roll(program, kept, loop), kept, var)
    program = fuse_naively(program, block, loop)
    program, local = privatize_here(program, block, var)
    buffers = tuple(tree.find_block(program, p)[1].writes for p in above.producers)
    for reader in (*done.kept, local):
        program = read_tag(program, reader, buffers, var)
    check_reads(program, sorted(names_under(program, loop) - there), loop)
    early = tuple(
        (b, p)
        for b in (*done.kept, local)
        for p, buffer in zip(above.producers, buffers, strict=True)
        if reads(tree.find_block(program, b)[1], buffer)
    )
    wrong = bool(buffers) and tree.find_loop(program, *loop_ref(loop))[1].extent > 1
    note = f"{block} now runs inside loop {var}. It reads no reduction that this loop leaves incomplete."
    if buffers:
        note = f"{block} now runs inside loop {var} and reads {', '.join(buffers)} too early: "
        note += "the numbers are wrong." if wrong else "the loop has one iteration, so the numbers still hold."
    phases.append(Phase("naive", "naive fusion", note, program, wrong=wrong, reads_early=early if wrong else ()))

    if not buffers:
        nothing_to_repair("rolling_update", block, given)
        note = f"{block} carries its value from one iteration of {var} to the next; there is nothing to repair."
        phases.append(Phase("repaired", "fused program", note, program))
        return Outcome(program, tuple(phases), () if local == block else (local,))

    # Step 3: the repair function.
    axes: dict[str, int | None] = {b: 0 if program.buffer(b).tagged else None for b in buffers}
    found, solved = solve_any_repair(
        program, "rolling_update", block, loop, local, axes, done.kept, tuple(phases), given
    )
    phases.append(solved)

    # Step 4: tags and repair.
    members = [Member(block, local)]
    if isinstance(found, FamilyRepair):
        program, members = add_companions(program, block, local, var, found)
    references = reference_values(program, local, var, buffers, done.kept, there, found)
    program = apply_repair(program, members, var, above.producers, done.kept, found, references)
    note = f"{block} repairs what it carries before it adds the new tile; "
    note += f"{', '.join(buffers)} {'keep' if len(buffers) > 1 else 'keeps'} every tag."
    if len(members) > 1:
        note += companions_note(block, members, references)
    phases.append(repaired_phase("repaired program", note, program, found))
    locals_ = [m.local for m in members if m.local is not None and m.local != m.whole]
    return Outcome(program, tuple(phases), (*locals_, *(m.whole for m in members[1:] if m.whole is not None)))


def repaired_phase(title: str, note: str, program: Program, repair: Repair | FamilyRepair) -> Phase:
    """The last phase; it says so where the repair is not proved."""
    if not isinstance(repair, Repair) or repair.term.unproved is None:
        return Phase("repaired", title, note, program)
    note += " The repair is not proved"
    note += ", and wrong: so are the numbers." if repair.term.unproved.wrong else "."
    return Phase("repaired", f"{title}, not proved", note, program, wrong=repair.term.unproved.wrong)


def reference_values(
    program: Program,
    local: str,
    var: str,
    buffers: tuple[str, ...],
    kept: tuple[str, ...],
    there: frozenset[str],
    repair: Repair | FamilyRepair,
) -> dict[str, ReductionProgress]:
    """The producers that are read through running estimates of their final values, with the loop's progress.

    A shared map that rolled before this step (its name is in `there`) settles it for the producers that it reads.
    Else a vector repair estimates plain sums (`estimate`).
    """
    found: dict[str, ReductionProgress] = {}
    for buffer in buffers:
        maps = [tree.find_block(program, name)[1] for name in kept if name in there]
        settled = [buffer in b.estimates for b in maps if reads(b, buffer)]
        wanted = isinstance(repair, FamilyRepair) and is_plain_sum(program, buffer)
        if settled[0] if settled else wanted:
            found[buffer] = progress_of(program, local, var)
    return found


def _are_combined(program: Program, wholes: Sequence[str]) -> bool:
    """Whether these are a split's reductions: their values go to the combine step, and the loop ends nothing."""
    made = [tree.find_block(program, whole)[1] for whole in wholes]
    return any(
        b.origin == block.origin and b.role is Role.GLOBAL and b.name not in wholes and reads(b, block.writes)
        for block in made
        for b in tree.blocks(program)
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
        members: the consumer, and the sums that are carried with it.
        references: producers that are read through running estimates.
    """
    starts: dict[str, Const] = {}
    ends = not _are_combined(program, [m.whole for m in members if m.whole is not None])
    for producer in producers:
        program = cache_reduction_results(program, producer)
        _, scan, _ = tree.find_block(program, producer)
        start = start_of(scan)
        assert start is not None
        starts[scan.writes] = start
    for reader in (*kept, *(m.local for m in members if m.local is not None)):
        _, found, _ = tree.find_block(program, reader)
        guarded = guard_reads(found, repair, program, ends=ends)
        program = tree.replace_block(program, reader, with_estimates(guarded, references, own_tag(found, var), program))

    def previous(block: Block, buffer: str, index: tuple[Expr, ...]) -> Expr:
        tag = own_tag(block, var)
        value = Previous(buffer, (tag, *index), starts[buffer])
        if buffer not in references:
            return value
        # Before the first tag nothing was seen, and any value will do: what is carried is 0.
        count = Op("max", (references[buffer].seen_before(tag), Const(1)))
        return estimated(value, references[buffer], count, program.buffer(buffer).dtype)

    def current(block: Block, buffer: str, index: tuple[Expr, ...]) -> Expr:
        tag = own_tag(block, var)
        value = Load(buffer, (tag, *index))
        if buffer not in references:
            return value
        return estimated(value, references[buffer], references[buffer].seen(tag), program.buffer(buffer).dtype)

    def moment(block: Block) -> TagReads:
        tag = own_tag(block, var)
        return TagReads(
            lambda buffer, index: previous(block, buffer, index),
            lambda buffer, index: current(block, buffer, index),
            starts=True,
            is_last=lambda buffer: is_last_tag(program, buffer, tag) if ends else None,
        )

    info = repair_info(program, repair)
    if isinstance(repair, FamilyRepair):
        return apply_family(program, members, repair, var, moment, info)
    whole = members[0].whole
    assert whole is not None
    _, consumer, _ = tree.find_block(program, whole)
    carried = match_reduction(consumer).carried
    h = apply_repair_term(consumer, carried, repair, moment(consumer), program)
    return tree.replace_block(program, whole, with_repair(consumer, h, info))


def companions_note(block: str, members: Sequence[Member], references: Mapping[str, ReductionProgress]) -> str:
    """What is carried with `block`, and about which values, for a reader."""
    carried = [m.whole for m in members[1:] if m.whole is not None]
    text = f" {', '.join(carried)} {'is' if len(carried) == 1 else 'are'} carried with it." if carried else ""
    if len(carried) < len(members) - 1:
        text += " The number of elements so far is known without a sum."
    for buffer in references:
        text += f" What {buffer} will be is estimated from its part so far, so that {block} is taken about a value that"
        text += " moves little; at the last tag the estimate is the value."
    return text


def read_tag(program: Program, name: str, buffers: tuple[str, ...], var: str) -> Program:
    """Block `name` reads scan buffers at its own tag, where it read the last one while it stood behind the loop."""
    _, block, _ = tree.find_block(program, name)
    tag = tag_of(block, var)

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in buffers and program.buffer(e.buffer).tagged and tag is not None:
            return Load(e.buffer, (tag, *e.indices[1:]))
        return e

    body = replace(block.body, value=transform(block.body.value, rule))
    return program if body == block.body else tree.replace_block(program, name, replace(block, body=body))


def dataflow_note(block: str, producers: tuple[str, ...], done: ReorganizedDataflow) -> str:
    """What step 1 found and did, for a reader."""
    text = f"{block} depends on {', '.join(producers)}" if producers else f"{block} depends on no rolling reduction"
    if done.inlined:
        text += f"; {', '.join(done.inlined)} inlined"
    if done.kept:
        text += f"; {', '.join(done.kept)} kept as a block of its own"
    return text + "."
