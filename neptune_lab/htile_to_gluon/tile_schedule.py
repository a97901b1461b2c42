"""The order in which a program visits its tiles, the same for producer and consumers."""

from __future__ import annotations

import math
from collections.abc import Callable

from neptune_lab.htile.affine import affine, expression, is_nonnegative
from neptune_lab.htile.bounds import loop_interval
from neptune_lab.htile.nodes import Arith, IndexExpr, Int, Kernel, Name, Slice
from neptune_lab.htile.walk import names_of_index, simplify
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.shared_memory import left_access
from neptune_lab.htile_to_gluon.structure import LoopPart, Structure
from neptune_lab.htile_to_triton.scope import Draft, Scope
from neptune_lab.target import MOST_HOPPER_SMS

CACHE = 32 * 2**20  # bytes of the L2 cache for the loop tensors of heads that run at the same time
EVEN = 256  # tiles that run at the same time, about two per multiprocessor


def canonicalize(expr: IndexExpr) -> IndexExpr:
    """`expr` with equal terms cancelled, in the form that the emitter prints."""
    return simplify(expression(affine(expr)))


def bind_program(ctx: GluonContext, tile: str) -> None:
    """Defines the kernel's grid variables at the top of the current scope, from the number `tile` of a tile."""
    rows, heads = row_axes(ctx.structure, ctx.kernel)
    extent = {axis.var: axis.extent for axis in ctx.kernel.grid}
    blocks, number = _extents(ctx)
    row, head = ctx.names.fresh("row_block"), ctx.names.fresh("head")
    group = heads_side_by_side(ctx, blocks, number)
    located = Draft([f"{row}, {head} = {ctx.helper('_locate')}({tile}, {blocks}, {group})"], ctx.kernel.name)
    located.used_by(ctx.kernel.node_id)
    ctx.scope.prelude.append(located)
    for source, axes in ((row, rows), (head, heads)):
        below = 1
        for var in axes:
            above = math.prod(extent[v] for v in axes) // (below * extent[var])
            text = source if below == 1 else f"{source} // {below}"
            text = text if above == 1 else f"{text} % {extent[var]}"
            below *= extent[var]
            name = ctx.names.fresh(var)
            ctx.variables[var] = (name, Draft([f"{name} = {'0' if extent[var] == 1 else text}"], ctx.kernel.name))
            ctx.scope.prelude.append(ctx.variables[var][1])
    ctx.scope.binds |= set(extent)


def row_axes(structure: Structure, kernel: Kernel) -> tuple[list[str], list[str]]:
    """The grid variables that the rows of a program depend on, and the others."""
    access = left_access(structure, structure.parts[0].leading[0])
    first = next(index for index in access.index if isinstance(index, Slice))
    rows = [axis.var for axis in kernel.grid if axis.var in names_of_index(first.start)]
    return rows, [axis.var for axis in kernel.grid if axis.var not in rows]


