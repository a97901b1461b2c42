"""Finds and edits places in a program's tree of loops and blocks.

A *path* is the tuple of child positions from the body of the program to a statement.  All edits return new
programs; statements off the path are shared with the old one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from operator import is_
from typing import TypeAlias

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.names import loop_names, unique
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Iter, Loop, Program, Stmt, Var
from neptune_lab.loop_ir.walks import loads, substitute, variables
from neptune_lab.strict.console import shown

Path = tuple[int, ...]


def blocks(program: Program) -> tuple[Block, ...]:
    """Every block, in program order."""
    return _known(program).blocks


def stores(program: Program) -> int:
    """How many stores a run makes if all predicates hold: the cost of running or recording it."""

    def count(stmt: Stmt) -> int:
        return 1 if isinstance(stmt, Block) else stmt.extent * sum(count(s) for s in stmt.body)

    return sum(count(stmt) for stmt in program.body)


Place: TypeAlias = tuple[Path, Stmt, tuple[Loop, ...]]


@dataclass(frozen=True)
class _Known:
    """A program's statements, its blocks in order, and the first block of each name."""

    body: tuple[Stmt, ...]
    statements: tuple[Place, ...]
    blocks: tuple[Block, ...]
    by_name: Mapping[str, tuple[Path, Block, tuple[Loop, ...]]]


# Keyed by identity of the body, since hashing a program walks all of it; programs that differ in their buffers share
# it. An entry keeps its body alive, so that its id stays unique.
_bodies: dict[int, _Known] = {}
_MOST_BODIES = 64


def _known(program: Program) -> _Known:
    body = program.body
    known = _bodies.get(id(body))
    if known is None or known.body is not body:
        if len(_bodies) >= _MOST_BODIES:
            _bodies.clear()
        places = tuple(_walked(body))
        found = [(path, stmt, loops) for path, stmt, loops in places if isinstance(stmt, Block)]
        by_name = {block.name: (path, block, loops) for path, block, loops in reversed(found)}
        known = _bodies[id(body)] = _Known(body, places, tuple([block for _, block, _ in found]), by_name)
    return known


def statements(program: Program) -> tuple[Place, ...]:
    """Every statement with its path and the loops around it, outermost first, in program order."""
    return _known(program).statements


def _walked(body: tuple[Stmt, ...]) -> list[Place]:
    """Every place of a program, in program order: a generator inside of generators would hand each place through all of
    them."""
    places: list[Place] = []
    waiting: list[Place] = [((n,), stmt, ()) for n, stmt in enumerate(body)][::-1]
    while waiting:
        place = waiting.pop()
        places.append(place)
        path, stmt, loops = place
        if isinstance(stmt, Loop):
            inner = (*loops, stmt)
            waiting += [((*path, n), below, inner) for n, below in enumerate(stmt.body)][::-1]
    return places


def nearest(name: str, names: list[str], what: str) -> str:
    """The help of an error about an unknown name.

    Args:
        name: as the user wrote it.
        names: the known ones.
        what: the word for them, such as "blocks".
    """
    written = str(name)[:100]
    begun = [c for c in names if min(len(c), len(written)) > 2 and (c.startswith(written) or written.startswith(c))]
    close = difflib.get_close_matches(written, names, n=3) or begun[:3]
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}? The {what}: {', '.join(names)}"
    return f"the {what}: {', '.join(names) or 'none'}"


def find_block(program: Program, name: str) -> tuple[Path, Block, tuple[Loop, ...]]:
    """Path, block and enclosing loops of the block called `name`.

    Raises:
        ScheduleError: there is none; `help` has the nearest names.
    """
    found = _known(program).by_name.get(name) if isinstance(name, str) else None
    if found is not None:
        return found
    writers = [repr(b.name) for b in blocks(program) if isinstance(name, str) and b.writes == name]
    raise ScheduleError(
        f"there is no block {shown(name)} in {program.name}",
        help=f"{name} is a buffer, written by block {' and '.join(writers)}"
        if writers
        else nearest(name, [b.name for b in blocks(program)], "blocks"),
    )


