"""The standard primitives: TVM's own schedule, by block and loop name.

TVM checks and applies; these functions translate names, keep loop names readable, and say what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import early_read, incomplete_read, readers_of
from neptune_lab.loop_ir.names import loop_names, unique
from neptune_lab.loop_ir.nodes import Block, Loop, Program, Stmt, Var, bound_loops, loads, substitute, variables
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.start_values import start_before
from neptune_lab.loop_ir.tvm_compat import TvmRefusal, apply
from neptune_lab.loop_schedule import maps
from neptune_lab.loop_schedule.arguments import check_note
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref, restore_unit_loops, under
from neptune_lab.loop_schedule.kinds import (
    THREADS,
    BlockName,
    BufferName,
    Factors,
    GridAxis,
    LoopNames,
    LoopRef,
    NewName,
    NewNames,
    NoteKey,
    NoteValue,
    OwnLoopRef,
    Scope,
    TileSizes,
)
from neptune_lab.loop_schedule.outcome import Outcome, plain

# What usually helps where TVM's own check refuses; its message names no block of ours.
_TVM_HELP = {
    "reorder": "name loops of one nest, each outside or inside the next with no other block between them",
    "fuse": "name loops that follow each other directly, outermost first",
    "compute_at": "name a producer, and a loop around all that reads it",
    "reverse_compute_at": "all that the block reads must be written inside the loop; rolling_update, split_k_update or "
    "fuse_under take what is not",
    "inline": "inline elementwise stages that another block reads",
}


def _tvm(
    program: Program, primitive: str, node: str, action: Callable[[Any], Any], absent: Collection[str] = ()
) -> Program:
    """TVM's primitive applied; `absent` names the blocks that its refusal would know by numbers of its own."""
    try:
        result = tree.rename_loops(restore_unit_loops(apply(program, action)), loop_names(*program.body))
        known = {b: b for b in tree.blocks(program)}  # a block that stays is the same object: caches compare it at once
        result = tree.map_blocks(result, lambda b: known.get(b, b))
    except TvmRefusal as error:
        twice = _written_twice(program)
        if "not a stage pipeline" in error.reason and twice:
            raise ScheduleError(
                f"{primitive} on {node!r}: TVM moves nothing among blocks that share a buffer to write: {twice}",
                node=node.partition(".")[0],
                help=f"{primitive} before retire_tags and decompose_reduction, which add start values; fuse_under can "
                "still move a block behind them",
            ) from error
        reason, listed, numbers = error.reason.partition(" However, there ")
        reason += f" Not there: {', '.join(absent)}." if listed and absent else listed + numbers
        raise ScheduleError(
            f"{primitive} on {node!r}: TVM refuses: {reason}",
            node=node.partition(".")[0],
            help=_TVM_HELP.get(primitive, "print the schedule: names, order and kinds of loops must be as it shows"),
        ) from error
    # TVM moves a producer behind its consumers where these stand before the target loop.
    early = early_read(result)
    if early is not None and early_read(program) is None:
        reader, buffer, writer = early
        raise ScheduleError(
            f"{primitive} on {node!r}: {reader!r} would read {buffer!r} before {writer!r} writes it",
            node=node.partition(".")[0],
            help=f"bring {reader!r} under that loop first, or name a loop that comes before it",
        )
    # TVM takes a reduction for complete inside a loop that it folds along, where an inner loop has one iteration.
    incomplete = incomplete_read(result)
    if incomplete is not None:
        reader, writer, var = incomplete
        raise ScheduleError(
            f"{primitive} on {node!r}: {reader!r} would read {writer!r} inside loop {var!r}, which {writer!r} still "
            "folds along",
            node=node.partition(".")[0],
            help=f"use rolling_update or split_k_update to fuse across {writer!r}",
        )
    return result


def _written_twice(program: Program) -> str:
    """The buffers that several blocks write, each with the blocks."""
    writers: dict[str, list[str]] = {}
    for block in tree.blocks(program):
        writers.setdefault(block.writes, []).append(block.name)
    return "; ".join(f"{name} by {' and '.join(found)}" for name, found in writers.items() if len(found) > 1)


