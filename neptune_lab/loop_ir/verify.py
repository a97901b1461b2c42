"""What makes a loop program legal; run after every step of a schedule, before tiles and before any native run.

A program is legal if, under the loops and predicates around each block,

1. names are unique and bound: blocks, buffers, the loops around a block, the variables of every expression;
2. every access is inside its buffer;
3. a reduction visits all of its reduced iterations for each element, each once, and starts there, or where a block of
   its own writes the start value right before;
4. every output is written at every element;
5. every read finds what it reads: written before, complete, at all elements that are read.

A scan buffer has an element per tag, so a read of a tag is as complete as any other; what a repair makes good is read
by tag.  Each check is of a block, or of a reader and a writer, and is cached, so a step pays for what it changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.folds import check_fold, check_tags, domains
from neptune_lab.loop_ir.inside import reads_of, verify_bounds
from neptune_lab.loop_ir.nodes import (
    Block,
    Expr,
    Load,
    Loop,
    Previous,
    Program,
    Var,
    bound_loops,
    loads,
    substitute,
    variables,
)
from neptune_lab.loop_ir.reach import as_sum
from neptune_lab.loop_ir.read_cover import Side, uncovered
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.roles import PARTIAL, Role
from neptune_lab.loop_ir.visits import Extents, extents_of, visits


def verify(program: Program, definition: Program | None = None) -> None:
    """Raise ScheduleError where `program` is not legal; see the text of this module for the rules.

    Args:
        program: any program whose phases are meant to be right (a naive fusion is not).
        definition: the program before any step, which says how many elements each stage folds; without it, the number
            of elements in tiles is not compared.
    """
    _verified(program, definition)


@lru_cache(maxsize=512)
def _verified(program: Program, definition: Program | None) -> None:
    verify_bounds(program)
    around = {s.name: (s, loops) for _, s, loops in tree.statements(program) if isinstance(s, Block)}
    known = {} if definition is None else domains(program, definition)
    for block, loops in around.values():
        check_fold(block, extents_of(loops), known.get(block.name))
        check_tags(block, loops)
    paths = {s.name: path for path, s, _ in tree.statements(program) if isinstance(s, Block)}
    order = {name: n for n, name in enumerate(around)}
    writers: dict[str, list[Block]] = {}
    for block, _ in around.values():
        writers.setdefault(block.writes, []).append(block)
    places = _Places(around, paths, order, writers, {b.name: b.shape for b in program.buffers})
    for name, found in writers.items():
        _check_writers(places, name, found)
    _check_outputs(program, places)
    for block, _ in around.values():
        for read, conditions in reads_of(block):
            _check_read(program, places, block, read, conditions)


class _Places:
    """Where every block is."""

    def __init__(
        self,
        around: Mapping[str, tuple[Block, tuple[Loop, ...]]],
        paths: Mapping[str, tree.Path],
        order: Mapping[str, int],
        writers: Mapping[str, list[Block]],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.around, self.paths, self.order, self.writers, self.shapes = around, paths, order, writers, shapes
        self._extents = {name: extents_of(loops) for name, (_, loops) in around.items()}

    def loops(self, block: Block) -> tuple[Loop, ...]:
        return self.around[block.name][1]

    def extents(self, block: Block) -> Extents:
        return self._extents[block.name]

    def shared(self, a: Block, b: Block) -> tuple[Loop, ...]:
        """The loops that both blocks are in."""
        p, q = self.paths[a.name], self.paths[b.name]
        depth = 0
        while depth < min(len(p), len(q)) - 1 and p[depth] == q[depth]:
            depth += 1
        return self.loops(a)[:depth]


# -- 3, 4: start values, outputs -----------------------------------------------------------------------------------


def _starts(block: Block) -> bool:
    """Whether the block writes its buffer without reading it."""
    return not any(read.buffer == block.writes for read in loads(block.body.value))


def _check_writers(places: _Places, buffer: str, found: list[Block]) -> None:
    """Formal statement: a buffer has one writer, and beside it at most a block that writes its start value (before
    it), or the copy of the current to the previous value (role "retire")."""
    starts = [b for b in found if b.role is Role.INITIAL]
    others = [b for b in found if b.role is not Role.INITIAL]
    if len(others) > 1 or len(starts) > 1:
        names = " and ".join(b.name for b in found)
        raise ScheduleError(
            f"{names} all write {buffer!r}", node=found[0].name, help="let each stage write its own tensor"
        )
    if not others:
        return
    block = others[0]
    if block.role is Role.SCAN or (block.init is not None and not starts):
        return
    if not starts:
        if block.is_reduction or not _starts(block):
            raise ScheduleError(
                f"block {block.name!r} folds into {buffer!r}, which nothing starts",
                node=block.name,
                help="undo the step, and try another order of steps",
            )
        return
    start = starts[0]
    if places.order[start.name] > places.order[block.name]:
        raise ScheduleError(
            f"block {start.name!r} would write the start value of {buffer!r} behind {block.name!r}, which folds it",
            node=start.name,
            help=f"keep {start.name!r} before {block.name!r}",
        )
    if not block.is_reduction:
        return
    shared = places.shared(start, block)
    folded = folded_loops(block)
    inside = [x.var for x in shared if x.extent > 1 and x.var in folded]
    if inside:
        raise ScheduleError(
            f"block {start.name!r} would write the start value of {buffer!r} again in every iteration of loop "
            f"{inside[0]!r}, along which {block.name!r} folds",
            node=start.name,
            help=f"keep {start.name!r} before loop {inside[0]!r}",
        )
    idle = visits(block.iters, block.predicates, places.extents(block)).idle
    again = [var for var in idle if var not in {x.var for x in shared}]
    if again:
        raise ScheduleError(
            f"block {block.name!r} would fold again in every iteration of loop {again[0]!r}, and {start.name!r} writes "
            "its start value only before that loop",
            node=block.name,
            help=f"decompose_reduction({block.name!r}, loop) at a loop inside {again[0]!r}",
        )
    missing = uncovered(_written(places, block), _written(places, start), frozenset(x.var for x in shared))
    if missing is not None:
        raise ScheduleError(
            f"block {start.name!r} does not write the start value of all of {buffer!r} that {block.name!r} folds into: "
            f"{missing}",
            node=start.name,
            help="undo the steps after decompose_reduction, and decompose after them",
        )


def _check_outputs(program: Program, places: _Places) -> None:
    for name in program.outputs:
        shape = program.buffer(name).shape
        found = [b for b in places.writers.get(name, []) if b.role is not Role.INITIAL]
        if not found:
            raise ScheduleError(f"no block writes the output {name!r}", help="undo the step that removed it")
        block = found[0]
        axes = tuple((f"index {n}", size) for n, size in enumerate(shape))
        whole = Side(tuple(Var(axis) for axis, _ in axes), (), axes)
        missing = uncovered(whole, _written(places, block), frozenset())
        if missing is not None:
            raise ScheduleError(
                f"block {block.name!r} does not write all of the output {name!r}: {missing}",
                node=block.name,
                help="undo the step: its loops or bounds leave elements out",
            )


# -- 5: reads ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _side(block: Block, indices: tuple[Expr, ...], loops: Extents) -> Side:
    env = {it.name: it.binding for it in block.iters}
    return Side(tuple(substitute(i, env) for i in indices), block.predicates, loops)


def _written(places: _Places, block: Block) -> Side:
    return _written_by(block, places.extents(block))


@lru_cache(maxsize=4096)
def _written_by(block: Block, loops: Extents) -> Side:
    side = _side(block, block.body.indices, loops)
    return Side(side.indices, bounds_of_store(block, loops), side.loops)


def bounds_of_store(block: Block, loops: Extents) -> tuple[Expr, ...]:
    """The predicates under which a block stores: a tiled reduction writes its start value past the end as well."""
    if block.role not in PARTIAL:
        return block.predicates
    folded = folded_loops(block)
    tags = {it.binding.name: it.extent for it in block.iters if it.kind == "spatial" and isinstance(it.binding, Var)}
    whole = {var for var, extent in loops if extent <= tags.get(var, 0)}
    return tuple(p for p in block.predicates if not variables(p) & folded and not variables(p) <= whole)


@lru_cache(maxsize=4096)
def folded_loops(block: Block) -> frozenset[str]:
    """The loops that the reduced iterations of a block run along."""
    return frozenset(bound_loops(it for it in block.iters if it.kind == "reduce"))


def _check_read(
    program: Program, places: _Places, reader: Block, read: Load | Previous, conditions: tuple[Expr, ...]
) -> None:
    """Formal statement: for a read X[p] and the writer X[q] of X, the writer comes first, folds along none of the loops
    around both, and for each value of these loops the positions p are among the positions q."""
    if read.buffer in program.inputs:
        return
    found = places.writers.get(read.buffer, [])
    if not found:
        raise ScheduleError(
            f"block {reader.name!r} reads {read.buffer!r}, which nothing writes",
            node=reader.name,
            help="undo the step, and try another order of steps",
        )
    if any(b.role is Role.RETIRE for b in found):
        _check_previous_value(places, reader, read, found)
        return
    others = [b for b in found if b.role is not Role.INITIAL and b.name != reader.name]
    if reader in found:
        _check_own_read(reader, read)
        return
    for writer in others:
        shared = places.shared(reader, writer)
        before = isinstance(read, Previous) and bool(shared)
        if places.order[writer.name] > places.order[reader.name] and not before:
            raise ScheduleError(
                f"block {reader.name!r} would read {read.buffer!r} before {writer.name!r} writes it",
                node=reader.name,
                help=f"keep {writer.name!r} before {reader.name!r}",
            )
        folded = folded_loops(writer)
        inside = [x.var for x in shared if x.extent > 1 and x.var in folded]
        if inside:
            raise ScheduleError(
                f"block {reader.name!r} would read {read.buffer!r} inside loop {inside[0]!r}, where {writer.name!r} "
                "has folded only a part of it",
                node=reader.name,
                help=f"use rolling_update or split_k_update to fuse across {writer.name!r}, or a loop outside "
                f"{inside[0]!r}",
            )
        _check_covered(places, reader, read, conditions, writer, shared)


def _check_covered(
    places: _Places,
    reader: Block,
    read: Load | Previous,
    conditions: tuple[Expr, ...],
    writer: Block,
    shared: tuple[Loop, ...],
) -> None:
    wanted = _side(reader, read.indices, places.extents(reader))
    written, around = _written(places, writer), frozenset(x.var for x in shared)
    missing = uncovered(wanted, written, around)
    if missing is not None and conditions:
        env = {it.name: it.binding for it in reader.iters}
        made = tuple(substitute(c, env) for c in conditions)
        missing = uncovered(replace(wanted, predicates=(*wanted.predicates, *made)), written, around)
    if missing is not None and uncovered(_anywhere(wanted, places.shapes[read.buffer]), written, around) is None:
        return
    if missing is not None:
        where = f" inside loop {shared[-1].var!r}" if shared else ""
        raise ScheduleError(
            f"block {reader.name!r} would read elements of {read.buffer!r} that {writer.name!r} has not "
            f"written{where}: {missing}",
            node=reader.name,
            help=f"fuse at a loop where {read.buffer!r} is complete, or read it at the element that {writer.name!r} is "
            "computing",
        )


def _anywhere(side: Side, shape: tuple[int, ...]) -> Side:
    """All that an access may touch if nothing is known of the indices that are no sums of loops, as those that depend
    on data: such an index takes every value of its dimension."""
    open_ = {n: f"index {n}" for n, index in enumerate(side.indices) if as_sum(index) is None}
    indices = tuple(Var(open_[n]) if n in open_ else index for n, index in enumerate(side.indices))
    return Side(indices, side.predicates, (*side.loops, *((name, shape[n]) for n, name in open_.items())))


def _check_own_read(reader: Block, read: Load | Previous) -> None:
    """Formal statement: a block reads its own buffer at the element that it writes; of a scan, at the tag before."""
    own = reader.body.indices
    if read.indices == own and (reader.is_reduction or reader.role is Role.SCAN):
        return
    raise ScheduleError(
        f"block {reader.name!r} reads {expression(read)} of its own, and writes {expression(Load(reader.writes, own))}",
        node=reader.name,
        help="undo the step: a fold carries the element that it writes, and no other",
    )


def _check_previous_value(places: _Places, reader: Block, read: Load | Previous, found: list[Block]) -> None:
    """Formal statement: inside the loop that hands values on, the previous value is read before it becomes the current
    one; behind it, it is the last one."""
    step = next(b for b in found if b.role is Role.RETIRE)
    starts = [b for b in found if b.role is Role.INITIAL]
    (handed,) = loads(step.body.value)
    current = places.writers[handed.buffer][0]
    rolling = places.shared(step, current)
    around = places.shared(reader, step)
    inside = len(around) >= len(rolling)
    late = places.order[reader.name] > places.order[step.name]
    if inside == late or not starts:
        raise ScheduleError(
            f"block {reader.name!r} would read {read.buffer!r} {'after' if inside else 'before'} {step.name!r} hands "
            "the current value on",
            node=reader.name,
            help=f"keep {reader.name!r} {'before' if inside else 'behind'} {step.name!r}",
        )
    if inside and places.order[starts[0].name] > places.order[reader.name]:
        raise ScheduleError(
            f"block {reader.name!r} would read {read.buffer!r} before it starts",
            node=reader.name,
            help="undo the step, and try another order of steps",
        )
    _check_covered(places, reader, read, (), step, around)


__all__ = ["verify", "verify_bounds"]
