"""The lines of a launch whose programs wait for each other (`waiting`): parts, rows, and what is passed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from neptune_lab.htile.bounds import Interval
from neptune_lab.htile.nodes import Access, Stmt, Store
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import reads, stores, written_tensors
from neptune_lab.htile_to_triton.context import Context
from neptune_lab.htile_to_triton.memory import ask, load_once
from neptune_lab.htile_to_triton.scope import Draft, Scope
from neptune_lab.htile_to_triton.waiting import DELAY, Waiting, bodies
from neptune_lab.wrapping import Doc, call

# Tensors of which registers hold a part while a program waits. On an H200 softmax of 6965 x 132506 takes 1046 us when
# it loads its part before that and 1084 after it; layer_norm of 2509 x 118068 387 with all loads after it, and 394 if
# those of its scale and shift are before it too.
MOST_LOADED = 1
# Words before those that are passed on: the last mark of the launch before, and the programs that have left.
FIRST = 2


def bind_parts(ctx: Context, joined: Waiting) -> None:
    """Defines the part of a program, at the top of the kernel; its rows follow (`rows_of_group`)."""
    part = joined.part
    name = ctx.names.fresh(part.var)
    draft = Draft([f"{name} = tl.program_id(0) % {part.extent}"], ctx.kernel.name)
    ctx.variables[part.var] = (name, draft)
    ctx.root.prelude.append(draft)
    ctx.root.binds = frozenset((part.var,))
    ctx.written = written_tensors(joined.whole) - set(joined.passed)


def rows_of_group(ctx: Context, joined: Waiting, emit_body: Callable[[Context, tuple[Stmt, ...]], None]) -> None:
    """The loop over the rows of a program's group, and in it the statements of each kernel, by `emit_body`."""
    ctx.node, ctx.origin = joined.whole.node_id, joined.whole.name
    parts, rows, late = joined.part.extent, joined.row.extent, DELAY * (len(joined.kernels) - 1)
    ctx.counters = ctx.names.fresh("counters_ptr")
    names = ("group", "groups", "turns", "words", "before", "turn")
    group, groups, turns, words, before, turn = map(ctx.names.fresh, names)
    ctx.line(f"# {parts} programs share a row, and wait for what the others of their group pass on", comment=True)
    ctx.line(f"{group} = tl.program_id(0) // {parts}")
    ctx.line(f"{groups} = tl.num_programs(0) // {parts}")
    ctx.line(f"{turns} = ({rows} + {groups} - 1) // {groups}")
    ctx.line(f"{words} = {ctx.counters}.to(tl.pointer_type(tl.int64))")
    ctx.line(f"{before} = tl.load({words}).to(tl.int32)")
    row = ctx.names.fresh(joined.row.var)
    with _inside(ctx, f"for {turn} in range({_plus_constant(turns, late)}):"):
        for n, kernel in enumerate(joined.kernels):
            ctx.node, ctx.origin = kernel.node_id, kernel.name
            own = f"({turn} - {DELAY * n})" if n * DELAY else turn
            ctx.line(f"{row} = {own} * {groups} + {group}")
            exists = f"({row} >= 0) & ({row} < {rows})" if n * DELAY else f"{row} < {rows}"
            with _inside(ctx, f"if {exists}:", joined.row.var) as header:
                ctx.variables[joined.row.var] = (row, header)
                ctx.mark = ctx.name_for("mark", "mark", ctx.scope)
                given = ctx.name_for("given", "given", ctx.scope)
                ctx.line(f"{ctx.mark} = {before} + {_plus_constant(turn, 1 - DELAY * n)}")
                place = f"{own} % {joined.depth} * {groups} + {group}"
                ctx.line(f"{given} = {words} + {FIRST} + ({place}) * {joined.words}")
                for k, name in enumerate(joined.passed):
                    ctx.passed[name] = f"{given} + {k * parts}" if k else given
                ctx.evicted = _policies(joined, n)
                for range_of_parts, body in bodies(joined, kernel):
                    _of_parts(ctx, joined, range_of_parts, body, emit_body)
    ctx.node, ctx.origin = joined.whole.node_id, joined.whole.name
    ctx.line(f"{ctx.helper('_leave')}({words}, {before} + {turns}, {groups} * {parts})")


def _plus_constant(name: str, by: int) -> str:
    """A variable plus a constant.

    >>> _plus_constant("turn", 1), _plus_constant("turn", 0), _plus_constant("turn", -2)
    ('turn + 1', 'turn', 'turn - 2')
    """
    return name if by == 0 else f"{name} {'+' if by > 0 else '-'} {abs(by)}"


def _of_parts(
    ctx: Context,
    joined: Waiting,
    parts: Interval,
    body: tuple[Stmt, ...],
    emit_body: Callable[[Context, tuple[Stmt, ...]], None],
) -> None:
    """The statements for the parts before the last, or for the last one."""
    name, last = ctx.variables[joined.part.var][0], joined.part.extent - 1
    with _inside(ctx, f"if {name} < {last}:" if parts.hi < last else "else:"):
        for env in ctx.envs:
            env[joined.part.var] = parts
        _ask_first(ctx, joined, body)
        emit_body(ctx, body)


def _ask_first(ctx: Context, joined: Waiting, body: tuple[Stmt, ...]) -> None:
    """Starts the loads of what was passed on before the first of them is waited for; and before that those of rows that
    programs have read already, if registers hold them: as many tiles as a softmax or a norm has, and not those of
    vectors beside them."""
    every = [(store.node_id, access) for store in body if isinstance(store, Store) for access in reads(store)]
    taken = [(node, access) for node, access in every if access.tensor in joined.passed]
    ctx.asked = {}
    if not taken:
        return
    tiles = [(node, a) for node, a in every if a.tensor in ctx.pointers and (node, a) not in taken and _is_tile(a)]
    tiles = [(node, a) for node, a in tiles if a.tensor in ctx.evicted] or tiles
    if len({access.tensor for _, access in tiles}) <= MOST_LOADED:
        for ctx.node, access in tiles:
            load_once(ctx, access, (0,))
    for ctx.node, access in taken:
        if access.tensor not in ctx.asked:
            ask(ctx, access)


def _is_tile(access: Access) -> bool:
    return len(shape_of_access(access)) == 1


@contextmanager
def _inside(ctx: Context, header: str, binds: str = "") -> Iterator[Draft]:
    """A block of statements under a line, which may bind a variable."""
    scope = Scope(ctx.scope, frozenset((binds,) if binds else ()))
    scope.header = Draft([header], ctx.origin)
    scope.header.used_by(ctx.node)
    with ctx.inside(scope):
        yield scope.header


def _policies(joined: Waiting, n: int) -> dict[str, str]:
    """What the second-level cache should do with tensors that kernel `n` and others of the launch read: keep them until
    the last of these has read them.  Vectors are read again for each row."""
    every = [{a.tensor for s in stores(k.body) for a in reads(s)} for k in joined.kernels]
    again = {name for later in every[n + 1 :] for name in later}
    earlier = {name for before in every[:n] for name in before}
    return {name: "evict_last" if name in again else "evict_first" for name in every[n] & (again | earlier)}


def give(ctx: Context, target: Access, value: Doc) -> Doc:
    """The line that passes a number on."""
    part = ctx.variables[ctx.kernel.grid[0].var][0]
    return call(ctx.helper("_give"), f"{ctx.passed[target.tensor]} + {part}", value, ctx.mark)


__all__ = ["FIRST", "bind_parts", "give", "rows_of_group"]
