"""privatize_reduction: one reduction becomes a local one a tile and a global one over tiles (paper, 4.3, B.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import fresh, unique
from neptune_lab.loop_ir.nodes import (
    Block,
    Buffer,
    Const,
    Expr,
    Iter,
    Load,
    Op,
    Program,
    Stmt,
    Store,
    Var,
    add,
    mul,
    substitute,
    variables,
    with_buffers,
)
from neptune_lab.loop_ir.reduction import OPERATORS, match_reduction
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import affine_terms, loop_ref
from neptune_lab.loop_schedule.kinds import LoopRef
from neptune_lab.loop_schedule.outcome import Outcome, plain


@dataclass(frozen=True, slots=True)
class Private:
    """A privatised reduction: `global_stmt` is the global block in its loops, not yet placed; None where the loop
    already walks the reduction one element per step, so that there is nothing to make private."""

    program: Program
    local: str
    global_stmt: Stmt | None


def rolled_iter(block: Block, loop: str) -> tuple[Iter, int, Expr]:
    """The reduce iteration that runs along `loop`, with a and rest of its binding a * loop + rest."""
    along = [it for it in block.iters if it.kind == "reduce" and loop in variables(it.binding)]
    if len(along) != 1:
        found = "no reduce iteration does" if not along else f"{', '.join(it.name for it in along)} do"
        raise ScheduleError(
            f"block {block.name!r} does not reduce along loop {loop!r}: {found}",
            node=block.name,
            help="split or fuse loops so that exactly one reduced dimension runs along the loop",
        )
    split = affine_terms(along[0].binding, loop)
    if split is None or split[0] < 1:
        raise ScheduleError(
            f"block {block.name!r} runs along loop {loop!r} by {expression(along[0].binding)}, which is not a multiple "
            f"of {loop!r} plus a rest",
            node=block.name,
            help=f"name a loop that runs along one dimension only: take this step before loops are fused into {loop!r}",
        )
    return along[0], *split


def privatize(program: Program, name: str, loop: str, part: Role, *, outside: bool) -> Private:
    """Privatises block `name`, which stands under loop `loop` (a variable), along that loop.

    before ⇒ after (j = j0 * 2 + j1):
        for j0, j1: X[i] = X[i] (f) e(j)   ⇒   for j0, j1: X_local[i, j0] = X_local[i, j0] (f) e(j0 * 2 + j1)
                                                for j0:     X[i] = X[i] (f) X_local[i, j0]

    `outside`: the global block gets loops of its own throughout; otherwise it shares those around and with `loop`.
    """
    _, block, loops = tree.find_block(program, name)
    reduction = match_reduction(block)
    depth = tree.depth_of(loops, loop)
    it, step, rest = rolled_iter(block, loop)
    inside = {around.var: around.extent for around in loops[depth + 1 :]}
    outer_vars = {around.var for around in loops[:depth]}
    if variables(rest) & outer_vars:
        raise ScheduleError(
            f"block {name!r} reduces along {loop!r} and along an outer loop as well",
            node=name,
            help="privatise along the outer loop first, then along this one",
        )
    whole_loop = step == 1 and rest == Const(0) and len([i for i in block.iters if i.kind == "reduce"]) == 1
    if whole_loop and loops[depth].extent > 1:  # a single element has its tile of one
        return Private(program, name, None)
    others = {i.name for i in block.iters}
    tag = unique(f"{it.name}0", others, "_")
    inner = unique(f"{it.name}1", {*others, tag}, "_")
    whole = loops[depth].extent
    local_name = fresh(program, f"{name}_{part}")
    buffer = program.buffer(block.writes)
    local_buffer = fresh(program, f"{block.writes}_{part}")
    spatial = [i for i in block.iters if i.kind == "spatial"]
    shared = [n for n, i in enumerate(spatial) if variables(i.binding) & (outer_vars | {loop})]
    place = shared[-1] + 1 if shared else 0
    position = {index.name: n for n, index in enumerate(block.body.indices) if isinstance(index, Var)}
    axis = max((position.get(i.name, -1) + 1 for i in spatial[:place]), default=0)

    env: dict[str, Expr] = {it.name: add(mul(Var(tag), step), Var(inner))}
    at = block.body.indices
    own = Load(local_buffer, (*at[:axis], Var(tag), *at[axis:]))
    local = Block(
        local_name,
        tuple(
            x
            for i in block.iters
            for x in (
                (Iter(tag, whole, "spatial", Var(loop)), Iter(inner, step, "reduce", rest))
                if i.name == it.name
                else (i,)
            )
        ),
        Store(local_buffer, own.indices, Op(OPERATORS[reduction.reducer], (own, substitute(reduction.term, env)))),
        Store(local_buffer, own.indices, reduction.identity),
        block.predicates,
        origin=block.origin,
        role=part,
    )
    extents: dict[str, int] = {}
    iters: list[Iter] = []
    for i in spatial:
        if outside:
            extents[i.name] = i.extent
            iters.append(replace(i, binding=Var(i.name)))
        else:
            for var in variables(i.binding) & set(inside):
                extents[var] = inside[var]
            iters.append(i)
    if outside:
        extents[tag] = whole
    iters.append(Iter(tag, whole, "reduce", Var(tag if outside else loop)))
    ordered = {v: e for v, e in inside.items() if v in extents} if not outside else extents
    gone = set(inside) - set(ordered)
    combined = Block(
        name,
        tuple(iters),
        Store(
            block.writes,
            block.body.indices,
            Op(OPERATORS[reduction.reducer], (Load(block.writes, at), own)),
        ),
        Store(block.writes, block.body.indices, reduction.identity),
        () if outside else tuple(p for p in block.predicates if not variables(p) & gone and not _bounds(p, it, loop)),
        origin=block.origin,
        role=Role.GLOBAL,
    )
    shape = (*buffer.shape[:axis], whole, *buffer.shape[axis:])
    program = with_buffers(program, Buffer(local_buffer, shape, buffer.dtype))
    program = tree.replace_block(program, name, local)
    return Private(program, local_name, tree.loop_nest(list(ordered.items()), combined))


def _bounds(predicate: Expr, it: Iter, loop: str) -> bool:
    """A bound of the reduced dimension: a tile past it is its identity, so the global block drops it."""
    used = variables(predicate)
    return bool(used) and (used <= variables(it.binding) or loop in used)


@primitive(ours=True, makes="one", made="The local block.", partial=True)
def privatize_reduction(program: Program, *, loop: LoopRef) -> Outcome:
    """Splits the reduction of "block.loop" along that loop: a local part per tile, and a global part in its own nest.

    before ⇒ after (j = j0 * 2 + j1):
        for j0, j1: X[i] = X[i] (f) e(j)   ⇒   for j0, j1: X_local[i, j0] = X_local[i, j0] (f) e(j0 * 2 + j1)
                                               for j0:     X[i] = X[i] (f) X_local[i, j0]

    Args:
        loop: "block.loop", along which the block folds; split it first, by the size of a tile.

    Raises:
        ScheduleError: the loop is no reduction's, or each of its iterations folds one element.
    """
    name, var = loop_ref(loop)
    tree.find_loop(program, name, var)
    made = privatize(program, name, var, Role.LOCAL, outside=True)
    if made.global_stmt is None:
        raise ScheduleError(
            f"loop {loop!r} iterates over the whole reduction of {name!r} one element per step: there is nothing to "
            "make private",
            node=name,
            help=f"split it first, for example split({loop!r}, (None, 2))",
        )
    path, _, _ = tree.find_block(made.program, made.local)
    program = tree.edit(made.program, path[:1], lambda stmt: (stmt, made.global_stmt))  # type: ignore[arg-type]
    note = f"{name} is split along {var}: {made.local} folds each tile, {name} folds the tiles."
    return plain("privatize_reduction", program, note, (made.local,))
