"""Alignment of a block with a loop that it is to be fused under: the values of its iteration variables there.

The values are read off the tensors that the block and the blocks under the loop both access, or else off the blocks
that read both.  If the block reads `score[i, j]`, and a block under the loop writes `score[..., j0 * 64 + j1]`, then
the block's `j` is `j0 * 64 + j1`.  Loops inside the target are copied, and loops around it are shared.  An iteration
variable that runs along neither gets a new loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.iteration_domain import iteration_domain
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Iter, Loop, Program, Var
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.walks import loads, substitute, variables
from neptune_lab.loop_schedule.affine import affine_terms, difference, quotient


@dataclass(frozen=True, slots=True)
class Alignment:
    """A block under a target loop.

    Args:
        iters: its iteration variables, with their new values.
        inner: its loops inside the target, by name and extent.
        predicates: the conditions under which it runs.
        uncovered: why an anchor was refused because it does not take all values of a variable; one sentence each.
    """

    iters: tuple[Iter, ...]
    inner: tuple[tuple[str, int], ...]
    predicates: tuple[Expr, ...]
    uncovered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Anchor:
    """An index in a block under the target, from which a variable of the moved block can take its value.

    Args:
        block: the block under the target.
        value: the index, over loops.
        loops: the loops around the block, inside the target.
        extents: of these loops, the target and the loops around it.
    """

    block: Block
    value: Expr
    loops: tuple[Loop, ...]
    extents: Mapping[str, int]

    def inner(self) -> dict[str, int]:
        """The loops inside the target that the index contains, with their extents."""
        return {x.var: x.extent for x in self.loops if x.var in variables(self.value)}

    def covers(self, *iters: Iter) -> bool:
        """Whether variables with these values take exactly the combinations of range(extent) of each, over the
        anchor's loops and predicates."""
        domain = iteration_domain(iters, self.block.predicates, tuple(self.extents.items()))
        return not domain.unknown and all(
            group.ranges == tuple((0, it.extent - 1) for name in group.iters for it in iters if it.name == name)
            and group.count == prod(high - low + 1 for low, high in group.ranges)
            for group in domain.groups
        )


@dataclass(frozen=True, slots=True)
class _Target:
    """A target loop as a block that is to be moved under it sees it.

    Args:
        outer: the extents of the target loop and the loops around it.
        inside: the other blocks in the loop, each with the loops between.
        anchors: the indices of these blocks, by buffer and dimension: those of stores first, then those of reads.
    """

    outer: Mapping[str, int]
    inside: tuple[tuple[Block, tuple[Loop, ...]], ...]
    anchors: Mapping[tuple[str, int], list[_Anchor]]


def accesses(block: Block) -> list[tuple[str, int, Expr]]:
    """(buffer, dimension, index) of the store and of every read, the store first."""
    pairs = [(block.body.buffer, block.body.indices), *((r.buffer, r.indices) for r in loads(block.body.value))]
    return [(buffer, n, index) for buffer, indices in pairs for n, index in enumerate(indices)]


def align(program: Program, block: Block, target: tree.Path) -> Alignment:
    """The iteration variables of `block` as they would be under the loop at `target`.

    Formal statement: a variable v of `block` gets the value of an index e of a block under the target only if both
    mean the same positions, i.e. `block` uses v, or v plus variables with a value, where that block uses e; if e takes
    exactly the values of range(extent of v) over the loops and predicates of that block; and if no loop of extent 2 or
    more that occurs in e is in the value of another variable.  Otherwise another anchor is tried, and if none fits, v
    gets a new loop.

    Args:
        program: the program.
        block: a block, which need not be in the program.
        target: the path of the loop.

    Returns:
        The alignment; nothing in the program changes.
    """
    there = _target(program, block, target)
    shared = _shared_bindings(program, block, target)
    extents: dict[str, int] = {}
    iters: list[Iter] = []
    used: list[tuple[_Anchor, set[str]]] = []
    uncovered: list[str] = []
    for it in block.iters:
        if it.name in shared:
            iters.append(it)
            continue
        candidates = _candidates(program, block, it, there, shared, uncovered)
        candidate = next(((a, value) for a, value in candidates if _is_free(iters, it, value, a)), None)
        if candidate is None:
            name = unique(it.name, {*there.outer, *extents}, "_")
            extents[name] = it.extent
            iters.append(replace(it, binding=Var(name)))
            continue
        anchor, value = candidate
        inner = {var: extent for var, extent in anchor.inner().items() if var in variables(value)}
        used.append((anchor, set(inner)))
        extents.update(inner)
        iters.append(replace(it, binding=value))
    predicates = _predicates(there, used)
    return Alignment(tuple(iters), tuple(extents.items()), predicates, tuple(dict.fromkeys(uncovered)))


def _target(program: Program, block: Block, target: tree.Path) -> _Target:
    loop, around = next((stmt, loops) for path, stmt, loops in tree.statements(program) if path == target)
    assert isinstance(loop, Loop)
    outer = {x.var: x.extent for x in (*around, loop)}
    inside = tuple(
        (stmt, loops[len(target) :])
        for path, stmt, loops in tree.statements(program)
        if path != target and path[: len(target)] == target and isinstance(stmt, Block) and stmt.name != block.name
    )
    anchors: dict[tuple[str, int], list[_Anchor]] = {}
    for stores in (True, False):
        for other, loops in inside:
            env = {it.name: it.binding for it in other.iters}
            extents = {**outer, **{x.var: x.extent for x in loops}}
            for buffer, dim, index in accesses(other):
                if (buffer == other.writes) == stores:
                    anchor = _Anchor(other, substitute(index, env), loops, extents)
                    anchors.setdefault((buffer, dim), []).append(anchor)
    return _Target(outer, inside, anchors)


