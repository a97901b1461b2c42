"""Naive loop fusion: a block moved under a loop, dependences set aside (paper, section 4.2, step 2).

Which loop of the moved block runs along which loop there is read off the tensors that both touch (and else off the
blocks that read both): where the block
reads `score[i, j]` with its own `j`, and a block under the target writes `score[..., j0 * 64 + j1]`, then its `j`
is `j0 * 64 + j1`.  Loops inside the target are copied, loops around it shared, and what runs along neither becomes a
fresh loop of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import early_read
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.iteration_domain import iteration_domain
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import (
    Block,
    Const,
    Expr,
    Iter,
    Loop,
    Op,
    Program,
    Stmt,
    Var,
    add,
    bound_loops,
    loads,
    mul,
    substitute,
    variables,
    walk,
)
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.simplify import bounds, simplify


def loop_ref(ref: str) -> tuple[str, str]:
    """`"block.loop"` as its two names; ScheduleError where it has another form."""
    block, dot, loop = ref.partition(".")
    if not dot or not block or not loop:
        raise ScheduleError(
            f"{ref!r} does not name a loop",
            help='write "block.loop", for example "s_max.j", as Schedule.loops lists them',
        )
    return block, loop


@dataclass(frozen=True, slots=True)
class Alignment:
    """How a block sits under a target loop: its new iterations, the loops inside the target, and its predicates.

    `uncovered` says, a sentence each, which anchors do not visit all values of an iteration.
    """

    iters: tuple[Iter, ...]
    inner: tuple[tuple[str, int], ...]
    predicates: tuple[Expr, ...]
    uncovered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A block under the target, with an index that it has there, over loops."""

    block: Block
    value: Expr
    loops: tuple[Loop, ...]
    extents: Mapping[str, int]

    def inner(self) -> dict[str, int]:
        """The loops inside the target that the index runs along."""
        return {x.var: x.extent for x in self.loops if x.var in variables(self.value)}

    def covers(self, *iters: Iter) -> bool:
        """Whether iterations so bound, over the anchor's loops, take all of their values, in every combination, and no
        other ones, where the anchor runs."""
        found = iteration_domain(iters, self.block.predicates, tuple(self.extents.items()))
        return not found.unknown and all(
            group.ranges == tuple((0, it.extent - 1) for name in group.iters for it in iters if it.name == name)
            and group.count == prod(high - low + 1 for low, high in group.ranges)
            for group in found.groups
        )


def _accesses(block: Block) -> list[tuple[str, int, Expr]]:
    """(buffer, dimension, index) of the store and every read, the store first; tags of scan buffers are left out."""
    found = [(block.body.buffer, n, index) for n, index in enumerate(block.body.indices)]
    for read in loads(block.body.value):
        found += [(read.buffer, n, index) for n, index in enumerate(read.indices)]
    return found