def _free(program: Program, name: str, block: str) -> None:
    """TVM names a copy after buffer and scope, and two copies of one name would be taken for each other."""
    if name in {b.name for b in program.buffers} | {b.name for b in tree.blocks(program)}:
        raise ScheduleError(
            f"there is a block or buffer {name!r} already, which the copy for {block!r} would be called",
            node=block,
            help="make the copy in another scope",
        )


def _not_tagged(program: Program, buffer: str, block: str) -> None:
    if program.buffer(buffer).tagged:
        raise ScheduleError(
            f"block {block!r}: {buffer!r} keeps one value per tag, and a copy would not",
            node=block,
            help="retire_tags first, which leaves a previous and a current value",
        )


def _at(schedule: Any, program: Program, ref: str) -> Any:
    """TVM's handle of "block.loop"."""
    block, var = loop_ref(ref)
    _, _, around = tree.find_loop(program, block, var)
    return schedule.get_loops(schedule.get_sblock(block))[len(around)]


def rename_loop(program: Program, path: tree.Path, new: str) -> Program:
    """The loop at `path` under another name."""

    def visit(stmt: Stmt, old: str) -> Stmt:
        if isinstance(stmt, Block):
            env = {old: Var(new)}
            return replace(
                stmt,
                iters=tuple(replace(i, binding=substitute(i.binding, env)) for i in stmt.iters),
                predicates=tuple(substitute(p, env) for p in stmt.predicates),
            )
        return replace(stmt, body=tuple(visit(s, old) for s in stmt.body))

    def change(loop: Loop) -> Loop:
        return replace(loop, var=new, body=tuple(visit(s, loop.var) for s in loop.body))

    return tree.map_loops(program, path, change)


def _names_beside(program: Program, block: str, loop: Loop) -> set[str]:
    """Names that a loop in the place of `loop` cannot have: of the loops around it and inside it."""
    around = {x.var for x in tree.find_block(program, block)[2]}
    return around | loop_names(loop)


@primitive(makes="several", made='The new loops, outermost first, as "block.loop".')
def split(program: Program, *, loop: LoopRef, factors: Factors, names: NewNames | None = None) -> Outcome:
    """`for j` becomes `for j0: for j1: …` with these extents, at most one of them None (worked out).

    before ⇒ after, with factors (None, 64):
        for j in range(256):              for j0, j1 in grid(4, 64):
            X[j] = e(j)             ⇒         X[j0 * 64 + j1] = e(j0 * 64 + j1)

    Sizes that do not divide get a guard.

    Args:
        loop: "block.loop".
        factors: extents of the new loops, outermost first; at most one is None, which is worked out.
        names: of the new loops; default: j0, j1, …

    Raises:
        ScheduleError: the factors do not cover the loop, or a name is taken.
    """
    block, var = loop_ref(loop)
    path, found, _ = tree.find_loop(program, block, var)
    if len(factors) < 2 or sum(f is None for f in factors) > 1 or any(f is not None and f < 1 for f in factors):
        raise ScheduleError(
            f"factors={factors} cannot split loop {loop!r} of extent {found.extent}",
            node=block,
            help="give two or more positive extents, at most one of them None, for example (None, 64)",
        )
    fixed = 1
    for f in factors:
        fixed *= f or 1
    if None not in factors and fixed < found.extent:
        raise ScheduleError(
            f"factors={factors} cover {fixed} of the {found.extent} iterations of loop {loop!r}",
            node=block,
            help="make one factor None",
        )
    if names is not None and len(names) != len(factors):
        raise ScheduleError(
            f"names={names}: {len(names)} names for {len(factors)} factors of loop {loop!r}",
            node=block,
            help="give one name a factor, or leave names out",
        )
    taken = _names_beside(program, block, found) - {var}
    wanted = names or []
    if len(set(wanted)) != len(wanted) or taken & set(wanted):
        raise ScheduleError(
            f"loop names {wanted} are not free around block {block!r}", node=block, help="pass names=[…] that are new"
        )
    for n in range(len(wanted), len(factors)):
        wanted = [*wanted, unique(f"{var}{n}", {*taken, *wanted}, "_")]
    depth = len(path) - 1
    result = _tvm(program, "split", loop, lambda s: s.split(_at(s, program, loop), factors))
    # By way of names that nobody has: TVM's own may be among those that are wanted, in another order.
    for spelling in ("{}@", "{}"):
        for n, name in enumerate(wanted):
            made = tree.find_block(result, block)
            result = rename_loop(result, made[0][: depth + n + 1], spelling.format(name))
    refs = tuple(f"{block}.{name}" for name in wanted)
    extents = [tree.find_loop(result, block, n)[1].extent for n in wanted]
    return plain(
        "split", result, f"{var} is now {' × '.join(f'{n} ({e})' for n, e in zip(wanted, extents, strict=True))}.", refs
    )


