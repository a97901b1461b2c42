"""tile_outermost: a dimension that some blocks of a nest run along inside, tiled, its tiles the outermost loop."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.names import loop_names, unique
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Iter, Loop, Op, Program, Stmt, Var, add, mul
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import loads
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.kinds import LoopRef, Size
from neptune_lab.loop_schedule.outcome import Outcome, plain


@primitive(ours=True, makes="one", made='The new outermost loop, as "block.loop".')
def tile_outermost(program: Program, *, loop: LoopRef, size: Size) -> Outcome:
    """Moves the loop over tiles of an inner loop outside of its whole nest; blocks that do not need it are repeated.

    With the outermost loop bound to the grid, more programs share the work, each with a smaller tile, at the price of
    computing again what all of them need (MCFuser, III-A: the deep order of two products computes the first one for
    every tile of the second one's columns).

    before ⇒ after:
        for i:                                  for e0:
            for j: AB[i, j] = …                     for i:
            for j, e: C[i, e] += AB[i, j] …  ⇒          for j: AB[i, j] = …
                                                        for j, e1: C[i, e0 * size + e1] += AB[i, j] …

    Args:
        loop: "block.loop", a loop that only this block is in and that is one of its independent iterations.
        size: elements of a tile; it need not divide.

    Raises:
        ScheduleError: a block of the nest folds along that dimension, reads it at other places than its own, or adds
            to a value that starts outside the nest.
    """
    name, var = loop_ref(loop)
    path, found, _ = tree.find_loop(program, name, var)
    root = program.body[path[0]]
    along = _along(program, name, var, root)
    _check(loop, root, along)
    tiles = -(-found.extent // size)
    outer = unique(f"{var}0", loop_names(root), "_")
    taken = {*loop_names(root), outer}
    inner = {b: (loop_var, unique(f"{loop_var}1", taken, "_")) for b, (_, loop_var) in along.items()}

    def rewrite(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Loop):
            mine = {b.name for b in tree.blocks_under(stmt)} & inner.keys()
            new = next((inner[b][1] for b in sorted(mine) if inner[b][0] == stmt.var), None)
            body = tuple(rewrite(s) for s in stmt.body)
            return replace(stmt, body=body) if new is None else replace(stmt, var=new, extent=size, body=body)
        if stmt.name not in along:
            return stmt
        place = add(mul(Var(outer), size), Var(inner[stmt.name][1]))
        return _bound_to(stmt, along[stmt.name][0], place, found.extent if tiles * size > found.extent else None)

    nest = Loop(outer, tiles, (rewrite(root),))
    result = replace(program, body=(*program.body[: path[0]], nest, *program.body[path[0] + 1 :]))
    again = [b.name for b in tree.blocks_under(root) if b.name not in along]
    note = f"The loop over {tiles} tiles of {var} is the outermost now" + (
        f"; {', '.join(again)} {'is' if len(again) == 1 else 'are'} computed again for each tile." if again else "."
    )
    return plain("tile_outermost", result, note, (f"{name}.{outer}",))


def _bound_to(block: Block, iteration: str, place: Expr, limit: int | None) -> Block:
    iters = tuple(replace(it, binding=place) if it.name == iteration else it for it in block.iters)
    if limit is None:
        return replace(block, iters=iters)
    return replace(block, iters=iters, predicates=(*block.predicates, Op("lt", (place, Const(limit)))))


def _along(program: Program, name: str, var: str, root: Stmt) -> dict[str, tuple[str, str]]:
    """For each block of the nest that runs along the dimension of `name`'s loop `var`: its iteration and its loop."""
    dims = dimensions(program)
    anchor = next(b for b in tree.blocks_under(root) if b.name == name)
    own = next((it for it in anchor.iters if it.binding == Var(var)), None)
    if own is None or own.kind != "spatial":
        raise ScheduleError(
            f"loop '{name}.{var}' is not an independent iteration of {name!r} by itself",
            node=name,
            help="name a loop that is a whole dimension of what the block writes",
        )
    wanted = dims.of(anchor, own.name)
    found: dict[str, tuple[str, str]] = {}
    for block in tree.blocks_under(root):
        mine = next((it for it in block.iters if dims.of(block, it.name) == wanted), None)
        if mine is None:
            continue
        if mine.kind != "spatial" or not isinstance(mine.binding, Var) or not _inner(program, block, mine, own, anchor):
            raise ScheduleError(
                f"block {block.name!r} of the same nest {'folds' if mine.kind == 'reduce' else 'does not run'} along "
                f"the whole of {var!r} by itself: its tiles cannot be computed independently",
                node=block.name,
                help="keep the dimension whole, or move that block out of the nest",
            )
        found[block.name] = (mine.name, mine.binding.name)
    return found


def _inner(program: Program, block: Block, mine: Iter, own: Iter, anchor: Block) -> bool:
    """Whether the iteration is a whole serial loop of the same extent that no block outside the dimension is in."""
    assert isinstance(mine.binding, Var)
    _, loop, _ = tree.find_loop(program, block.name, mine.binding.name)
    shared = all(any(it.binding == mine.binding for it in b.iters) for b in tree.blocks_under(loop))
    return loop.kind == "serial" and mine.extent == own.extent == loop.extent and shared and bool(anchor.iters)


def _check(loop: str, root: Stmt, along: dict[str, tuple[str, str]]) -> None:
    """Formal statement: an iteration of the new loop reads nothing that another one writes, and starts from nothing
    that one leaves behind.  So a value along the dimension is read at the reader's own place only, and a value that is
    read before the nest writes it is none that the nest writes later."""
    writers = {b.writes: b for b in tree.blocks_under(root)}
    written: set[str] = set()
    for block in tree.blocks_under(root):
        starts = block.init is not None or block.role is Role.SCAN
        for read in loads(block.body.value):
            writer = writers.get(read.buffer)
            if writer is None:
                continue
            if read.buffer not in written and not (starts and read.buffer == block.writes):
                raise ScheduleError(
                    f"block {block.name!r} reads {read.buffer!r} before the nest of {loop!r} writes it: the second "
                    "tile would read what the first one has written",
                    node=block.name,
                    help="apply tile_outermost before start values are taken out of the nest",
                )
            if writer.name in along:
                at, mine = Var(along[writer.name][0]), along.get(block.name)
                axis = writer.body.indices.index(at) if at in writer.body.indices else None
                if axis is None or mine is None or read.indices[axis] != Var(mine[0]):
                    raise ScheduleError(
                        f"block {block.name!r} reads {read.buffer!r} at another index along {loop!r} than its own",
                        node=block.name,
                        help="keep the dimension whole, or move that block out of the nest",
                    )
        written.add(block.writes)