def align(program: Program, block: Block, target: tree.Path) -> Alignment:
    """Where the iterations of `block` would stand under the loop at `target`.

    Formal statement: an iteration v of `block` is bound to an index e of a block under the target only if both stand
    for the same positions, i.e. `block` uses v, or v plus iterations bound already, where that block uses e; if e takes
    exactly the values of range(extent of v) over the loops and predicates of that block; and if no loop of extent 2 or
    more that occurs in e has been used for another iteration.  Otherwise another anchor is tried, and at last v gets a
    loop of its own.
    """
    loop: Stmt | None = None
    around: tuple[Loop, ...] = ()
    inside: list[tuple[Block, tuple[Loop, ...]]] = []
    for path, stmt, loops in tree.statements(program):
        if path == target:
            loop, around = stmt, loops
        elif path[: len(target)] == target and isinstance(stmt, Block) and stmt.name != block.name:
            inside.append((stmt, loops[len(target) :]))
    assert isinstance(loop, Loop)
    outer = {candidate.var: candidate.extent for candidate in (*around, loop)}
    # Dataflow first: what is written under the target; then inputs that both read.
    known: dict[tuple[str, int], list[_Anchor]] = {}
    for written in (True, False):
        for anchor, loops in inside:
            env = {it.name: it.binding for it in anchor.iters}
            ranges = {**outer, **{x.var: x.extent for x in loops}}
            for buffer, dim, index in _accesses(anchor):
                if (buffer == anchor.writes) == written:
                    known.setdefault((buffer, dim), []).append(_Anchor(anchor, substitute(index, env), loops, ranges))
    extents: dict[str, int] = {}
    iters, predicates, uncovered = [], [], []
    taken: list[tuple[_Anchor, set[str]]] = []
    shared = _shared_bindings(program, block, target)

    def free(it: Iter, value: Expr, anchor: _Anchor) -> bool:
        """Whether the loops of `value` leave the iterations that are bound to them already independent of it."""
        wide = {var for var in variables(value) if anchor.extents.get(var, 2) > 1}
        beside = [other for other in iters if variables(other.binding) & wide]
        return not beside or anchor.covers(*beside, replace(it, binding=value))

    def candidates(it: Iter) -> Iterator[tuple[_Anchor, Expr]]:
        for buffer, dim, index in _accesses(block):
            for anchor in known.get((buffer, dim), []):
                if index == Var(it.name):
                    if anchor.covers(replace(it, binding=anchor.value)):
                        yield anchor, anchor.value
                    else:
                        uncovered.append(_uncovered(block, it, anchor, buffer, dim))
                elif it.name in variables(index):
                    part = _part(index, it, anchor, shared)
                    if part is not None:
                        yield anchor, part
        yield from _same_dimension(program, block, it, inside, outer)

    for it in block.iters:
        if it.name in shared:
            iters.append(it)
            continue
        candidate = next(((a, value) for a, value in candidates(it) if free(it, value, a)), None)
        if candidate is None:
            name = unique(it.name, {*outer, *extents}, "_")
            extents[name] = it.extent
            iters.append(replace(it, binding=Var(name)))
            continue
        anchor, value = candidate
        inner = {var: extent for var, extent in anchor.inner().items() if var in variables(value)}
        taken.append((anchor, set(inner)))
        extents.update(inner)
        iters.append(replace(it, binding=value))
    for anchor, _ in taken:
        # An anchor speaks of its own loops only: another one may have a loop of the same name.
        own = set(outer).union(*(inner for other, inner in taken if other.block.name == anchor.block.name))
        for predicate in anchor.block.predicates:
            if variables(predicate) <= own and predicate not in predicates:
                predicates.append(predicate)
    return Alignment(tuple(iters), tuple(extents.items()), tuple(predicates), tuple(dict.fromkeys(uncovered)))


def _uncovered(block: Block, it: Iter, anchor: _Anchor, buffer: str, dim: int) -> str:
    """Why an anchor does not do for an iteration, in words."""
    there = iteration_domain(
        (replace(it, binding=anchor.value),), anchor.block.predicates, tuple(anchor.extents.items())
    )
    limits = there.range(it.name)
    span = expression(anchor.value) if limits is None else f"{limits[0]} to {limits[1]}"
    if limits is not None and there.groups[0].count < limits[1] - limits[0] + 1:
        span = f"{there.groups[0].count} of {span}"
    return (
        f"block {block.name!r} needs 0 to {it.extent - 1} of dimension {dim} of {buffer!r} along {it.name!r}, "
        f"block {anchor.block.name!r} visits {span}"
    )


def _same_dimension(
    program: Program,
    block: Block,
    it: Iter,
    inside: list[tuple[Block, tuple[Loop, ...]]],
    outer: Mapping[str, int],
) -> Iterator[tuple[_Anchor, Expr]]:
    """Where a block under the target runs along the dimension of `it`, though the two share no tensor: that they do
    shows in blocks that read both. Any order of its own iterations is right for a block; `check_reads` sees to what it
    reads."""
    dims = dimensions(program)
    for block_there, loops in inside:
        name = dims.all_of(block_there).get(dims.of(block, it.name))
        if name is None or not variables(block_there.iter(name).binding):
            continue
        value = block_there.iter(name).binding
        anchor = _Anchor(block_there, value, loops, {**outer, **{x.var: x.extent for x in loops}})
        if anchor.covers(replace(it, binding=value)):
            yield anchor, value


def _shared_bindings(program: Program, block: Block, target: tree.Path) -> dict[str, Expr]:
    """Iterations that are bound to loops which the block and the target stand under already: they stay."""
    if not tree.has_block(program, block.name):
        return {}
    path, _, loops = tree.find_block(program, block.name)
    depth = 0
    while depth < min(len(path) - 1, len(target)) and path[depth] == target[depth]:
        depth += 1
    outer = {loop.var for loop in loops[:depth]}
    return {it.name: it.binding for it in block.iters if (used := variables(it.binding)) and used <= outer}


def _part(index: Expr, it: Iter, anchor: _Anchor, shared: dict[str, Expr]) -> Expr | None:
    """The value of `it` where `index`, a sum of `it` and shared iterations, has the anchor's value; None where it has
    none, or does not take all values of `it`."""
    split = affine_terms(index, it.name)
    if split is None or split[0] != 1 or not variables(split[1]) <= shared.keys():
        return None
    part = difference(anchor.value, substitute(split[1], shared))
    return part if part is not None and anchor.covers(replace(it, binding=part)) else None


