"""Naive loop fusion: a block moved under a loop without a check of dependences (paper, section 4.2, step 2)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import early_read
from neptune_lab.loop_ir.nodes import Block, Expr, Loop, Program
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.simplify import bounds, simplify
from neptune_lab.loop_ir.walks import bound_loops, loads, substitute
from neptune_lab.loop_schedule.affine import affine_terms
from neptune_lab.loop_schedule.alignment import Alignment, align

# The most loops that the help for an incomplete name lists.
MOST_MEANT = 6


def loop_ref(ref: str) -> tuple[str, str]:
    """The two names in "block.loop".

    Args:
        ref: a loop, such as "s_max.j".

    Returns:
        The block and the loop.

    Raises:
        ScheduleError: the text has another form.
    """
    block, dot, loop = ref.partition(".")
    if not dot or not block or not loop:
        raise ScheduleError(
            f"{ref!r} does not name a loop",
            help='write "block.loop", for example "s_max.j", as Schedule.loops lists them',
        )
    return block, loop


def check_loop_name(program: Program, ref: str) -> None:
    """Raises ScheduleError if the text is not "block.loop"; its help lists the loops of which it is a part."""
    try:
        loop_ref(ref)
    except ScheduleError as error:
        loops = [(b.name, x.var) for b in tree.blocks(program) for x in tree.find_block(program, b.name)[2]]
        meant = [f"{block}.{var}" for block, var in loops if ref in (block, var)]
        if not meant:
            raise
        more = ", …" if len(meant) > MOST_MEANT else ""
        listed = ", ".join(map(repr, meant[:MOST_MEANT]))
        raise ScheduleError(error.reason, help=f'a loop is written "block.loop": {listed}{more}') from None


def under(program: Program, name: str, target: tree.Path) -> bool:
    """Whether the block `name` is inside the loop at `target`."""
    path, _, _ = tree.find_block(program, name)
    return path[: len(target)] == target


def fuse_naively(program: Program, name: str, target_ref: str) -> Program:
    """`name` moved to the end of the target loop's body. Dependences are not checked, as the paper's step 2 asks.

    before ⇒ after:
        for i, j: A[i, j] = …          for i, j:
        for i, j: B[i] += A[i, j]  ⇒       A[i, j] = …
                                           B[i] += A[i, j]

    Raises:
        ScheduleError: the block is a reduction, and no tensor aligns it with the loop.
    """
    target, loop, around = tree.find_loop(program, *loop_ref(target_ref))
    _, block, _ = tree.find_block(program, name)
    aligned = align(program, block, target)
    moved = replace(block, iters=aligned.iters, predicates=aligned.predicates)
    bound = bound_loops(aligned.iters)
    missing = [x.var for x in (*around, loop) if x.extent > 1 and x.var not in bound]
    if missing and block.is_reduction:
        raise cannot_align(name, target_ref, missing[-1], aligned)
    if under(program, name, target):
        return program
    program = tree.remove(program, name)
    target, _, _ = tree.find_loop(program, *loop_ref(target_ref))
    return tree.append_to_loop(program, target, (tree.loop_nest(list(aligned.inner), moved),))


def cannot_align(name: str, target_ref: str, loop: str, aligned: Alignment) -> ScheduleError:
    """The error for a block that no tensor aligns with `loop`; it gives the sizes if an anchor is too small."""
    if aligned.uncovered:
        return ScheduleError(
            f"block {name!r} cannot be fused under {target_ref}: {aligned.uncovered[0]}",
            node=name,
            help="fuse blocks that run over the same range of a dimension, or keep them in separate nests",
        )
    return ScheduleError(
        f"block {name!r} cannot be fused under {target_ref}: no tensor that it shares with the blocks there "
        f"runs along loop {loop!r}",
        node=name,
        help="choose a loop that runs over a dimension that the block and the blocks there both use",
    )


def names_under(program: Program, target_ref: str) -> frozenset[str]:
    """Names of the blocks inside the target loop."""
    _, loop, _ = tree.find_loop(program, *loop_ref(target_ref))
    return frozenset(b.name for b in tree.blocks_under(loop))


def check_reads(program: Program, names: Collection[str], target_ref: str) -> None:
    """Checks that everything that the blocks `names` read was written before, after they were moved under the target.

    Formal statement: every block comes after the writers of what it reads.  If, for a read X[p] of one of `names`, a
    writer X[q] is under the target too, then p is among the elements that it has written by then: in each dimension, p
    and q have the same factors of the target and the loops around it, and p's range inside the target is within q's.
    So the only early reads are those of reductions at their own element, which a repair corrects.

    Raises:
        ScheduleError: a block would read an element before it is written.
    """
    _, loop, around = tree.find_loop(program, *loop_ref(target_ref))
    outer = [x.var for x in (*around, loop)]
    if early := early_read(program):
        reader, buffer, late = early
        moved = late in names
        raise ScheduleError(
            f"block {reader!r} would read {buffer!r} before {late!r} writes it, "
            f"once {repr(late) if moved else 'it'} is under {target_ref}",
            node=reader,
            help=f"choose a loop that comes before {reader!r}"
            if moved
            else f"move {late!r} under {target_ref} first: reverse_compute_at({late!r}, {target_ref!r}) if it is "
            "elementwise (or inline it), rolling_update if it is a reduction",
        )
    inside = names_under(program, target_ref)
    places = {stmt.name: loops for _, stmt, loops in tree.statements(program) if isinstance(stmt, Block)}
    for name in names:
        _, block, _ = tree.find_block(program, name)
        for read in dict.fromkeys(loads(block.body.value)):
            writers = [b for b in tree.blocks(program) if b.writes == read.buffer and b.name != name]
            for writer in writers:
                if writer.name not in inside or read.indices == ():
                    continue
                wanted = _places(read.indices, block, places[name])
                written = _places(writer.body.indices, writer, places[writer.name])
                extents = {x.var: x.extent for x in (*places[name], *places[writer.name])}
                if not all(_within(p, q, outer, extents) for p, q in zip(wanted, written, strict=True)):
                    raise ScheduleError(
                        f"block {name!r} under {target_ref} would read {_shown(read.buffer, wanted)}, but only "
                        f"{_shown(read.buffer, written)} is written by then",
                        node=name,
                        help=f"fuse under a loop in which {read.buffer!r} is complete, or read it at the element that "
                        f"{writer.name!r} is computing",
                    )


def _places(indices: tuple[Expr, ...], block: Block, loops: tuple[Loop, ...]) -> tuple[Expr, ...]:
    """The indices over loops."""
    env = {it.name: it.binding for it in block.iters}
    extents = {loop.var: loop.extent for loop in loops}
    return tuple(simplify(substitute(i, env), extents) for i in indices)


def _shown(buffer: str, indices: tuple[Expr, ...]) -> str:
    return f"{buffer}[{', '.join(expression(i) for i in indices)}]"


def _within(wanted: Expr, written: Expr, outer: list[str], extents: dict[str, int]) -> bool:
    """Whether a read at index `wanted` reads only what a write at index `written` has written (`check_reads`)."""
    if wanted == written:
        return True
    for var in outer:
        a, b = affine_terms(wanted, var), affine_terms(written, var)
        if a is None or b is None or a[0] != b[0]:
            return False
        wanted, written = a[1], b[1]
    p, q = bounds(wanted, extents), bounds(written, extents)
    return p is not None and q is not None and q[0] <= p[0] and p[1] <= q[1]
