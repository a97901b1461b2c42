"""rolling_update: a reduction fused under a loop of the reductions it depends on (paper, 4.2, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Expr, Load, Program
from neptune_lab.loop_ir.reduction import match_reduction
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import reads, transform
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import check_reads, fuse_naively, loop_ref, names_under, under
from neptune_lab.loop_schedule.kinds import BlockName, Formula, LoopRef, MapPolicy, Switch
from neptune_lab.loop_schedule.maps import ReorganizedDataflow, find_producers, reorganize_dataflow, roll
from neptune_lab.loop_schedule.outcome import Outcome, Phase
from neptune_lab.loop_schedule.primitives.materialize_tags import run_along, tag_of
from neptune_lab.loop_schedule.primitives.privatize_reduction import privatize
from neptune_lab.loop_schedule.repairing import FusedReduction, Repair, is_repaired
from neptune_lab.loop_schedule.rolling_repair import apply_repair, companions_note, reference_values
from neptune_lab.loop_schedule.row_constants import solve_with_constants
from neptune_lab.loop_schedule.user_repair import nothing_to_repair, user_repair_of
from neptune_lab.loop_schedule.vector_repair import Member, add_companions
from neptune_lab.loop_schedule.vector_solve import FamilyRepair, solve_any_repair


def check_target(program: Program, block: str, loop: str) -> None:
    """Raises ScheduleError unless `block` can be fused under `loop`.

    Formal statement: `block` is a reduction, comes after the block of `loop`, and is not inside `loop`.
    """
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
    """Raises ScheduleError if the loop is bound to the grid.

    Formal statement: the iterations of a rolling loop run in order, since each passes values to the next.
    """
    kind = tree.find_loop(program, *loop_ref(loop))[1].kind
    if kind != "serial":
        raise ScheduleError(
            f"loop {loop!r} is bound to {kind}: its iterations run in parallel and cannot carry a value",
            node=loop_ref(loop)[0],
            help="roll over a loop that is not bound, or use split_k_update, whose splits are parallel",
        )


def fuse_producers(program: Program, block: str, loop: str, producers: tuple[str, ...]) -> Program:
    """Fuses and privatises the producers that are not under the loop yet (Algorithm 1, line 3)."""
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
        _, fused, _ = tree.find_block(program, producer)
        if fused.role is not Role.SCAN and not is_repaired(fused):
            program = privatize_here(program, producer, var)[0]
    return program


def privatize_here(program: Program, name: str, var: str) -> tuple[Program, str]:
    """Privatises `name` along the loop that contains it; the global block goes to the end of that loop's body.

    Returns:
        The program, and the local block's name.
    """
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
        maps: the elementwise stages between: "inline", "keep" as separate blocks, or "auto" (see
            `maps.reorganize_dataflow`).
        repair: h as text, over t, `<buffer>_before` and `<buffer>_now` of each producer; default: it is derived.
        proved: whether to refuse a given h that is not proved. False accepts it, and marks the program if it is wrong;
            a wrong program cannot be compiled to a kernel.

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
    fused = fuse_along(program, block, loop, above.producers, done.kept)
    program, local = fused.program, fused.local
    check_reads(program, sorted(names_under(program, loop) - there), loop)
    buffers = fused.buffers
    phases.append(_naive_phase(block, loop, fused, (*done.kept, local)))
    if not buffers:
        nothing_to_repair("rolling_update", block, given)
        note = f"{block} carries its value from one iteration of {var} to the next; there is nothing to repair."
        phases.append(Phase("repaired", "fused program", note, program))
        return Outcome(program, tuple(phases), () if local == block else (local,))

    # Step 3: the repair function.
    axes: dict[str, int | None] = {b: 0 if program.buffer(b).tagged else None for b in buffers}
    asked = FusedReduction("rolling_update", block, loop, local, axes, done.kept, given)
    program, phases, solved = solve_with_constants(program, buffers, phases, partial(solve_any_repair, asked))

    # Step 4: tags and repair.
    members = [Member(block, local)]
    if isinstance(solved, FamilyRepair):
        program, members = add_companions(program, block, local, var, solved)
    references = reference_values(program, local, var, buffers, done.kept, there, solved)
    program = apply_repair(program, members, var, above.producers, done.kept, solved, references)
    note = f"{block} repairs the value that it carries before it adds the new tile; "
    note += f"{', '.join(buffers)} {'keep' if len(buffers) > 1 else 'keeps'} the value of every tag."
    if len(members) > 1:
        note += companions_note(block, members, references)
    phases.append(repaired_phase("repaired program", note, program, solved))
    locals_ = [m.local for m in members if m.local is not None and m.local != m.whole]
    return Outcome(program, tuple(phases), (*locals_, *(m.whole for m in members[1:] if m.whole is not None)))


@dataclass(frozen=True, slots=True)
class NaivelyFused:
    """A program after naive fusion.

    Args:
        program: the program.
        local: the local block of the fused reduction.
        producers: the reductions that it depends on, under the loop.
        buffers: the buffers that they write, in the same order.
    """

    program: Program
    local: str
    producers: tuple[str, ...]
    buffers: tuple[str, ...]


def fuse_along(
    program: Program, block: str, loop: str, producers: tuple[str, ...], kept: tuple[str, ...]
) -> NaivelyFused:
    """Fuses the producers, the kept maps and `block` under the loop, in this order, and privatises `block` there."""
    _, var = loop_ref(loop)
    program = fuse_producers(program, block, loop, producers)
    for name in kept:
        program = run_along(roll(program, name, loop), name, var)
    program = fuse_naively(program, block, loop)
    program, local = privatize_here(program, block, var)
    buffers = tuple(tree.find_block(program, p)[1].writes for p in producers)
    for reader in (*kept, local):
        program = read_tag(program, reader, buffers, var)
    return NaivelyFused(program, local, producers, buffers)


def _naive_phase(block: str, loop: str, fused: NaivelyFused, readers: tuple[str, ...]) -> Phase:
    """The phase after naive fusion; `readers` are the blocks that may read the producers."""
    program, var = fused.program, loop_ref(loop)[1]
    early = tuple(
        (name, producer)
        for name in readers
        for producer, buffer in zip(fused.producers, fused.buffers, strict=True)
        if reads(tree.find_block(program, name)[1], buffer)
    )
    wrong = bool(fused.buffers) and tree.find_loop(program, *loop_ref(loop))[1].extent > 1
    note = f"{block} now runs inside loop {var}. It reads no reduction that this loop leaves incomplete."
    if fused.buffers:
        note = f"{block} now runs inside loop {var} and reads {', '.join(fused.buffers)} too early: "
        note += "the numbers are wrong." if wrong else "the loop has one iteration, so the numbers are still right."
    return Phase("naive", "naive fusion", note, program, wrong=wrong, reads_early=early if wrong else ())


def repaired_phase(title: str, note: str, program: Program, repair: Repair | FamilyRepair) -> Phase:
    """The last phase; its title and note tell whether the repair is not proved."""
    if not isinstance(repair, Repair) or repair.term.unproved is None:
        return Phase("repaired", title, note, program)
    wrong = repair.term.unproved.wrong
    note += " The repair is wrong, and so are the numbers." if wrong else " The repair is not proved."
    return Phase("repaired", f"{title}, not proved", note, program, wrong=wrong)


def read_tag(program: Program, name: str, buffers: tuple[str, ...], var: str) -> Program:
    """Block `name` with reads of scan buffers at its own tag; outside the loop, it read them at the last tag."""
    _, block, _ = tree.find_block(program, name)
    tag = tag_of(block, var)

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in buffers and program.buffer(e.buffer).tagged and tag is not None:
            return Load(e.buffer, (tag, *e.indices[1:]))
        return e

    body = replace(block.body, value=transform(block.body.value, rule))
    return program if body == block.body else tree.replace_block(program, name, replace(block, body=body))


def dataflow_note(block: str, producers: tuple[str, ...], done: ReorganizedDataflow) -> str:
    """The note of step 1: the producers, and what became of the maps between."""
    text = f"{block} depends on {', '.join(producers)}" if producers else f"{block} depends on no rolling reduction"
    if done.inlined:
        text += f"; {', '.join(done.inlined)} {'is' if len(done.inlined) == 1 else 'are'} inlined"
    if done.kept:
        stay = "stays a separate block" if len(done.kept) == 1 else "stay separate blocks"
        text += f"; {', '.join(done.kept)} {stay}"
    return text + "."
