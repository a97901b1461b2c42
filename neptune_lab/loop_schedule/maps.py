"""Dataflow reorganisation: from a consumer back to the reductions that feed it (paper, 4.2, step 1).

The maps between are inlined into the consumer, or, if other blocks need them too, kept as one block that is *rolled*:
a copy under the rolling loop that reads the tag of its own iteration.  The original stays for consumers that are not
fused yet, so that none reads a stale tag; it is removed when the last one is fused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import readers_of, writer_of
from neptune_lab.loop_ir.names import fresh
from neptune_lab.loop_ir.nodes import Block, Expr, Load, Previous, Program, Stmt, Var, with_buffers
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import loads, map_store, substitute, transform, variables
from neptune_lab.loop_schedule.alignment import align
from neptune_lab.loop_schedule.fusion import fuse_naively, loop_ref, under
from neptune_lab.loop_schedule.primitives.materialize_tags import tag_of


@dataclass(frozen=True, slots=True)
class Producers:
    """What a consumer reads along a rolling loop: reductions (L_r) and the maps between, both in program order."""

    producers: tuple[str, ...]
    maps: tuple[str, ...]


def rolls(program: Program, block: Block, target: tree.Path, loop: str) -> bool:
    """Whether a reduction is incomplete until the rolling loop ends, so that a fused consumer reads it too early."""
    if block.role is Role.SCAN:
        return under(program, block.name, target) and block.iters[0].binding == Var(loop)
    if under(program, block.name, target):
        return any(i.kind == "reduce" and loop in variables(i.binding) for i in block.iters)
    aligned = align(program, block, target)
    return any(i.kind == "reduce" and loop in variables(i.binding) for i in aligned.iters)


def find_producers(program: Program, name: str, target_ref: str) -> Producers:
    """The rolling producers of block `name`, and the maps on the paths to them.

    Args:
        program: the program.
        name: the consumer.
        target_ref: the rolling loop, as "block.loop".

    Returns:
        The producers and maps.

    Raises:
        ScheduleError: the block reads a reduction in the loop whose tags are retired.
    """
    target, _, _ = tree.find_loop(program, *loop_ref(target_ref))
    loop = loop_ref(target_ref)[1]
    producers: dict[str, None] = {}
    maps: dict[str, None] = {}
    known: dict[str, bool] = {}  # many paths may lead to a map

    def visit(block: Block) -> bool:
        """Whether a rolling reduction is at or above one of the block's reads."""
        reaches = False
        for buffer in dict.fromkeys(r.buffer for r in loads(block.body.value)):
            source = writer_of(program, buffer)
            if source is None or source.name == block.name:
                continue
            if source.role in (Role.CURRENT, Role.RETIRE):
                if under(program, source.name, target):
                    raise ScheduleError(
                        f"block {block.name!r} reads {buffer!r}, whose tags are retired: only its previous and current "
                        "value are left",
                        node=block.name,
                        help="apply retire_tags after the last rolling_update",
                    )
                continue
            if reducer_of(source) is not None:
                if not _finished(program, source, target) and rolls(program, source, target, loop):
                    producers[source.name] = None
                    reaches = True
                continue
            if source.name not in known:
                known[source.name] = visit(source)
            if known[source.name]:
                maps[source.name] = None
                reaches = True
        return reaches

    _, block, _ = tree.find_block(program, name)
    visit(block)
    order = {b.name: n for n, b in enumerate(tree.blocks(program))}
    return Producers(tuple(sorted(producers, key=order.__getitem__)), tuple(sorted(maps, key=order.__getitem__)))


def _finished(program: Program, block: Block, target: tree.Path) -> bool:
    """Whether the block is in another kernel, with loops bound to the grid, so that it is complete before this one."""
    return not under(program, block.name, target) and any(
        loop.kind != "serial" for loop in tree.find_block(program, block.name)[2]
    )


def inline(program: Program, source: Block, consumer: str) -> Program:
    """The program with the map `source` inlined into `consumer`; the map is dropped if nothing else reads it.

    before ⇒ after:
        E[i, j] = e(i, j);  … E[a, b] …   ⇒   … e(a, b) …
    """
    names = [index.name if isinstance(index, Var) else "" for index in source.body.indices]
    if "" in names or len(set(names)) != len(names):
        raise ScheduleError(
            f"block {source.name!r} cannot be inlined: it does not store at its own iteration variables",
            node=source.name,
            help='maps="keep" computes it as a stage of its own',
        )

    _, block, _ = tree.find_block(program, consumer)
    # A map that is computed again at every tag takes the consumer's tag.
    tags = {
        it.name: tag
        for it in source.iters
        if it.name not in names and isinstance(it.binding, Var) and (tag := tag_of(block, it.binding.name)) is not None
    }

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer == source.writes:
            return substitute(source.body.value, {**tags, **dict(zip(names, e.indices, strict=True))})
        return e

    program = tree.replace_block(
        program, consumer, replace(block, body=map_store(block.body, lambda e: transform(e, rule)))
    )
    return drop_dead(program, source.name)


def drop_dead(program: Program, name: str) -> Program:
    """The program without map `name` if nothing reads what it writes."""
    _, block, _ = tree.find_block(program, name)
    if block.writes in program.outputs or readers_of(program, block.writes):
        return program
    return tree.drop_unused_buffers(tree.remove(program, name))


def redirect(program: Program, consumer: str, old: str, new: str) -> Program:
    """The program in which `consumer` reads buffer `new` instead of `old`."""

    def rule(e: Expr) -> Expr:
        return Load(new, e.indices) if isinstance(e, Load) and e.buffer == old else e

    _, block, _ = tree.find_block(program, consumer)
    return tree.replace_block(
        program, consumer, replace(block, body=map_store(block.body, lambda e: transform(e, rule)))
    )


