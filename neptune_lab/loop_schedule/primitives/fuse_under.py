"""fuse_under: a block moved into a loop of an earlier nest, where everything it reads is complete by then, or into a
loop of a later one that holds all its readers."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Program, Var
from neptune_lab.loop_ir.walks import reads, variables
from neptune_lab.loop_schedule import fusion
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import check_reads, loop_ref, names_under, under
from neptune_lab.loop_schedule.kinds import BlockName, LoopRef
from neptune_lab.loop_schedule.maps import find_producers
from neptune_lab.loop_schedule.outcome import Outcome, plain


@primitive(ours=True)
def fuse_under(program: Program, *, block: BlockName, loop: LoopRef) -> Outcome:
    """Moves a block to the end of a loop's body, aligned along the dimensions it shares with the blocks there.

    A block before the loop that contains all its readers moves to the start of the body.  Unlike
    reverse_compute_at, what it reads may also be written before that nest; unlike rolling_update, it breaks no
    dependence: a reduction that the loop leaves incomplete may not be read.

    before ⇒ after:
        for i: for t: A[i] += a(i, t)          for i: for t: A[i] += a(i, t)
        for i: for t: B[i] += A[i] * b(i, t) ⇒        for t: B[i] += A[i] * b(i, t)

    Args:
        block: the block that moves.
        loop: "block.loop", of another nest.

    Raises:
        ScheduleError: the block would read a reduction that is incomplete there, or one of its loops is on the grid.
    """
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    _, _, loops = tree.find_block(program, block)
    if under(program, block, target):
        raise ScheduleError(
            f"block {block!r} is under loop {loop!r} already",
            node=block,
            help="name a loop of another nest, or leave this step out",
        )
    if ahead(program, block, target):
        return plain(
            "fuse_under", _put_first(program, block, loop), f"{block} is computed inside {loop}, for its readers."
        )
    incomplete = [p for p in find_producers(program, block, loop).producers if under(program, p, target)]
    if incomplete:
        raise ScheduleError(
            f"block {block!r} would read {', '.join(incomplete)} inside loop {loop!r}, which leaves it incomplete",
            node=block,
            help="use rolling_update or split_k_update, which repair such reads, or name an outer loop",
        )
    if any(found.kind != "serial" for found in loops):
        raise ScheduleError(
            f"block {block!r} is in a loop that is bound to the grid", node=block, help="fuse before binding loops"
        )
    there = names_under(program, loop)
    moved = fusion.fuse_naively(program, block, loop)
    check_reads(moved, sorted(names_under(moved, loop) - there), loop)
    return plain("fuse_under", moved, f"{block} is computed inside {loop}.")


def ahead(program: Program, block: str, target: tree.Path) -> bool:
    """Whether the block stands in a nest of its own before the target loop, under which all its readers are.

    Formal statement: moved to the start of the loop, it still comes after all that it reads and before all that read
    it.  Where the loop does not run along one of its dimensions, each iteration computes the same values again, which
    nobody sees, as it starts itself and is no output.
    """
    path, found, loops = tree.find_block(program, block)
    if path[0] >= target[0] or found.writes in program.outputs or any(loop.kind != "serial" for loop in loops):
        return False
    if found.is_reduction and found.init is None:
        return False
    readers = [b.name for b in tree.blocks(program) if b.name != block and reads(b, found.writes)]
    alone = len(tree.blocks_under(program.body[path[0]])) == 1
    return alone and bool(readers) and all(under(program, reader, target) for reader in readers)


def _put_first(program: Program, block: str, loop: str) -> Program:
    """The block at the start of the loop: along the loops around it where it shares them, else along all it has."""
    target, at, around = tree.find_loop(program, *loop_ref(loop))
    _, found, _ = tree.find_block(program, block)
    aligned = fusion.align(program, found, target)
    outer = {x.var for x in (*around, at)}
    inner = dict(aligned.inner)
    iters, kept = [], {}
    for it in aligned.iters:
        if variables(it.binding) & outer:
            kept |= {var: inner[var] for var in inner if var in variables(it.binding)}
            iters.append(it)
        else:
            name = unique(it.name, {*outer, *kept}, "_")
            kept[name] = it.extent
            iters.append(replace(it, binding=Var(name)))
    predicates = tuple(p for p in aligned.predicates if variables(p) <= outer | kept.keys())
    moved = replace(found, iters=tuple(iters), predicates=predicates)
    program = tree.insert_before(program, (*target, 0), (tree.loop_nest(list(kept.items()), moved),))
    return tree.edit(program, tree.find_block(program, block)[0][:1], lambda _: ())
