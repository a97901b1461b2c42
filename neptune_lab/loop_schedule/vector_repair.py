"""Vector repair in loops: a sum that cannot be repaired alone carries companion sums (`repair.vector`, past the paper).

before ⇒ after, for the sum of (c - r)**2 with the sum of c - r as its companion and n(t) elements before tag t:

    for t: R⟨t⟩[i] = R⟨t-1⟩[i] + …                  for t: R⟨t⟩[i] = R⟨t-1⟩[i] + …
           X[i] = X[i] + (c - R⟨t⟩[i])**2     ⇒            X_d1⟨t⟩[i] = (X_d1⟨t-1⟩[i] - s * n(t)) + (c - R⟨t⟩[i])
                                                           X[i] = (X[i] - 2 * s * X_d1⟨t-1⟩[i] + s * s * n(t))
                                                                  + (c - R⟨t⟩[i])**2
                                                           with s = R⟨t⟩[i] - R⟨t-1⟩[i]

Companions keep their tags, so each sum reads the others as they were before this iteration, in whatever order they
stand.  A component that is 1 is the number of elements so far, which needs no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import fresh
from neptune_lab.loop_ir.nodes import (
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Previous,
    Program,
    Stmt,
    Store,
    Var,
    mul,
    with_buffers,
)
from neptune_lab.loop_ir.roles import RepairInfo, Role
from neptune_lab.loop_ir.walks import bound_loops, loads, map_store, transform, variables
from neptune_lab.loop_schedule.guards import TagReads, producer_values
from neptune_lab.loop_schedule.primitives.materialize_tags import cache_reduction_results, own_tag
from neptune_lab.loop_schedule.vector_matrix import moved_sum, reference_step
from neptune_lab.loop_schedule.vector_solve import FamilyRepair
from neptune_lab.loop_to_repair.lower import lower

if TYPE_CHECKING:
    from sympy import Symbol


# -- companions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Member:
    """One carried sum: the block that carries it from tag to tag, and its local block (the same one, where the loop
    walks single elements).  Both are None for the number of elements, which no block carries."""

    whole: str | None
    local: str | None


def add_companions(
    program: Program, block: str, local: str, var: str, repair: FamilyRepair
) -> tuple[Program, list[Member]]:
    """A sum beside `block` for every further component of its family: same loops, same tiles, starting from 0.

    Returns:
        the program, in which nothing is repaired yet, and the family's members, `block` itself first.
    """
    dtype = program.buffer(tree.find_block(program, block)[1].writes).dtype
    members = {0: Member(block, local)}
    # The last one first: each then stands behind those whose previous values it reads.
    for k in range(repair.term.size - 1, 0, -1):
        component = repair.term.components[k]
        members[k] = Member(None, None)
        if component != 1:
            term = lower(repair.term.companion(k), repair.values, dtype)
            program, members[k] = _copied(program, block, local, var, f"d{k}", term)
    return program, [members[k] for k in range(repair.term.size)]


def _copied(program: Program, block: str, local: str, var: str, suffix: str, term: Expr) -> tuple[Program, Member]:
    """`block` and its local block copied, folding `term`; the copies stand right before `block`."""
    buffers: dict[str, str] = {}
    names: dict[str, str] = {}
    for name in dict.fromkeys((block, local)):
        _, original, _ = tree.find_block(program, name)
        tail = original.name.removeprefix(block)
        names[name] = fresh(program, f"{block}_{suffix}{tail}")
        old = program.buffer(original.writes)
        same = names[name] if original.writes == name else f"{original.writes.removesuffix(tail)}_{suffix}{tail}"
        buffers[original.writes] = same if same == names[name] else fresh(program, same)
        program = with_buffers(program, Buffer(buffers[original.writes], old.shape, old.dtype))

    def retarget(e: Expr) -> Expr:
        return Load(buffers[e.buffer], e.indices) if isinstance(e, Load) and e.buffer in buffers else e

    def copy(original: Block) -> Block:
        body = original.body
        if original.name == local:
            body = replace(body, value=Op("add", (Load(body.buffer, body.indices), term)))
        body = map_store(body, lambda e: transform(e, retarget))
        assert original.init is not None
        return replace(
            original,
            name=names[original.name],
            body=replace(body, buffer=buffers[original.writes]),
            init=replace(original.init, buffer=buffers[original.writes]),
            repair=None,
            companion_of=block,
            estimates=(),
        )

    nests = []
    for name in dict.fromkeys((local, block)):
        path, _, loops = tree.find_block(program, name)
        depth = tree.depth_of(loops, var)
        nests.append(_nest_of(_statement_at(program, path[: depth + 2]), name, copy))
    path, _, loops = tree.find_block(program, block)
    program = tree.insert_before(program, path[: tree.depth_of(loops, var) + 2], tuple(nests))
    return program, Member(names[block], names[local])


def _statement_at(program: Program, path: tree.Path) -> Stmt:
    return next(stmt for found, stmt, _ in tree.statements(program) if found == path)


def _nest_of(stmt: Stmt, name: str, change: Callable[[Block], Block]) -> Stmt:
    """The loops around block `name` in `stmt`, with the changed block alone in them."""
    if isinstance(stmt, Block):
        return change(stmt)
    inner = next(s for s in stmt.body if any(b.name == name for b in tree.blocks_under(s)))
    return replace(stmt, body=(_nest_of(inner, name, change),))


# -- the matrix ---------------------------------------------------------------------------------------------


def apply_family(
    program: Program,
    members: Sequence[Member],
    repair: FamilyRepair,
    var: str,
    moment: Callable[[Block], TagReads],
    info: RepairInfo,
) -> Program:
    """Tags on the companions, and A on everything that is carried.

    Args:
        var: the rolling loop.
        moment: where a block reads the producers' values.
        info: what the repaired blocks carry.
    """
    term, progress = repair.term, repair.progress
    # Where another row reads the consumer's own sum, that keeps its tags too.
    for member in members if term.reads_first else members[1:]:
        if member.whole is not None:
            program = cache_reduction_results(program, member.whole)

    def values_in(block: Block) -> dict[Symbol, Expr]:
        dtype = program.buffer(block.writes).dtype
        return producer_values(term, repair, moment(block), program, dtype=dtype)

    step: Load | None = None
    if term.by_difference and any(term.step in entry.free_symbols for entry in term.by_step.flat()):
        first = tree.find_block(program, members[0].whole or "")[1]
        moved = reference_step(term, repair.reference, values_in(first), program.buffer(first.writes).dtype)
        program, step = _with_step(program, members, var, moved)
    for row, member in enumerate(members):
        if member.whole is None:
            continue
        _, whole_block, _ = tree.find_block(program, member.whole)
        assert isinstance(whole_block.body.value, Op)
        carried, added = whole_block.body.value.args
        dtype = program.buffer(whole_block.writes).dtype
        spatial = whole_block.body.indices[1:] if whole_block.role is Role.SCAN else whole_block.body.indices
        tag = own_tag(whole_block, var)
        sums: list[Expr] = []
        for other in members:
            if other is member:
                sums.append(carried)
            elif other.whole is None:
                sums.append(Cast(dtype, mul(progress.seen_before(tag), progress.terms)))
            else:
                sums.append(_before(program, other.whole, (tag, *spatial)))
        values = values_in(whole_block) if step is None else {term.step: step}
        value = Op("add", (moved_sum(row, sums, term, values, dtype), added))
        body = Store(whole_block.body.buffer, whole_block.body.indices, value)
        program = tree.replace_block(program, member.whole, replace(whole_block, body=body, repair=info))
    return program


def _with_step(program: Program, members: Sequence[Member], var: str, value: Expr) -> tuple[Program, Load]:
    """A stage before all sums of the family that computes how far the reference moves at this tag, and its read."""
    block = members[0].whole
    assert block is not None
    _, reduction, loops = tree.find_block(program, block)
    depth = tree.depth_of(loops, var)
    read = set().union(*(variables(e) for e in loads(value)))
    tag = variables(own_tag(reduction, var))
    along = [it for it in reduction.iters if it.name in tag]
    iters = [it for it in reduction.iters if it.kind == "spatial" and it.name in read and it.name not in tag]
    used = bound_loops(iters)
    name = fresh(program, f"{block}_step")
    index = tuple(Var(it.name) for it in iters)
    stage = Block(
        name,
        (*iters, *(replace(it, kind="spatial") for it in along)),
        Store(name, index, value),
        None,
        tuple(p for p in reduction.predicates if variables(p) <= used | {x.var for x in loops[: depth + 1]}),
        origin=reduction.origin,
        role=Role.ROLLED,
        companion_of=block,
    )
    inner = [(x.var, x.extent) for x in loops[depth + 1 :] if x.var in used]
    dtype = program.buffer(reduction.writes).dtype
    program = with_buffers(program, Buffer(name, tuple(it.extent for it in iters), dtype))
    names = [name for m in members for name in (m.local, m.whole) if name is not None]
    place = min(tree.find_block(program, name)[0][: depth + 2] for name in names)
    return tree.insert_before(program, place, (tree.loop_nest(inner, stage),)), Load(name, index)


def _before(program: Program, block: str, index: tuple[Expr, ...]) -> Expr:
    """The value that a companion had before this tag; a sum that is never read so is the consumer itself."""
    _, found, _ = tree.find_block(program, block)
    if found.role is not Role.SCAN:
        return Load(found.writes, index[1:])
    return Previous(found.writes, index, Const(0.0, program.buffer(found.writes).dtype))