def difference(a: Expr, b: Expr) -> Expr | None:
    """a - b for sums of multiples of variables, where every term of `b` is a term of `a`; None otherwise."""
    terms, less = _terms(a), _terms(b)
    if terms is None or less is None:
        return None
    for var, factor in less.items():
        if terms.pop(var, None if var else 0) != factor:
            return None
    result: Expr = Const(0)
    for var, factor in terms.items():
        result = add(result, mul(Var(var), factor) if var else Const(factor))
    return result


def _terms(expr: Expr) -> dict[str, int] | None:
    """Factor by variable, in order ("" for the constant); None where it is no such sum."""
    found: dict[str, int] = {}
    for var in dict.fromkeys(e.name for e in walk(expr) if isinstance(e, Var)):
        split = affine_terms(expr, var)
        if split is None:
            return None
        found[var], expr = split
    if not isinstance(expr, Const):
        return None
    return found if expr.value == 0 else {**found, "": int(expr.value)}


def under(program: Program, name: str, target: tree.Path) -> bool:
    """Whether the block `name` is inside the loop at `target`."""
    path, _, _ = tree.find_block(program, name)
    return path[: len(target)] == target


def fuse_naively(program: Program, name: str, target_ref: str) -> Program:
    """`name` moved to the end of the target loop's body. No dependence is checked: that is the point.

    before ⇒ after:
        for i, j: A[i, j] = …          for i, j:
        for i, j: B[i] += A[i, j]  ⇒       A[i, j] = …
                                           B[i] += A[i, j]
    """
    target, loop, around = tree.find_loop(program, *loop_ref(target_ref))
    _, block, _ = tree.find_block(program, name)
    aligned = align(program, block, target)
    moved = replace(block, iters=aligned.iters, predicates=aligned.predicates)
    bound = bound_loops(aligned.iters)
    missing = [found.var for found in (*around, loop) if found.extent > 1 and found.var not in bound]
    if missing and block.is_reduction:
        raise cannot_align(name, target_ref, missing[-1], aligned)
    if under(program, name, target):
        return program
    program = tree.remove(program, name)
    target, _, _ = tree.find_loop(program, *loop_ref(target_ref))
    return tree.append_to_loop(program, target, (tree.loop_nest(list(aligned.inner), moved),))


def cannot_align(name: str, target_ref: str, loop: str, aligned: Alignment) -> ScheduleError:
    """The refusal of a block that no tensor aligns with `loop`, with the sizes found where an anchor is too small."""
    if aligned.uncovered:
        return ScheduleError(
            f"block {name!r} cannot be fused under {target_ref}: {aligned.uncovered[0]}",
            node=name,
            help="fuse blocks that run over the same range of a dimension, or keep them in separate nests",
        )
    return ScheduleError(
        f"block {name!r} cannot be fused under {target_ref}: no tensor that it shares with the blocks there "
        f"runs along loop {loop!r}",
        node=name,
        help="choose a loop that runs over a dimension that the block and the blocks there both use",
    )


def names_under(program: Program, target_ref: str) -> frozenset[str]:
    """Names of the blocks inside the target loop."""
    _, loop, _ = tree.find_loop(program, *loop_ref(target_ref))
    return frozenset(b.name for b in tree.blocks_under(loop))