@primitive(makes="several", made='The loops in their new order, as "block.loop".')
def reorder(program: Program, *, block: BlockName, loops: LoopNames) -> Outcome:
    """The named loops around `block` in the order given.

    before ⇒ after, with loops ("j", "i"):
        for i, j: X[i, j] = e    ⇒    for j, i: X[i, j] = e

    Args:
        block: a block inside the loops.
        loops: two or more of the loops around it, named without the block.

    Raises:
        ScheduleError: the loops are not of one nest, or the block is a reduction that would fold in another order.
    """
    if len(loops) < 2 or len(set(loops)) < len(loops):
        raise ScheduleError(
            f"reorder on {block!r} takes two loops or more, each once, got {loops}",
            node=block,
            help=f"the loops around {block}: {', '.join(x.var for x in tree.find_block(program, block)[2])}",
        )
    refs = [f"{block}.{var}" for var in loops]
    result = _tvm(program, "reorder", block, lambda s: s.reorder(*(_at(s, program, r) for r in refs)))
    return plain("reorder", result, f"loops of {block} in the order {', '.join(loops)}.", tuple(refs))


@primitive(makes="one", made='The new loop, as "block.loop".')
def fuse(program: Program, *, block: BlockName, loops: LoopNames, name: NewName | None = None) -> Outcome:
    """Nested loops made one, called `name` (default: their names joined).

    before ⇒ after, for i of 4 and j of 8:
        for i, j in grid(4, 8): X[i, j] = e    ⇒    for ij in range(32): X[ij // 8, ij % 8] = e

    Args:
        block: a block inside the loops.
        loops: two or more loops that follow each other directly, outermost first, named without the block.
        name: of the new loop; default: their names joined.

    Raises:
        ScheduleError: the loops do not follow each other, or the name is taken.
    """
    if len(loops) < 2:
        raise ScheduleError(
            f"fuse on {block!r} takes two loops or more, got {loops}", node=block, help=_TVM_HELP["fuse"]
        )
    path, found, _ = tree.find_loop(program, block, loops[0])
    taken = _names_beside(program, block, found) - set(loops)
    if name in taken:
        raise ScheduleError(
            f"loop name {name!r} is not free around block {block!r}", node=block, help="pass a name= that is new"
        )
    new = name or unique("".join(loops), taken, "_")
    refs = [f"{block}.{var}" for var in loops]
    result = _tvm(program, "fuse", block, lambda s: s.fuse(*(_at(s, program, r) for r in refs)))
    result = rename_loop(result, path, new)
    return plain("fuse", result, f"{', '.join(loops)} fused to {new}.", (f"{block}.{new}",))