def _candidates(
    program: Program, block: Block, it: Iter, there: _Target, shared: Mapping[str, Expr], uncovered: list[str]
) -> Iterator[tuple[_Anchor, Expr]]:
    """The anchors of a variable, each with the value that it gives; the reasons against others go to `uncovered`."""
    for buffer, dim, index in accesses(block):
        for anchor in there.anchors.get((buffer, dim), []):
            if index == Var(it.name):
                if anchor.covers(replace(it, binding=anchor.value)):
                    yield anchor, anchor.value
                else:
                    uncovered.append(_uncovered(block, it, anchor, buffer, dim))
            elif it.name in variables(index):
                part = _solved_for(block, index, it, anchor, shared)
                if part is not None:
                    yield anchor, part
    yield from _same_dimension(program, block, it, there)


def _is_free(iters: Sequence[Iter], it: Iter, value: Expr, anchor: _Anchor) -> bool:
    """Whether `value` is independent of the values of `iters` that contain the same loops."""
    wide = {var for var in variables(value) if anchor.extents.get(var, 2) > 1}
    sharing = [other for other in iters if variables(other.binding) & wide]
    return not sharing or anchor.covers(*sharing, replace(it, binding=value))


def _predicates(there: _Target, used: Sequence[tuple[_Anchor, set[str]]]) -> tuple[Expr, ...]:
    """The predicates of the anchors' blocks that are about loops which the moved block has too."""
    predicates: dict[Expr, None] = {}
    for anchor, _ in used:
        # Only loops taken from this block: another anchor's block may have a different loop of the same name.
        own = set(there.outer).union(*(inner for other, inner in used if other.block.name == anchor.block.name))
        predicates |= dict.fromkeys(p for p in anchor.block.predicates if variables(p) <= own)
    return tuple(predicates)


def _uncovered(block: Block, it: Iter, anchor: _Anchor, buffer: str, dim: int) -> str:
    """The reason against an anchor that does not take all values of a variable, as a sentence."""
    domain = iteration_domain(
        (replace(it, binding=anchor.value),), anchor.block.predicates, tuple(anchor.extents.items())
    )
    limits = domain.range(it.name)
    span = expression(anchor.value) if limits is None else f"{limits[0]} to {limits[1]}"
    if limits is not None and domain.groups[0].count < limits[1] - limits[0] + 1:
        span = f"{domain.groups[0].count} of {span}"
    return (
        f"block {block.name!r} needs 0 to {it.extent - 1} of dimension {dim} of {buffer!r} along {it.name!r}, "
        f"block {anchor.block.name!r} visits {span}"
    )


def _same_dimension(program: Program, block: Block, it: Iter, there: _Target) -> Iterator[tuple[_Anchor, Expr]]:
    """Anchors in blocks that share no tensor with `block` but run along the dimension of `it`, or read a tensor along
    it by tiles, as blocks that read both show. Any order of its own iterations is right for a block;
    `fusion.check_reads` checks what it reads."""
    dims = dimensions(program)
    wanted = dims.of(block, it.name)
    for other, loops in there.inside:
        name = dims.all_of(other).get(wanted)
        if name is None or not variables(other.iter(name).binding):
            continue
        value = other.iter(name).binding
        anchor = _Anchor(other, value, loops, {**there.outer, **{x.var: x.extent for x in loops}})
        if anchor.covers(replace(it, binding=value)):
            yield anchor, value
    for (buffer, dim), anchors in there.anchors.items():
        if dims.of_axis(buffer, dim) == wanted:
            yield from ((x, x.value) for x in anchors if x.covers(replace(it, binding=x.value)))


def _shared_bindings(program: Program, block: Block, target: tree.Path) -> dict[str, Expr]:
    """The values that stay: of variables over loops that already contain both the block and the target."""
    if not tree.has_block(program, block.name):
        return {}
    path, _, loops = tree.find_block(program, block.name)
    depth = 0
    while depth < min(len(path) - 1, len(target)) and path[depth] == target[depth]:
        depth += 1
    outer = {loop.var for loop in loops[:depth]}
    return {it.name: it.binding for it in block.iters if (used := variables(it.binding)) and used <= outer}


def _solved_for(block: Block, index: Expr, it: Iter, anchor: _Anchor, shared: Mapping[str, Expr]) -> Expr | None:
    """The value of `it` for which `index`, a sum of multiples of variables, equals the anchor's value; None if there is
    none, or if it does not take all values of `it`.

    Shared variables have their values.  The others are digits: each takes the terms of what is left that are multiples
    of its factor and not of a larger one, as the tiles that are dealt to programs in turn have it.
    """
    known: Expr = index
    factors: dict[str, int] = {}
    for other in block.iters:
        if other.name in shared or other.name not in variables(index):
            continue
        split = affine_terms(known, other.name)
        if split is None or split[0] < 1:
            return None
        factors[other.name], known = split
    left = difference(anchor.value, substitute(known, shared)) if variables(known) <= shared.keys() else None
    if left is None:
        return None
    own: Expr = Const(0)
    for name, factor in sorted(factors.items(), key=lambda one: -one[1]):
        value, left = quotient(left, factor)
        if name == it.name:
            own = value
    if left != Const(0):
        return None
    return own if anchor.covers(replace(it, binding=own)) else None


__all__ = ["Alignment", "accesses", "align"]