def check_reads(program: Program, names: Collection[str], target_ref: str) -> None:
    """The blocks `names`, just moved under the target loop, find there what they read; ScheduleError otherwise.

    Formal statement: every block comes after the writers of what it reads; and where, for a read X[p] of one of
    `names`, a writer X[q] stands under the target too, p is inside what it has written by then: dimension by
    dimension, p and q take the same steps along the target and the loops around it, and p's range inside the target
    is within q's.  So the only reads that come too early are of reductions at their own element, which is what a
    repair mends.
    """
    _, loop, around = tree.find_loop(program, *loop_ref(target_ref))
    outer = [found.var for found in (*around, loop)]
    if early := early_read(program):
        reader, buffer, late = early
        moved = late in names
        raise ScheduleError(
            f"block {reader!r} would read {buffer!r} before {late!r} writes it, "
            f"once {repr(late) if moved else 'it'} is under {target_ref}",
            node=reader,
            help=f"choose a loop that comes before {reader!r}"
            if moved
            else f"bring {late!r} under {target_ref} first: reverse_compute_at({late!r}, {target_ref!r}) if it is "
            "elementwise (or inline it), rolling_update if it is a reduction",
        )
    inside = names_under(program, target_ref)
    places = {stmt.name: loops for _, stmt, loops in tree.statements(program) if isinstance(stmt, Block)}
    for name in names:
        _, block, _ = tree.find_block(program, name)
        for read in dict.fromkeys(loads(block.body.value)):
            writers = [b for b in tree.blocks(program) if b.writes == read.buffer and b.name != name]
            for writer in writers:
                if writer.name not in inside or read.indices == ():
                    continue
                wanted = _places(read.indices, block, places[name])
                written = _places(writer.body.indices, writer, places[writer.name])
                extents = {x.var: x.extent for x in (*places[name], *places[writer.name])}
                if not all(_within(p, q, outer, extents) for p, q in zip(wanted, written, strict=True)):
                    raise ScheduleError(
                        f"block {name!r} under {target_ref} would read {_shown(read.buffer, wanted)}, but what is "
                        f"written there by then is {_shown(read.buffer, written)}",
                        node=name,
                        help=f"fuse at a loop where {read.buffer!r} is complete, or read it at the element that "
                        f"{writer.name!r} is computing",
                    )


def _places(indices: tuple[Expr, ...], block: Block, loops: tuple[Loop, ...]) -> tuple[Expr, ...]:
    env = {it.name: it.binding for it in block.iters}
    extents = {found.var: found.extent for found in loops}
    return tuple(simplify(substitute(i, env), extents) for i in indices)


def _shown(buffer: str, indices: tuple[Expr, ...]) -> str:
    return f"{buffer}[{', '.join(expression(i) for i in indices)}]"


def _within(wanted: Expr, written: Expr, outer: list[str], extents: dict[str, int]) -> bool:
    if wanted == written:
        return True
    for var in outer:
        a, b = affine_terms(wanted, var), affine_terms(written, var)
        if a is None or b is None or a[0] != b[0]:
            return False
        wanted, written = a[1], b[1]
    p, q = bounds(wanted, extents), bounds(written, extents)
    return p is not None and q is not None and q[0] <= p[0] and p[1] <= q[1]


def affine_terms(expr: Expr, var: str) -> tuple[int, Expr] | None:
    """(a, rest) with expr = a * var + rest and rest free of var; None where it is not of that form."""
    match expr:
        case Var(name):
            return (1, Const(0)) if name == var else (0, expr)
        case Const():
            return 0, expr
        case Op("add", (a, b)):
            la, lb = affine_terms(a, var), affine_terms(b, var)
            return None if la is None or lb is None else (la[0] + lb[0], add(la[1], lb[1]))
        case Op("mul", (a, Const(k))) | Op("mul", (Const(k), a)):
            la = affine_terms(a, var)
            return None if la is None else (la[0] * int(k), mul(la[1], int(k)))
    return None if var in variables(expr) else (0, expr)


def restore_unit_loops(program: Program) -> Program:
    """Bindings mention loops of extent 1 again, which TVM leaves out when it moves a block under them.

    `j = j1` under `for j0 in range(1)` becomes `j = j0 * 64 + j1`, as it stands in the blocks that were there before:
    the same value, and a rolling loop of one iteration stays a rolling loop.
    """
    found = [(path, stmt, loops) for path, stmt, loops in tree.statements(program) if isinstance(stmt, Block)]
    for path, block, loops in found:
        changed = block
        for depth, loop in enumerate(loops):
            if loop.extent != 1 or loop.var in bound_loops(changed.iters):
                continue
            beside = [b for p, b, _ in found if p[: depth + 1] == path[: depth + 1] and b.name != block.name]
            changed = _along_unit(changed, loop.var, beside)
        if changed is not block:
            program = tree.replace_block(program, block.name, changed)
    return program


def _along_unit(block: Block, loop: str, beside: list[Block]) -> Block:
    for other in beside:
        steps = {i.name: split[0] for i in other.iters if (split := affine_terms(i.binding, loop)) and split[0] > 0}
        theirs = {(b, d): i.name for b, d, i in _accesses(other) if isinstance(i, Var) and i.name in steps}
        for buffer, dim, index in _accesses(block):
            if isinstance(index, Var) and (buffer, dim) in theirs:
                step = steps[theirs[buffer, dim]]
                iters = tuple(
                    replace(i, binding=add(mul(Var(loop), step), i.binding)) if i.name == index.name else i
                    for i in block.iters
                )
                return replace(block, iters=iters)
    return block