@primitive(makes="several", made='The outer loops, then the inner ones, as "block.loop".')
def tile(program: Program, *, block: BlockName, tiles: TileSizes) -> Outcome:
    """Each loop split by its tile size, all outer loops before all inner ones: i, j ⇒ i0, j0, i1, j1.

    before ⇒ after, with i=16, j=16:
        for i, j in grid(64, 64): X[i, j] = e    ⇒    for i0, j0, i1, j1 in grid(4, 4, 16, 16): X[…] = e

    Args:
        block: a block inside the loops.
        tiles: the size of a tile along each loop, in elements: `sch.tile("qk", i=128, j=64)`.

    Raises:
        ScheduleError: there is no such loop, or the loops cannot be reordered.
    """
    for var in tiles:
        tree.find_loop(program, block, var)  # before any is split, so that a refusal names the loops there are
    try:
        result, names = _tiled_at_once(program, block, tiles)
    except ScheduleError:  # the single steps say which of them is refused
        result, names = _tiled_step_by_step(program, block, tiles)
    sizes = " × ".join(f"{var} {size}" for var, size in tiles.items())
    return plain("tile", result, f"tiles of {sizes}.", tuple(f"{block}.{v}" for v in names))


def _tiled_step_by_step(program: Program, block: str, tiles: dict[str, int]) -> tuple[Program, list[str]]:
    """The loops split one by one, then reordered; and the names of the loops that were made, in order."""
    outer, inner = [], []
    for var, size in tiles.items():
        made = split(program, loop=f"{block}.{var}", factors=[None, size])
        program = made.program
        for names, ref in zip((outer, inner), made.made, strict=True):
            names.append(loop_ref(ref)[1])
    return reorder(program, block=block, loops=[*outer, *inner]).program, [*outer, *inner]


def _tiled_at_once(program: Program, block: str, tiles: dict[str, int]) -> tuple[Program, list[str]]:
    """As `_tiled_step_by_step`, with one TVM schedule: to make one of a program and to read it back takes longer than
    a primitive."""
    _, _, around = tree.find_block(program, block)
    outer, inner, gone = [], [], set()
    for var in tiles:
        gone.add(var)
        beside = _names_beside(program, block, tree.find_loop(program, block, var)[1])
        for n, names in enumerate((outer, inner)):
            names.append(unique(f"{var}{n}", {*outer, *inner, *(beside - gone)}, "_"))
    if any(size < 1 for size in tiles.values()) or any(x.var.startswith("ax") for x in around):
        raise ScheduleError("left to the single steps", node=block)

    def action(schedule: Any) -> None:
        loops = {x.var: rv for x, rv in zip(around, schedule.get_loops(schedule.get_sblock(block)), strict=True)}
        halves = [schedule.split(loops[var], [None, size]) for var, size in tiles.items()]
        schedule.reorder(*(h[0] for h in halves), *(h[1] for h in halves))

    result = _tvm(program, "tile", block, action)
    wanted = iter([*outer, *inner])
    final = [name for x in around for name in ((next(wanted), next(wanted)) if x.var in tiles else (x.var,))]
    for spelling in ("{}@", "{}"):
        for depth, name in enumerate(final):
            path, _, now = tree.find_block(result, block)
            if now[depth].var != name:
                result = rename_loop(result, path[: depth + 1], spelling.format(name))
    return result, [*outer, *inner]


@primitive(same_values=True)
def bind(program: Program, *, loop: LoopRef, thread: GridAxis) -> Outcome:
    """The loop's iterations become program instances along a grid axis.

    before ⇒ after:
        for i in range(4): X[i] = e    ⇒    for i in range(4):  # blockIdx.x
                                                X[i] = e

    Args:
        loop: "block.loop".
        thread: "blockIdx.x", "blockIdx.y" or "blockIdx.z".

    Raises:
        ScheduleError: a block carries a value along the loop, or the nest has a loop on that axis already.
    """
    block, var = loop_ref(loop)
    path, found, around = tree.find_loop(program, block, var)
    # Formal statement: the loop carries nothing, i.e. no reduction folds along it, no scan walks its tags along it, and
    # no current value becomes the previous one along it.
    # TVM's own check asks for more (an affine binding for every block), which tails of privatised reductions fail.
    for inner in tree.blocks_under(found):
        carried = [i for i in inner.iters if i.kind == "reduce"] + (
            list(inner.iters[:1]) if inner.role == "scan" else []
        )
        handed_on = inner.role == "retire" and not any(var in variables(i.binding) for i in inner.iters)
        if handed_on or any(var in variables(i.binding) for i in carried):
            raise ScheduleError(
                f"loop {loop!r} cannot run in parallel: {inner.name!r} carries a value from one iteration to the next",
                node=inner.name,
                help="bind an outer loop, or make the reduction private along this one with split_k_update",
            )
    taken = [x.var for x in (*around, found) if x.kind == thread] + [
        x.var for x in _loops_in(found) if x.kind == thread
    ]
    if taken:
        raise ScheduleError(
            f"{thread} is taken by loop {taken[0]!r} of the same nest",
            node=block,
            help=f"bind to another of {', '.join(THREADS)}, or fuse the two loops",
        )
    result = tree.map_loops(program, path, lambda x: replace(x, kind=thread))
    return plain("bind", result, f"{var} runs along {thread}.")


