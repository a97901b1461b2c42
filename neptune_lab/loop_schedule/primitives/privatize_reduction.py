"""privatize_reduction: one reduction becomes a local one per tile and a global one over tiles (paper, 4.3, B.2)."""

from __future__ import annotations

from collections.abc import Mapping
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
    Loop,
    Op,
    Program,
    Stmt,
    Store,
    Var,
    add,
    mul,
    with_buffers,
)
from neptune_lab.loop_ir.reduction import OPERATORS, match_reduction
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import substitute, variables
from neptune_lab.loop_schedule.affine import affine_terms, quotient
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.kinds import LoopRef
from neptune_lab.loop_schedule.outcome import Outcome, plain


@dataclass(frozen=True, slots=True)
class Private:
    """A privatised reduction.

    Args:
        program: the program with the local block in place of the reduction.
        local: the local block's name.
        global_stmt: the global block in its loops, which are not in the program yet; None: each iteration of the loop
            folds a single element, so that nothing was made private.
    """

    program: Program
    local: str
    global_stmt: Stmt | None


def rolled_iter(block: Block, loop: str) -> tuple[Iter, int, Expr]:
    """The reduce variable of `block` that runs along `loop`, with a and rest of its value a * loop + rest.

    Raises:
        ScheduleError: there is none, or several, or its value has another form.
    """
    along = [it for it in block.iters if it.kind == "reduce" and loop in variables(it.binding)]
    if len(along) != 1:
        reason = "no reduce iteration does" if not along else f"{', '.join(it.name for it in along)} do"
        raise ScheduleError(
            f"block {block.name!r} does not reduce along loop {loop!r}: {reason}",
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
    """Privatises block `name`, which is under the loop of the variable `loop`, along that loop.

    before ⇒ after (j = j0 * 2 + j1):
        for j0, j1: X[i] = X[i] (f) e(j)   ⇒   for j0, j1: X_local[i, j0] = X_local[i, j0] (f) e(j0 * 2 + j1)
                                                for j0:     X[i] = X[i] (f) X_local[i, j0]

    Args:
        program: the program.
        name: the reduction.
        loop: the loop's variable.
        part: the role of the local block, `Role.LOCAL` or `Role.TILE`.
        outside: whether the global block gets new loops; otherwise it shares `loop` and those around it.

    Returns:
        The program with the local block in place of `name`, and the global block.

    Raises:
        ScheduleError: the block does not reduce along `loop`, or also along an outer loop.
    """
    _, block, loops = tree.find_block(program, name)
    match_reduction(block)
    depth = tree.depth_of(loops, loop)
    it, step, rest = rolled_iter(block, loop)
    outer = {x.var for x in loops[:depth]}
    if along := [x.var for x in loops[:depth] if x.var in variables(rest)]:
        raise ScheduleError(
            f"block {name!r} reduces along {loop!r} and along the outer loop {along[0]!r} as well",
            node=name,
            help=f"name the outer loop, {along[0]!r}; or take this step along it first, then along {loop!r}",
        )
    one_element_each = step == 1 and rest == Const(0) and len([i for i in block.iters if i.kind == "reduce"]) == 1
    if one_element_each and loops[depth].extent > 1:  # a single element has its tile of one
        return Private(program, name, None)
    split = _split_of(program, block, it, loops[depth], part, outer)
    local = _local_block(block, it, step, rest, split)
    inside = {x.var: x.extent for x in loops[depth + 1 :]}
    combining = _global_nest(block, it, split, None if outside else inside)
    buffer = program.buffer(block.writes)
    shape = (*buffer.shape[: split.axis], split.count, *buffer.shape[split.axis :])
    program = with_buffers(program, Buffer(split.read.buffer, shape, buffer.dtype))
    program = tree.replace_block(program, name, local)
    return Private(program, local.name, combining)


@dataclass(frozen=True, slots=True)
class _Split:
    """Names in a privatised reduction.

    Args:
        local: the local block. role: its role.
        loop: the loop's variable. count: its extent.
        tag, inner: the iteration variables that replace the reduce variable.
        axis: the dimension of the local buffer that the tag indexes.
        read: the element of the local buffer that the block computes at a tag.
    """

    local: str
    role: Role
    loop: str
    count: int
    tag: str
    inner: str
    axis: int
    read: Load


def _split_of(program: Program, block: Block, it: Iter, loop: Loop, part: Role, outer: set[str]) -> _Split:
    others = {i.name for i in block.iters}
    tag = unique(f"{it.name}0", others, "_")
    inner = unique(f"{it.name}1", {*others, tag}, "_")
    spatial = [i for i in block.iters if i.kind == "spatial"]
    # The tag comes after the dimensions that run along the loop or loops around it.
    shared = [n for n, i in enumerate(spatial) if variables(i.binding) & (outer | {loop.var})]
    position = {index.name: n for n, index in enumerate(block.body.indices) if isinstance(index, Var)}
    axis = max((position.get(i.name, -1) + 1 for i in spatial[: shared[-1] + 1 if shared else 0]), default=0)
    indices = (*block.body.indices[:axis], Var(tag), *block.body.indices[axis:])
    read = Load(fresh(program, f"{block.writes}_{part}"), indices)
    return _Split(fresh(program, f"{block.name}_{part}"), part, loop.var, loop.extent, tag, inner, axis, read)


def _local_block(block: Block, it: Iter, step: int, rest: Expr, split: _Split) -> Block:
    """The block that folds each tile on its own."""
    reduction = match_reduction(block)
    turns, within = quotient(rest, step * split.count)
    value = add(mul(Var(split.tag), step), Var(split.inner))
    own = [Iter(split.tag, split.count, "spatial", Var(split.loop))]
    if turns != Const(0):  # tiles are dealt to the iterations of the loop in turn
        outer = unique(f"{it.name}2", {i.name for i in block.iters} | {split.tag, split.inner}, "_")
        own.append(Iter(outer, -(-it.extent // (step * split.count)), "reduce", turns))
        value = add(mul(Var(outer), step * split.count), value)
    if step == 1 and within == Const(0) and sum(i.kind == "reduce" for i in block.iters) > 1:
        value = Var(split.tag)  # the other variables are all that is left to fold
    else:
        own.append(Iter(split.inner, step, "reduce", within))
    term = substitute(reduction.term, {it.name: value})
    pair = tuple(own)
    return Block(
        split.local,
        tuple(x for i in block.iters for x in (pair if i.name == it.name else (i,))),
        Store(split.read.buffer, split.read.indices, Op(OPERATORS[reduction.reducer], (split.read, term))),
        Store(split.read.buffer, split.read.indices, reduction.identity),
        block.predicates,
        origin=block.origin,
        role=split.role,
    )


def _global_nest(block: Block, it: Iter, split: _Split, inside: Mapping[str, int] | None) -> Stmt:
    """The block that folds the tiles, in its loops.

    Args:
        inside: the loops inside the privatised one, by extent, which the block shares; None: it gets new loops.
    """
    reduction = match_reduction(block)
    spatial = [i for i in block.iters if i.kind == "spatial"]
    if inside is None:
        extents = {i.name: i.extent for i in spatial} | {split.tag: split.count}
        iters = [replace(i, binding=Var(i.name)) for i in spatial]
        predicates: tuple[Expr, ...] = ()
    else:
        used = {var for i in spatial for var in variables(i.binding)}
        extents = {var: extent for var, extent in inside.items() if var in used}
        iters = spatial
        gone = set(inside) - set(extents)
        predicates = tuple(p for p in block.predicates if not variables(p) & gone and not _bounds(p, it, split.loop))
    tag = Iter(split.tag, split.count, "reduce", Var(split.tag if inside is None else split.loop))
    value = Op(OPERATORS[reduction.reducer], (Load(block.writes, block.body.indices), split.read))
    combining = Block(
        block.name,
        (*iters, tag),
        Store(block.writes, block.body.indices, value),
        Store(block.writes, block.body.indices, reduction.identity),
        predicates,
        origin=block.origin,
        role=Role.GLOBAL,
    )
    return tree.loop_nest(list(extents.items()), combining)


def _bounds(predicate: Expr, it: Iter, loop: str) -> bool:
    """Whether a predicate bounds the reduced dimension. The global block needs none: a tile past the bound holds the
    identity."""
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
            f"each iteration of loop {loop!r} folds a single element of {name!r}: there is nothing to make private",
            node=name,
            help=f"split it first, for example split({loop!r}, (None, 2))",
        )
    path, _, _ = tree.find_block(made.program, made.local)
    program = tree.edit(made.program, path[:1], lambda stmt: (stmt, made.global_stmt))  # type: ignore[arg-type]
    note = f"{name} is split along {var}: {made.local} folds each tile, {name} folds the tiles."
    return plain("privatize_reduction", program, note, (made.local,))