def heads_side_by_side(ctx: GluonContext, blocks: int, heads: int) -> int:
    """How many heads run at the same time, a divisor of `heads`.

    The option `heads_together` if it is set.  Otherwise one if all row blocks have the same number of tiles; if some
    have more, enough heads to balance them, longest first, as long as their loop tensors fit the L2 cache.  Persistent
    programs need at least one tile each.

    Args:
        blocks: number of row blocks.
        heads: number of heads.
    """
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    part = ctx.structure.parts[0]
    brought = {p.b.tensor for p in (*part.leading, *part.trailing)}
    size = 2 * sum(math.prod(ctx.program.tensor(name).shape) for name in brought)
    chosen = ctx.gluon.heads_together
    if chosen is None:
        enough = next((n for n in divisors if n * blocks >= EVEN), heads)
        chosen = min(enough, CACHE * heads // size) if _lengths_differ(ctx) else 1
    fewest = max((n for n in divisors if n <= chosen), default=1)
    if not ctx.gluon.persistent:
        return fewest
    return next((n for n in divisors if n >= fewest and n * blocks >= MOST_HOPPER_SMS), heads)


def _lengths_differ(ctx: GluonContext) -> bool:
    """Whether row blocks have different numbers of tiles."""
    rows = set(row_axes(ctx.structure, ctx.kernel)[0])
    loops = [part.loop for part in ctx.structure.parts if part.loop is not None]
    return any(rows & (names_of_index(loop.start) | names_of_index(loop.stop)) for loop in loops)


def tiles_side_by_side(ctx: GluonContext) -> int:
    """The number of tiles of the heads that run at the same time."""
    blocks, heads = _extents(ctx)
    return blocks * heads_side_by_side(ctx, blocks, heads)


def _extents(ctx: GluonContext) -> tuple[int, int]:
    """The numbers of row blocks and of heads."""
    rows, heads = row_axes(ctx.structure, ctx.kernel)
    extent = {axis.var: axis.extent for axis in ctx.kernel.grid}
    return math.prod(extent[v] for v in rows), math.prod(extent[v] for v in heads)


def tiles(kernel: Kernel) -> int:
    """The number of tiles of a kernel: program instances of its grid."""
    return math.prod(axis.extent for axis in kernel.grid)


def count(part: LoopPart) -> IndexExpr:
    """The number of tiles of a part; negative for none."""
    return Int(1) if part.loop is None else canonicalize(Arith("-", part.loop.stop, part.loop.start))


def tiles_of_parts(ctx: GluonContext, parts: tuple[LoopPart, ...]) -> IndexExpr:
    """The number of tiles of all these parts."""
    total: IndexExpr = Int(0)
    for part in parts:
        number = count(part)
        if not is_nonnegative(affine(number), ctx.env):
            number = Arith("max", number, Int(0))
        total = Arith("+", total, number)
    return canonicalize(total)


def tiles_left_after_first(ctx: GluonContext) -> IndexExpr:
    """The number of tiles after the first."""
    first, rest = ctx.structure.parts[0], ctx.structure.parts[1:]
    return canonicalize(Arith("+", Arith("-", count(first), Int(1)), tiles_of_parts(ctx, rest)))


def for_each_tile(ctx: GluonContext, part: LoopPart, *, opened: bool, body: Callable[[IndexExpr], None]) -> None:
    """Emits a loop over the tiles of a part.

    Args:
        opened: whether the first tile is emitted elsewhere, before the loop.
        body: emits the work on a tile; its argument is the number of tiles of the part that follow.
    """
    loop = part.loop
    if loop is None:
        if not opened:
            body(Int(0))
        return
    if opened and count(part) == Int(1):
        return
    skipped = 1 if opened else 0
    scope = Scope(ctx.scope, frozenset((loop.var,)))
    name = ctx.name_for(("loop", loop.var), loop.var, scope)
    comment = f"  # {loop.part}" if loop.part else ""
    if ctx.structure.downward:
        step = ctx.name_for(("step", loop.var), "step", scope)
        bounds = f"{skipped}, {ctx.index(count(part))}" if skipped else ctx.index(count(part))
        scope.header = Draft([f"for {step} in range({bounds}):{comment}"], loop.origin)
        last = ctx.index(canonicalize(Arith("-", loop.stop, Int(1))))
        bind = Draft([f"{name} = {last} - {step}"], loop.origin)
        scope.prelude.append(bind)
        left: IndexExpr = Arith("-", Name(loop.var), loop.start)
    else:
        start = ctx.index(canonicalize(Arith("+", loop.start, Int(skipped))))
        bounds = ctx.index(loop.stop) if start == "0" else f"{start}, {ctx.index(loop.stop)}"
        scope.header = bind = Draft([f"for {name} in range({bounds}):{comment}"], loop.origin)
        left = Arith("-", Arith("-", loop.stop, Int(1)), Name(loop.var))
    scope.header.used_by(loop.node_id)
    with ctx.inside(scope):
        ctx.env[loop.var] = loop_interval(loop, ctx.env)
        ctx.variables[loop.var] = (name, bind)
        body(canonicalize(left))