def _loops_in(loop: Loop) -> list[Loop]:
    inner = [s for s in loop.body if isinstance(s, Loop)]
    return inner + [x for s in inner for x in _loops_in(s)]


@primitive()
def compute_at(program: Program, *, block: BlockName, loop: LoopRef) -> Outcome:
    """A producer moved under a loop of its consumer, computing just what is needed there.

    before ⇒ after:
        for i, j: A[i, j] = a                for i:
        for i, j: B[i, j] = b(A[i, j])  ⇒        for j: A[i, j] = a
                                                 for j: B[i, j] = b(A[i, j])

    Args:
        block: the producer.
        loop: "block.loop", around all that reads it.

    Raises:
        ScheduleError: a reader is outside the loop, or would read too early.
    """
    _, found, _ = tree.find_block(program, block)
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    absent = [b.name for b in readers_of(program, found.writes) if not under(program, b.name, target)]
    result = _tvm(
        program, "compute_at", block, lambda s: s.compute_at(s.get_sblock(block), _at(s, program, loop)), absent
    )
    return plain("compute_at", result, f"{block} is computed inside {loop}.")


@primitive()
def reverse_compute_at(program: Program, *, block: BlockName, loop: LoopRef) -> Outcome:
    """A consumer moved under a loop of its producers.

    before ⇒ after:
        for i, j: A[i, j] = a                for i, j:
        for i, j: B[i, j] = b(A[i, j])  ⇒        A[i, j] = a
                                                 B[i, j] = b(A[i, j])

    All that the consumer reads is complete there: a reduction that the loop still folds along is refused.

    Args:
        block: the consumer.
        loop: "block.loop", around all that it reads.

    Raises:
        ScheduleError: what it reads is written outside the loop, or is not complete inside.
    """
    _, found, _ = tree.find_block(program, block)
    target, _, _ = tree.find_loop(program, *loop_ref(loop))
    wanted = {read.buffer for read in loads(found.body.value)}
    writers = [b.name for b in tree.blocks(program) if b.writes in wanted and b.name != block]
    absent = [name for name in writers if not under(program, name, target)]
    result = _tvm(
        program,
        "reverse_compute_at",
        block,
        lambda s: s.reverse_compute_at(s.get_sblock(block), _at(s, program, loop)),
        absent,
    )
    return plain("reverse_compute_at", result, f"{block} is computed inside {loop}.")


@primitive()
def inline(program: Program, *, block: BlockName) -> Outcome:
    """An elementwise block written into its consumers.

    before ⇒ after:
        for i, j: E[i, j] = exp(A[i, j])     for i, j: S[i] += exp(A[i, j])
        for i, j: S[i] += E[i, j]        ⇒

    Args:
        block: the elementwise block.

    Raises:
        ScheduleError: the block is a reduction, writes an output, or carries a value between iterations.
    """
    _, found, _ = tree.find_block(program, block)
    if found.role in ("scan", "current", "retire", "initial"):
        raise ScheduleError(
            f"block {block!r} carries a value from one iteration to the next: it cannot be inlined",
            node=block,
            help=_TVM_HELP["inline"],
        )
    if reducer_of(found) is not None or found.writes in program.outputs:
        what = "is a reduction" if reducer_of(found) is not None else f"writes the output {found.writes!r}"
        raise ScheduleError(f"block {block!r} {what}: it cannot be inlined", node=block, help=_TVM_HELP["inline"])
    if reducer_of(found) is None and found.writes not in program.outputs and _alone(program, block):
        result = program
        for reader in readers_of(program, found.writes):
            result = maps.inline(result, found, reader.name)
    else:
        result = _tvm(program, "inline", block, lambda s: s.compute_inline(s.get_sblock(block)))
    return plain("inline", result, f"{block} is written into its consumers.")