@dataclass(frozen=True, slots=True)
class ReorganizedDataflow:
    """The result of dataflow reorganisation.

    Args:
        program: the program.
        kept: the maps that are kept as rolled blocks, by their present names.
        inlined: the maps that are inlined.
        sound: the last program that equals the definition: from the point at which the consumer reads maps that roll
            already, it reads stale tags until it is fused as well.
    """

    program: Program
    kept: tuple[str, ...]
    inlined: tuple[str, ...]
    sound: Program


def reorganize_dataflow(
    program: Program, name: str, target_ref: str, maps: tuple[str, ...], policy: str
) -> ReorganizedDataflow:
    """Inlines or copies each map between `name` and its producers. Copies come just before `name`'s nest, unrolled.

    Args:
        program: the program.
        name: the consumer.
        target_ref: the rolling loop, as "block.loop".
        maps: the maps, in program order.
        policy: "inline" or "keep" for all, or "auto": keeps maps that others read too, and inlines the rest.
    """
    target, _, _ = tree.find_loop(program, *loop_ref(target_ref))
    kept: list[str] = []
    inlined: list[str] = []
    sound: Program | None = None
    for source_name in reversed(maps):
        source = tree.find_block(program, source_name)[1]
        all_readers = {b.name for b in readers_of(program, source.writes)}
        readers = all_readers & {name, *kept}
        if under(program, source_name, target):
            kept.insert(0, source_name)
            continue
        rolled = _rolled_copy(program, source, target)
        if rolled is not None and policy != "inline":
            sound = sound or program
            program, kept_name = _read_rolled(program, source, rolled, readers)
            kept.insert(0, kept_name)
        elif policy == "inline" or (
            policy == "auto" and len(all_readers) <= 1 and source.writes not in program.outputs
        ):
            for reader in readers:
                program = inline(program, source, reader)
                if not tree.has_block(program, source_name):
                    break
            inlined.insert(0, source_name)
        elif readers == all_readers and source.writes not in program.outputs:
            kept.insert(0, source_name)
        else:
            program, copy_name = _copied(program, source_name, readers)
            kept.insert(0, copy_name)
    return ReorganizedDataflow(program, tuple(kept), tuple(inlined), sound or program)


def _rolled_copy(program: Program, source: Block, target: tree.Path) -> Block | None:
    """The rolled copy of a map that an earlier step has put under the loop; None if there is none."""
    blocks = (b for b in tree.blocks(program) if b.origin == source.origin and b.role is Role.ROLLED)
    return next((b for b in blocks if under(program, b.name, target)), None)


def _read_rolled(program: Program, source: Block, rolled: Block, readers: set[str]) -> tuple[Program, str]:
    """The program in which `readers` read the rolled copy, and its name: that of the map if no other block reads it."""
    for reader in readers:
        program = redirect(program, reader, source.writes, rolled.writes)
    program = drop_dead(program, source.name)
    if tree.has_block(program, source.name):
        return program, rolled.name
    return take_name(program, rolled.name, source.name, source.writes)


def _copied(program: Program, name: str, readers: set[str]) -> tuple[Program, str]:
    """The program with a copy of the map `name` after its nest, which `readers` read; and the copy's name."""
    path, source, _ = tree.find_block(program, name)
    copy_name, copy_buffer = fresh(program, f"{name}_rolled"), fresh(program, f"{source.writes}_rolled")

    def renamed(b: Block) -> Block:
        return replace(b, name=copy_name, body=replace(b.body, buffer=copy_buffer), role=Role.ROLLED)

    copy = _only(program.body[path[0]], name, renamed)
    assert copy is not None
    program = with_buffers(program, replace(program.buffer(source.writes), name=copy_buffer))
    program = tree.edit(program, path[:1], lambda stmt: (stmt, copy))
    for reader in readers:
        program = redirect(program, reader, source.writes, copy_buffer)
    return program, copy_name


def _only(stmt: Stmt, name: str, change: Callable[[Block], Block]) -> Stmt | None:
    """The loops around one block of a statement, with the changed block alone in them."""
    if isinstance(stmt, Block):
        return change(stmt) if stmt.name == name else None
    inner = next((changed for s in stmt.body if (changed := _only(s, name, change)) is not None), None)
    return None if inner is None else replace(stmt, body=(inner,), kind="serial")


def take_name(program: Program, block: str, name: str, buffer: str) -> tuple[Program, str]:
    """The program with block `block` and its buffer renamed to `name` and `buffer`, which must be free; and `name`."""
    old = tree.find_block(program, block)[1].writes

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer == old:
            return Load(buffer, e.indices)
        if isinstance(e, Previous) and e.buffer == old:
            return Previous(buffer, e.indices, e.initial)
        return e

    def change(b: Block) -> Block:
        body = map_store(b.body, lambda e: transform(e, rule))
        if body.buffer == old:
            body = replace(body, buffer=buffer)
        return replace(b, name=name if b.name == block else b.name, body=body)

    program = tree.map_blocks(program, change)
    buffers = tuple(replace(b, name=buffer) if b.name == old else b for b in program.buffers if b.name != buffer)
    return replace(program, buffers=buffers), name


def roll(program: Program, name: str, target_ref: str) -> Program:
    """The program with a kept map moved under the rolling loop, marked as rolled."""
    target, _, _ = tree.find_loop(program, *loop_ref(target_ref))
    if under(program, name, target):
        return program
    program = fuse_naively(program, name, target_ref)
    _, block, _ = tree.find_block(program, name)
    return tree.replace_block(program, name, replace(block, role=Role.ROLLED))
