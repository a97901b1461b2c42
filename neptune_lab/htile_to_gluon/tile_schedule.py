"""The order in which a program visits its tiles, the same for producer and consumers."""

from __future__ import annotations

import math
from collections.abc import Callable

from neptune_lab.htile.affine import affine, expression
from neptune_lab.htile.nodes import Arith, IndexExpr, Int, Kernel, Name, Slice
from neptune_lab.htile.sizes import product_of
from neptune_lab.htile.walk import names_of_index, simplify
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.launch_helpers import COUNTED
from neptune_lab.htile_to_gluon.memory import load
from neptune_lab.htile_to_gluon.shared_memory import left_access
from neptune_lab.htile_to_gluon.structure import LoopPart, Structure
from neptune_lab.htile_to_gluon.turns import Order, order_of, row_block_tiles, usual_heads, usual_persistent
from neptune_lab.htile_to_triton.context import ADD, ATOM, MUL, sizes_of
from neptune_lab.htile_to_triton.kernel import bind_loop
from neptune_lab.htile_to_triton.scope import Draft, Scope


def canonicalize(expr: IndexExpr) -> IndexExpr:
    """`expr` with equal terms cancelled, in the form that the emitter prints."""
    return simplify(expression(affine(expr)))


def bind_program(ctx: GluonContext, tile: str) -> None:
    """Defines the kernel's grid variables at the top of the current scope, from the number `tile` of a tile."""
    rows, heads = row_axes(ctx.structure, ctx.kernel)
    extent = _extent_of(ctx.kernel)
    row, head = ctx.names.fresh("row_block"), ctx.names.fresh("head")
    blocks, group = _extents_text(ctx)[0], heads_text(ctx)
    helper = helper_by_sizes(ctx, "_locate")
    located = Draft([f"{row}, {head} = {helper}({tile}, {blocks}, {group})"], ctx.kernel.name)
    located.used_by(ctx.kernel.node_id)
    ctx.scope.prelude.append(located)
    for source, axes in ((row, rows), (head, heads)):
        below: IndexExpr = Int(1)
        for place, var in enumerate(axes):
            text = source if below == Int(1) else f"{source} // {ctx.index(below, ATOM)}"
            if any(extent[v] != Int(1) for v in axes[place + 1 :]):
                text = f"{text} % {ctx.index(extent[var], ATOM)}"
            below = product_of([below, extent[var]])
            name = ctx.names.fresh(var)
            bound = Draft([f"{name} = {'0' if extent[var] == Int(1) else text}"], ctx.kernel.name)
            ctx.variables[var] = (name, bound)
            ctx.scope.prelude.append(bound)
    ctx.scope.binds |= set(extent)
    for name, (access, _) in ctx.bounds.items():
        ctx.variables[name] = (load(ctx, access, ctx.columns), Draft([], ctx.kernel.name))
    ctx.scope.binds |= set(ctx.bounds)


def _extent_of(kernel: Kernel) -> dict[str, IndexExpr]:
    """The extent of each grid variable."""
    return {axis.var: Int(axis.extent) if axis.size is None else axis.size for axis in kernel.grid}


def helper_by_sizes(ctx: GluonContext, name: str) -> str:
    """The helper `name`, or its form for numbers that are known at the launch only, if the grid depends on these."""
    return ctx.helper(f"{name}_by_sizes" if depends_on_sizes(ctx.kernel) else name)


def depends_on_sizes(kernel: Kernel) -> bool:
    """Whether the grid depends on sizes that are known at the launch."""
    return any(axis.size is not None for axis in kernel.grid)


def row_axes(structure: Structure, kernel: Kernel) -> tuple[list[str], list[str]]:
    """The grid variables that the rows of a program depend on, and the others."""
    access = left_access(structure, structure.parts[0].leading[0])
    first = next(index for index in access.index if isinstance(index, Slice))
    rows = [axis.var for axis in kernel.grid if axis.var in names_of_index(first.start)]
    return rows, [axis.var for axis in kernel.grid if axis.var not in rows]


def heads_text(ctx: GluonContext) -> str:
    """How many heads run at the same time, in the kernel's text: if the grid depends on sizes that are known at the
    launch, the option, 1, or a parameter."""
    if not depends_on_sizes(ctx.kernel):
        return str(heads_side_by_side(ctx, *_extents(ctx)))
    if ctx.at_launch:
        return ctx.together
    number = _extent_of(ctx.kernel)
    chosen = ctx.gluon.heads_together or (0 if ctx.gluon.persistent or _lengths_differ(ctx) else 1)
    heads = product_of([number[var] for var in row_axes(ctx.structure, ctx.kernel)[1]])
    if chosen and isinstance(heads, Int) and heads.value % chosen == 0:
        return str(chosen)
    return ctx.together


def heads_side_by_side(ctx: GluonContext, blocks: int, heads: int) -> int:
    """How many heads run at the same time, a divisor of `heads`.

    The option `heads_together` if it is set.  Otherwise one if all row blocks have the same number of tiles; if some
    have more, enough heads to balance them, longest first, as long as their loop tensors fit the L2 cache.  Persistent
    programs have at least one tile each, and take tiles in the order that `turns.order_of` chooses.

    Args:
        blocks: number of row blocks.
        heads: number of heads.
    """
    fewest = _fewest_heads(ctx, blocks, heads)
    return fewest if not ctx.gluon.persistent else _order(ctx, blocks, heads, fewest).together