def _alone(program: Program, block: str) -> bool:
    """Whether the block has a nest of its own, so that what it reads is complete there and stays so."""
    path, _, _ = tree.find_block(program, block)
    return len(tree.blocks_under(program.body[path[0]])) == 1


@primitive(makes="one", made="The block that makes the copy.")
def cache_read(program: Program, *, block: BlockName, buffer: BufferName, scope: Scope = "shared") -> Outcome:
    """`block`, and every later reader of `buffer`, reads a copy in `scope`, made by a new block.

    before ⇒ after, with scope "shared":
        for i, j: B[i] += A[i, j]    ⇒    for i, j: A_shared[i, j] = A[i, j]
                                          for i, j: B[i] += A_shared[i, j]

    Args:
        block: the first reader of the copy.
        buffer: what is copied.
        scope: memory of the copy, "local", "shared" or "global".

    Raises:
        ScheduleError: the block does not read the buffer, or there is such a copy already.
    """
    _, reader, _ = tree.find_block(program, block)
    reads = list(dict.fromkeys(r.buffer for r in loads(reader.body.value) if r.buffer != reader.writes))
    if buffer not in reads:
        raise ScheduleError(
            f"block {block!r} does not read {buffer!r}",
            node=block,
            help=tree.nearest(buffer, reads, "buffers it reads"),
        )
    _not_tagged(program, buffer, block)
    _free(program, f"{buffer}_{scope}", block)
    before = {b.name for b in tree.blocks(program)}
    result = _tvm(program, "cache_read", block, lambda s: s.cache_read(s.get_sblock(block), reads.index(buffer), scope))
    result = _adopt(result, before, reader.origin, "cache")
    made = tuple(b.name for b in tree.blocks(result) if b.name not in before)
    copy = tree.find_block(result, made[0])[1].writes
    readers = ", ".join(b.name for b in readers_of(result, copy))
    note = f"{buffer} is copied to {scope} memory; the copy is read by {readers}."
    return plain("cache_read", result, note, made)


@primitive(makes="one", made="The block that stores the copy.")
def cache_write(program: Program, *, block: BlockName, scope: Scope = "local") -> Outcome:
    """`block` writes to a copy in `scope`, which a new block stores to the buffer.

    before ⇒ after, with scope "local":
        for i, j: B[i] += A[i, j]    ⇒    for i, j: B_local[i] += A[i, j]
                                          for i: B[i] = B_local[i]

    Args:
        block: the block that writes.
        scope: memory of the copy, "local", "shared" or "global".

    Raises:
        ScheduleError: the buffer keeps one value per tag, or there is such a copy already.
    """
    _, writer, _ = tree.find_block(program, block)
    _not_tagged(program, writer.writes, block)
    _free(program, f"{writer.writes}_{scope}", block)
    before = {b.name for b in tree.blocks(program)}
    result = _tvm(program, "cache_write", block, lambda s: s.cache_write(s.get_sblock(block), 0, scope))
    result = _adopt(result, before, writer.origin, "cache")
    made = tuple(b.name for b in tree.blocks(result) if b.name not in before)
    return plain("cache_write", result, f"{block} writes a copy in {scope} memory first.", made)


def _adopt(program: Program, known: set[str], origin: str, role: str) -> Program:
    """Blocks that TVM made get an origin, so that every line still leads back to the definition."""
    return tree.map_blocks(program, lambda b: b if b.name in known else replace(b, origin=origin, role=role))


