"""Dataflow reorganisation: from a consumer back to the reductions that feed it (paper, 4.2, step 1).

The maps on the way are either inlined into the consumer, or, where others need them too, kept as one block that is
*rolled*: a copy under the rolling loop that reads the tag of its own iteration.  The original stays for consumers
that are not fused yet, so nobody reads a stale tag; the last one to be fused takes it away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import readers_of, writer_of
from neptune_lab.loop_ir.names import fresh
from neptune_lab.loop_ir.nodes import (
    Block,
    Expr,
    Load,
    Previous,
    Program,
    Stmt,
    Var,
    loads,
    map_store,
    substitute,
    transform,
    variables,
    with_buffers,
)
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.alignment import align
from neptune_lab.loop_schedule.fusion import fuse_naively, loop_ref, under
from neptune_lab.loop_schedule.primitives.materialize_tags import tag_of


@dataclass(frozen=True, slots=True)
class Producers:
    """What feeds a consumer along a rolling loop: reductions (L_r) and the maps between, producers first."""

    producers: tuple[str, ...]
    maps: tuple[str, ...]


def rolls(program: Program, block: Block, target: tree.Path, loop: str) -> bool:
    """Whether a reduction is incomplete until the rolling loop ends (fused, it would be read too early)."""
    if block.role is Role.SCAN:
        return under(program, block.name, target) and block.iters[0].binding == Var(loop)
    if under(program, block.name, target):
        return any(i.kind == "reduce" and loop in variables(i.binding) for i in block.iters)
    aligned = align(program, block, target)
    return any(i.kind == "reduce" and loop in variables(i.binding) for i in aligned.iters)


def find_producers(program: Program, name: str, target_ref: str) -> Producers:
    """The rolling producers of block `name` and the maps on the paths to them."""
    target, _, _ = tree.find_loop(program, *loop_ref(target_ref))
    loop = loop_ref(target_ref)[1]
    producers: dict[str, None] = {}
    maps: dict[str, None] = {}

    def visit(block: Block) -> bool:
        """Whether a rolling reduction is at or above one of the block's reads."""
        found = False
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
                    found = True
            elif visit(source):
                maps[source.name] = None
                found = True
        return found

    _, block, _ = tree.find_block(program, name)
    visit(block)
    order = {b.name: n for n, b in enumerate(tree.blocks(program))}
    return Producers(tuple(sorted(producers, key=order.__getitem__)), tuple(sorted(maps, key=order.__getitem__)))


def _finished(program: Program, block: Block, target: tree.Path) -> bool:
    """Whether the block belongs to another kernel, with loops bound to the grid: it is complete before this one."""
    return not under(program, block.name, target) and any(
        loop.kind != "serial" for loop in tree.find_block(program, block.name)[2]
    )


def inline(program: Program, source: Block, consumer: str) -> Program:
    """The map `source` written into the reads of `consumer`; dropped where nothing else reads it.

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
    # A map that is computed again at every tag reads the consumer's.
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
    """`consumer` reads buffer `new` wherever it read `old`."""

    def rule(e: Expr) -> Expr:
        return Load(new, e.indices) if isinstance(e, Load) and e.buffer == old else e

    _, block, _ = tree.find_block(program, consumer)
    return tree.replace_block(
        program, consumer, replace(block, body=map_store(block.body, lambda e: transform(e, rule)))
    )


@dataclass(frozen=True, slots=True)
class ReorganizedDataflow:
    """After reorganisation: the maps kept as rolled blocks (by the names they have now), and those inlined.

    `sound` is the program before the consumer was pointed at maps that roll already, from where on it reads stale
    tags until it is fused as well: the last program that equals the definition.
    """

    program: Program
    kept: tuple[str, ...]
    inlined: tuple[str, ...]
    sound: Program


def reorganize_dataflow(
    program: Program, name: str, target_ref: str, maps: tuple[str, ...], policy: str
) -> ReorganizedDataflow:
    """Inlines or copies each map between `name` and its producers; copies stand just before `name`'s nest, unrolled.

    `policy`: "auto" keeps what others read too and inlines the rest; "inline" and "keep" do one for all.
    """
    target, _, _ = tree.find_loop(program, *loop_ref(target_ref))
    kept: list[str] = []
    inlined: list[str] = []
    sound: Program | None = None
    for source_name in reversed(maps):
        source = tree.find_block(program, source_name)[1]
        consumers = [name, *kept]
        readers = {b.name for b in readers_of(program, source.writes)}
        if under(program, source_name, target):
            kept.insert(0, source_name)
            continue
        twin = next(
            (
                b
                for b in tree.blocks(program)
                if b.origin == source.origin and b.role is Role.ROLLED and under(program, b.name, target)
            ),
            None,
        )
        if twin is not None and policy != "inline":
            sound = sound or program
            for reader in readers & set(consumers):
                program = redirect(program, reader, source.writes, twin.writes)
            program = drop_dead(program, source_name)
            if not tree.has_block(program, source_name):
                program, twin_name = take_name(program, twin.name, source_name, source.writes)
                kept.insert(0, twin_name)
            else:
                kept.insert(0, twin.name)
            continue
        shared = len(readers) > 1 or source.writes in program.outputs
        if policy == "inline" or (policy == "auto" and not shared):
            for reader in readers & set(consumers):
                program = inline(program, source, reader)
                if not tree.has_block(program, source_name):
                    break
            inlined.insert(0, source_name)
            continue
        if readers <= set(consumers) and source.writes not in program.outputs:
            kept.insert(0, source_name)
            continue
        copy_name, copy_buffer = fresh(program, f"{source_name}_rolled"), fresh(program, f"{source.writes}_rolled")
        path, _, _ = tree.find_block(program, source_name)

        def renamed(b: Block, copy_name: str = copy_name, copy_buffer: str = copy_buffer) -> Block:
            return replace(b, name=copy_name, body=replace(b.body, buffer=copy_buffer), role=Role.ROLLED)

        nest = program.body[path[0]]
        copy = _only(nest, source_name, renamed)
        assert copy is not None
        program = with_buffers(program, replace(program.buffer(source.writes), name=copy_buffer))
        program = tree.edit(program, path[:1], lambda stmt, copy=copy: (stmt, copy))
        for reader in readers & set(consumers):
            program = redirect(program, reader, source.writes, copy_buffer)
        kept.insert(0, copy_name)
    return ReorganizedDataflow(program, tuple(kept), tuple(inlined), sound or program)


def _only(stmt: Stmt, name: str, change: Callable[[Block], Block]) -> Stmt | None:
    """The nest of one block out of a statement, its loops unshared."""
    if isinstance(stmt, Block):
        return change(stmt) if stmt.name == name else None
    for inner in stmt.body:
        found = _only(inner, name, change)
        if found is not None:
            return replace(stmt, body=(found,), kind="serial")
    return None


def take_name(program: Program, block: str, name: str, buffer: str) -> tuple[Program, str]:
    """Block `block` and its buffer renamed to `name` and `buffer`, which are free again."""
    _, found, _ = tree.find_block(program, block)
    old = found.writes

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
    """A kept map moved under the rolling loop, marked as rolled."""
    target, _, _ = tree.find_loop(program, *loop_ref(target_ref))
    if under(program, name, target):
        return program
    program = fuse_naively(program, name, target_ref)
    _, block, _ = tree.find_block(program, name)
    return tree.replace_block(program, name, replace(block, role=Role.ROLLED))