def has_block(program: Program, name: str) -> bool:
    """Whether there is a block called `name`."""
    return isinstance(name, str) and name in _known(program).by_name


def depth_of(loops: tuple[Loop, ...], var: str) -> int:
    """How many of `loops`, outermost first, are around the one called `var`, which must be among them."""
    return next(n for n, loop in enumerate(loops) if loop.var == var)


def find_loop(program: Program, block: str, loop: str) -> tuple[Path, Loop, tuple[Loop, ...]]:
    """Path, loop, and the loops around it, of the loop `loop` around the block `block`.

    Raises:
        ScheduleError: there is no such block or loop.
    """
    path, _, loops = find_block(program, block)
    for depth, around in enumerate(loops):
        if around.var == loop:
            return path[: depth + 1], around, loops[:depth]
    names = [around.var for around in loops]
    own = loop.removeprefix(f"{block}.")
    raise ScheduleError(
        f"block {block!r} has no loop {loop!r} around it",
        node=block,
        help=f"name it without its block here: {own!r}"
        if own != loop and own in names
        else nearest(loop, names, f"loops around {block}"),
    )


def edit(program: Program, path: Path, change: Callable[[Stmt], tuple[Stmt, ...]]) -> Program:
    """The program with the statement at `path` replaced by the statements that `change` returns for it; loops that
    become empty are dropped."""
    return replace(program, body=_edited(program.body, path, change))