def _fewest_heads(ctx: GluonContext, blocks: int, heads: int) -> int:
    chosen = ctx.gluon.heads_together
    if chosen is None:
        return usual_heads(blocks, heads, _loaded_bytes(ctx), differ=_lengths_differ(ctx))
    return max(n for n in range(1, heads + 1) if heads % n == 0 and n <= chosen)


def _order(ctx: GluonContext, blocks: int, heads: int, fewest: int) -> Order:
    """The order in which persistent programs take tiles."""
    usual = usual_persistent(blocks, heads, fewest)
    tiles = row_block_tiles(ctx.structure, ctx.kernel, row_axes(ctx.structure, ctx.kernel)[0])
    if ctx.gluon.heads_together is not None or tiles is None:
        return Order(usual)
    return order_of(tiles, heads, ctx.gluon.emit.target.sm_count, usual, _loaded_bytes(ctx))


def takes_sections(ctx: GluonContext) -> bool:
    """Whether persistent programs begin again in each section of heads; if not, turns go on over all tiles."""
    if depends_on_sizes(ctx.kernel):
        return _lengths_differ(ctx)
    blocks, heads = _extents(ctx)
    return _order(ctx, blocks, heads, _fewest_heads(ctx, blocks, heads)).sections


def heads_at_launch(ctx: GluonContext) -> tuple[IndexExpr, IndexExpr, IndexExpr]:
    """What the launcher's function (`launch_helpers.HEADS_TOGETHER`) chooses the heads that run at the same time by:
    the numbers of row blocks and of heads, and the size of what loops load in units of `launch_helpers.COUNTED`."""
    rows, heads = row_axes(ctx.structure, ctx.kernel)
    extent = _extent_of(ctx.kernel)
    elements: IndexExpr = Int(0)
    for name in _loaded(ctx):
        elements = Arith("+", elements, product_of(sizes_of(ctx.program.tensor(name))))
    blocks, number = (product_of([extent[v] for v in axes]) for axes in (rows, heads))
    units = Arith("//", Arith("+", simplify(elements), Int(COUNTED - 1)), Int(COUNTED))
    return blocks, number, simplify(units)


def _loaded(ctx: GluonContext) -> list[str]:
    """The tensors that the loop loads."""
    part = ctx.structure.parts[0]
    return sorted({p.b.tensor for p in (*part.leading, *part.trailing)})


def _loaded_bytes(ctx: GluonContext) -> int:
    """The bytes of the tensors that the loop loads, of 16 bits."""
    return 2 * sum(math.prod(ctx.program.tensor(name).shape) for name in _loaded(ctx))


def _lengths_differ(ctx: GluonContext) -> bool:
    """Whether row blocks have different numbers of tiles."""
    rows = set(row_axes(ctx.structure, ctx.kernel)[0])
    loops = [part.loop for part in ctx.structure.parts if part.loop is not None]
    return any(rows & (names_of_index(loop.start) | names_of_index(loop.stop)) for loop in loops)


def turn_text(ctx: GluonContext, turn: str) -> str:
    """The turn of a persistent program and its tile, from `turn` on, in the kernel's text."""
    if not takes_sections(ctx):
        return f"{ctx.helper('_turn_on')}({turn})"
    return f"{helper_by_sizes(ctx, '_turn')}({turn}, {_tiles_side_by_side(ctx)})"


def _tiles_side_by_side(ctx: GluonContext) -> str:
    """The number of tiles of the heads that run at the same time, in the kernel's text."""
    if depends_on_sizes(ctx.kernel):
        return f"{_extents_text(ctx)[0]} * {heads_text(ctx)}"
    blocks, heads = _extents(ctx)
    return str(blocks * heads_side_by_side(ctx, blocks, heads))


def _extents(ctx: GluonContext) -> tuple[int, int]:
    """The numbers of row blocks and of heads."""
    rows, heads = row_axes(ctx.structure, ctx.kernel)
    extent = {axis.var: axis.extent for axis in ctx.kernel.grid}
    return math.prod(extent[v] for v in rows), math.prod(extent[v] for v in heads)


def _extents_text(ctx: GluonContext) -> tuple[str, str]:
    """The numbers of row blocks and of heads, in the kernel's text."""
    rows, heads = row_axes(ctx.structure, ctx.kernel)
    extent = _extent_of(ctx.kernel)
    blocks, number = (ctx.index(product_of([extent[v] for v in axes]), MUL) for axes in (rows, heads))
    return blocks, number


def tiles(kernel: Kernel) -> IndexExpr:
    """The number of tiles of a kernel: program instances of its grid."""
    return product_of(list(_extent_of(kernel).values()))


def tiles_text(ctx: GluonContext) -> str:
    """The number of tiles of a kernel, in its text."""
    return ctx.index(tiles(ctx.kernel), ADD)


def count(part: LoopPart) -> IndexExpr:
    """The number of tiles of a part; negative for none."""
    return Int(1) if part.loop is None else canonicalize(Arith("-", part.loop.stop, part.loop.start))


def is_one_tile(part: LoopPart) -> bool:
    """Whether a part has exactly one tile in every program."""
    return count(part) == Int(1)


def tiles_of_parts(ctx: GluonContext, parts: tuple[LoopPart, ...]) -> IndexExpr:
    """The number of tiles of all these parts."""
    total: IndexExpr = Int(0)
    for part in parts:
        number = count(part)
        if not ctx.is_nonnegative(number):
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
    if opened and is_one_tile(part):
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
        bind_loop(ctx, loop)
        ctx.variables[loop.var] = (name, bind)
        body(canonicalize(left))