@primitive(same_values=True)
def set_scope(program: Program, *, block: BlockName, scope: Scope = "shared") -> Outcome:
    """The buffer that `block` writes lives in `scope`: "shared" and "local" are on chip.

    Triton places on-chip tiles by itself, so the two mean the same there. A buffer left in global memory is written
    there only if another kernel, or the caller, reads it.

    Args:
        block: the block that writes the buffer.
        scope: "local", "shared" or "global".

    Raises:
        ScheduleError: the buffer is an output, which is in global memory.
    """
    _, found, _ = tree.find_block(program, block)
    if found.writes in program.params and scope != "global":
        raise ScheduleError(
            f"block {block!r} writes {found.writes!r}, an output, which is in global memory",
            node=block,
            help=f"cache_write({block!r}, {scope!r}) keeps a copy there and stores it at the end",
        )
    result = replace(
        program, buffers=tuple(replace(b, scope=scope) if b.name == found.writes else b for b in program.buffers)
    )
    return plain("set_scope", result, f"{found.writes} is kept in {scope} memory.")


@primitive(makes="one", made="The block that writes the start value.")
def decompose_reduction(program: Program, *, block: BlockName, loop: OwnLoopRef) -> Outcome:
    """The start value of a reduction is written before `loop`, by a block of its own.

    before ⇒ after, at loop j:
        for i, j: X[i] = X[i] (f) e    ⇒    for i:
                                                X[i] = initial
                                                for j: X[i] = X[i] (f) e

    Args:
        block: a reduction that still starts itself.
        loop: "block.loop", the outermost loop that the block folds along, or one outside it.

    Raises:
        ScheduleError: the block has no start value, or folds along a loop outside `loop`.
    """
    _, found, loops = tree.find_block(program, block)
    named, var = loop_ref(loop)
    if named != block:
        raise ScheduleError(
            f"loop {loop!r} is named by another block than {block!r}",
            node=block,
            help=f"name the loop '{block}.{var}'; the loops around {block}: {', '.join(x.var for x in loops)}",
        )
    tree.find_loop(program, block, var)
    if not found.is_reduction or found.init is None:
        raise ScheduleError(
            f"block {block!r} has no start value to take out: "
            + ("it has been taken out already" if found.is_reduction else "it is not a reduction"),
            node=block,
            help="name a sum, max or other reduction that still starts itself",
        )
    # Formal statement: the start value is written once, i.e. no loop outside `loop` folds.
    depth = tree.depth_of(loops, var)
    folded = bound_loops(it for it in found.iters if it.kind == "reduce")
    outside = [x.var for x in loops[:depth] if x.var in folded]
    if outside:
        raise ScheduleError(
            f"block {block!r} folds along {outside[0]!r}, which is outside {var!r}: its start value would be written "
            "again in every iteration",
            node=block,
            help=f"decompose_reduction({block!r}, '{block}.{outside[0]}')",
        )
    result = start_before(program, found, depth)
    made = tuple(b.name for b in tree.blocks(result) if not tree.has_block(program, b.name))
    return plain("decompose_reduction", result, f"{found.writes} gets its start value before {var}.", made)


@primitive(same_values=True)
def annotate(program: Program, *, loop: LoopRef, key: NoteKey, value: NoteValue = 1) -> Outcome:
    """A note on a loop, which changes no number.

    "num_warps" and "num_stages" reach the launch; they belong to the outermost loop of a nest or to one on the grid,
    and are refused elsewhere when the program becomes tiles. "sequential" keeps a loop from being a dimension of a
    tile. "note" is words for readers.

    Args:
        loop: "block.loop".
        key: "num_warps", "num_stages", "sequential" or "note".
        value: an int, or the words of a note.

    Raises:
        ScheduleError: the value is none that the key can have.
    """
    check_note(key, value, f"annotate on {loop!r}")
    path, found, _ = tree.find_loop(program, *loop_ref(loop))
    notes = (*((k, v) for k, v in found.annotations if k != key), (key, value))
    result = tree.map_loops(program, path, lambda x: replace(x, annotations=notes))
    return plain("annotate", result, f"{key} = {value} on {loop}.")