def _edited(body: tuple[Stmt, ...], path: Path, change: Callable[[Stmt], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    n, *more = path
    stmt = body[n]
    if not more:
        new = change(stmt)
    else:
        assert isinstance(stmt, Loop)
        inner = _edited(stmt.body, tuple(more), change)
        new = (replace(stmt, body=inner),) if inner else ()
    return body[:n] + new + body[n + 1 :]


def remove(program: Program, name: str) -> Program:
    """The program without the block `name` and the loops around it alone."""
    path, _, _ = find_block(program, name)
    return edit(program, path, lambda _: ())


def replace_block(program: Program, name: str, new: Block) -> Program:
    """The program with the block `name` replaced, in its place."""
    path, _, _ = find_block(program, name)
    return edit(program, path, lambda _: (new,))


def append_to_loop(program: Program, path: Path, stmts: tuple[Stmt, ...]) -> Program:
    """Statements added at the end of the body of the loop at `path`."""
    return map_loop(program, path, lambda loop: replace(loop, body=loop.body + stmts))


def insert_before(program: Program, path: Path, stmts: tuple[Stmt, ...]) -> Program:
    """Statements put before the statement at `path`."""
    return edit(program, path, lambda stmt: (*stmts, stmt))


def replace_nest(program: Program, name: str, stmts: tuple[Stmt, ...]) -> Program:
    """The program with the nest of the block `name` (the outermost loop that contains no other block) replaced by
    `stmts`."""
    path, _, loops = find_block(program, name)
    depth = len(loops)
    while depth > 0 and _block_count(loops[depth - 1]) == 1:
        depth -= 1
    return edit(program, path[: depth + 1], lambda _: stmts)


def _block_count(stmt: Stmt) -> int:
    return 1 if isinstance(stmt, Block) else sum(_block_count(s) for s in stmt.body)


def blocks_under(stmt: Stmt) -> tuple[Block, ...]:
    """Every block at or below a statement."""
    if isinstance(stmt, Block):
        return (stmt,)
    found: list[Block] = []
    waiting: list[Stmt] = [stmt]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Block):
            found.append(one)
        else:
            waiting += reversed(one.body)
    return tuple(found)


def grouped(loop: Loop) -> tuple[Loop, ...]:
    """The perfect nest of serial loops without annotations that is printed on the loop's line."""
    group = [loop]
    while (
        len(group[-1].body) == 1
        and isinstance(inner := group[-1].body[0], Loop)
        and inner.kind == group[-1].kind == "serial"
        and not inner.annotations
        and not group[-1].annotations
    ):
        group.append(inner)
    return tuple(group)


def map_blocks(program: Program, change: Callable[[Block], Block]) -> Program:
    """Every block rewritten in its place; loops without a change stay the same objects."""
    return replace(program, body=tuple([_mapped(s, change) for s in program.body]))


def _mapped(stmt: Stmt, change: Callable[[Block], Block]) -> Stmt:
    if isinstance(stmt, Block):
        return change(stmt)
    return _with_body(stmt, tuple([_mapped(s, change) for s in stmt.body]))


def _with_body(loop: Loop, body: tuple[Stmt, ...]) -> Loop:
    """The loop with another body; the same object if it has the same statements."""
    if len(body) == len(loop.body) and all(map(is_, body, loop.body)):
        return loop
    return Loop(loop.var, loop.extent, body, loop.kind, loop.annotations)


def map_loop(program: Program, path: Path, change: Callable[[Loop], Loop]) -> Program:
    """The loop at `path` rewritten in its place."""

    def one(stmt: Stmt) -> tuple[Stmt, ...]:
        assert isinstance(stmt, Loop)
        return (change(stmt),)

    return edit(program, path, one)


def loop_nest(loops: list[tuple[str, int]], block: Block) -> Stmt:
    """`block` inside fresh serial loops (name, extent), outermost first."""
    stmt: Stmt = block
    for var, extent in reversed(loops):
        stmt = Loop(var, extent, (stmt,))
    return stmt


def drop_unused_buffers(program: Program) -> Program:
    """The program without internal buffers that no block touches."""
    used = set(program.params)
    for block in blocks(program):
        used.add(block.writes)
        used |= {r.buffer for r in loads(block.body.value)}
    return replace(program, buffers=tuple(b for b in program.buffers if b.name in used))


def rename_loops(program: Program, known: Collection[str] = ()) -> Program:
    """Renames loops that TVM named ax0, ax1, … after the iteration variable that depends on them.

    `for ax0 in range(64)` with `j = j0 * 64 + ax0` becomes `j1`; a loop that is the whole binding of a variable takes
    its name.  The names are deterministic, so that emitted code and golden records are stable.

    Args:
        program: with TVM's names.
        known: names of loops that are not renamed.
    """

    def visit(stmt: Stmt, outer: tuple[str, ...], env: dict[str, Expr]) -> Stmt:
        if isinstance(stmt, Block):
            bindings = [_unit(it, outer, substitute(it.binding, env)) for it in stmt.iters]
            predicates = tuple([substitute(p, env) for p in stmt.predicates])
            if all(map(is_, bindings, [it.binding for it in stmt.iters])) and all(
                map(is_, predicates, stmt.predicates)
            ):
                return stmt
            iters = tuple([replace(it, binding=b) for it, b in zip(stmt.iters, bindings, strict=True)])
            return replace(stmt, iters=iters, predicates=predicates)
        name = stmt.var
        if name.startswith("ax") and name[2:].isdigit() and name not in known:
            name = unique(_name_for(stmt) or name, {*outer, *loop_names(*stmt.body)}, "_")
        # A name that stays still hides that of a loop around it.
        inner = {k: v for k, v in env.items() if k != name} if name == stmt.var else {**env, stmt.var: Var(name)}
        body = tuple([visit(s, (*outer, name), inner) for s in stmt.body])
        return _with_body(stmt, body) if name == stmt.var else replace(stmt, var=name, body=body)

    return replace(program, body=tuple([visit(s, (), {}) for s in program.body]))


def _unit(it: Iter, outer: tuple[str, ...], binding: Expr) -> Expr:
    """The binding of an iteration variable; TVM writes 0 for extent 1, which becomes its loop if that still exists."""
    return Var(it.name) if it.extent == 1 and binding == Const(0) and it.name in outer else binding


def _name_for(loop: Loop) -> str | None:
    for block in blocks_under(loop):
        for it in block.iters:
            used = variables(it.binding)
            if loop.var in used:
                return it.name if used == {loop.var} else f"{it.name}1"
    return None
