"""What makes a loop program legal; run after every step of a schedule, before tiles and before any native run.

A program is legal if, under the loops and predicates around each block,

1. names are unique and bound: blocks, buffers, the loops around a block, the variables of every expression;
2. every access is inside its buffer;
3. for each element, a reduction folds all of its reduced iterations, each once, from a start value that it or another
   block has written;
4. every output is written at every element;
5. every element that is read was written before, and is complete.

A scan buffer has an element per tag, so a read at a tag is complete, and a repair reads by tag.  Each check is of one
block, or of a reader and a writer, and is cached, so that a schedule step only repeats the checks of what it changed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.folds import check_fold, check_tags, fold_sizes
from neptune_lab.loop_ir.inside import reads_of, verify_bounds
from neptune_lab.loop_ir.iteration_domain import Extents, extents_of, iteration_domain
from neptune_lab.loop_ir.nodes import Block, Buffer, Expr, Load, Loop, Previous, Program, Var
from neptune_lab.loop_ir.reach import as_sum
from neptune_lab.loop_ir.read_cover import Side, uncovered
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.roles import PARTIAL, Role
from neptune_lab.loop_ir.start_values import tile_loops
from neptune_lab.loop_ir.walks import folded_loops, loads, reads, substitute, variables


def verify(program: Program, definition: Program | None = None) -> None:
    """Checks that a program is legal; the module's docstring has the rules.

    Args:
        program: any program that is meant to be right (after naive fusion, it is not).
        definition: the program before any step, which tells how many elements each stage folds; None: the number of
            elements that tiles fold is not checked.

    Raises:
        ScheduleError: a rule is broken; `node` is the block.
    """
    # No rule is about scopes, which many steps change and nothing else.
    _verified(_in_one_scope(program), definition)


def _in_one_scope(program: Program) -> Program:
    if all(b.scope == "global" for b in program.buffers):
        return program
    return replace(program, buffers=tuple([_in_memory(b) for b in program.buffers]))


@lru_cache(maxsize=4096)
def _in_memory(buffer: Buffer) -> Buffer:
    return replace(buffer, scope="global")


@lru_cache(maxsize=512)
def _verified(program: Program, definition: Program | None) -> None:
    verify_bounds(program)
    places = _Places(program)
    sizes = {} if definition is None else fold_sizes(program, definition)
    for block, loops in places.blocks:
        check_fold(block, extents_of(loops), sizes.get(block.name))
        check_tags(block, loops)
    for name, writers in places.writers.items():
        _check_writers(places, name, writers)
    _check_outputs(program, places)
    for block, _ in places.blocks:
        for read, conditions in reads_of(block):
            _check_read(places, block, read, conditions)


class _Places:
    """The blocks of a program in order, with the loops around each, and the blocks that write each buffer."""

    def __init__(self, program: Program) -> None:
        places = [(path, stmt, loops) for path, stmt, loops in tree.statements(program) if isinstance(stmt, Block)]
        self.blocks = [(block, loops) for _, block, loops in places]
        self.order = {block.name: n for n, (block, _) in enumerate(self.blocks)}
        self.inputs = frozenset(program.inputs)
        self.shapes = {buffer.name: buffer.shape for buffer in program.buffers}
        self.writers: dict[str, list[Block]] = {}
        for block, _ in self.blocks:
            self.writers.setdefault(block.writes, []).append(block)
        self._paths = {block.name: path for path, block, _ in places}
        self._extents = {block.name: extents_of(loops) for block, loops in self.blocks}

    def extents(self, block: Block) -> Extents:
        return self._extents[block.name]

    def shared(self, a: Block, b: Block) -> tuple[Loop, ...]:
        """The loops that both blocks are in."""
        p, q = self._paths[a.name], self._paths[b.name]
        depth = 0
        while depth < min(len(p), len(q)) - 1 and p[depth] == q[depth]:
            depth += 1
        return self.blocks[self.order[a.name]][1][:depth]


# -- 3, 4: start values, outputs -----------------------------------------------------------------------------------


def _check_writers(places: _Places, buffer: str, writers: list[Block]) -> None:
    """Formal statement: a buffer has one writer and at most one other block, before it, that writes its start value."""
    starts = [b for b in writers if b.role is Role.INITIAL]
    others = [b for b in writers if b.role is not Role.INITIAL]
    if len(others) > 1 or len(starts) > 1:
        names = " and ".join(b.name for b in writers)
        raise ScheduleError(
            f"{names} all write {buffer!r}", node=writers[0].name, help="let each stage write its own tensor"
        )
    if not others:
        return
    block = others[0]
    if block.role is Role.SCAN or (block.init is not None and not starts):
        return
    if not starts:
        if block.is_reduction or reads(block, block.writes):
            raise ScheduleError(
                f"block {block.name!r} folds into {buffer!r}, which has no start value",
                node=block.name,
                help="undo the step, and try another order of steps",
            )
        return
    _check_start(places, buffer, starts[0], block)


def _check_start(places: _Places, buffer: str, start: Block, block: Block) -> None:
    """Formal statement: `start` comes before `block`, inside the same repetitions of it, and writes the start value of
    every element that `block` folds into."""
    if places.order[start.name] > places.order[block.name]:
        raise ScheduleError(
            f"block {start.name!r} would write the start value of {buffer!r} after {block.name!r}, which folds into it",
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
    repeating = iteration_domain(block.iters, block.predicates, places.extents(block)).repeating
    again = [var for var in repeating if var not in {x.var for x in shared}]
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
        writers = [b for b in places.writers.get(name, []) if b.role is not Role.INITIAL]
        if not writers:
            raise ScheduleError(f"no block writes the output {name!r}", help="undo the step that removed it")
        block = writers[0]
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
    """The predicates under which a block stores; a tiled reduction stores its start value past the end too."""
    if block.role not in PARTIAL:
        return block.predicates
    folded, tiles = folded_loops(block), tile_loops(block, loops)
    return tuple(p for p in block.predicates if not variables(p) & folded and not variables(p) <= tiles)


def _check_read(places: _Places, reader: Block, read: Load | Previous, conditions: tuple[Expr, ...]) -> None:
    """Formal statement: for a read X[p] and the writer X[q] of X, the writer comes first, folds along none of the loops
    around both, and for each value of these loops the positions p are among the positions q."""
    if read.buffer in places.inputs:
        return
    writers = places.writers.get(read.buffer, [])
    if not writers:
        raise ScheduleError(
            f"block {reader.name!r} reads {read.buffer!r}, which nothing writes",
            node=reader.name,
            help="undo the step, and try another order of steps",
        )
    if any(b.role is Role.RETIRE for b in writers):
        _check_previous_value(places, reader, read, writers)
        return
    others = [b for b in writers if b.role is not Role.INITIAL and b.name != reader.name]
    if any(writer is reader for writer in writers):
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
    """Raises ScheduleError unless all that a block reads was written, where both blocks share the loops `shared`.

    Args:
        conditions: what holds where the value of the read is used.
    """
    wanted = _side(reader, read.indices, places.extents(reader))
    written, around = _written(places, writer), frozenset(x.var for x in shared)
    missing = uncovered(wanted, written, around)
    if missing is not None and conditions:
        env = {it.name: it.binding for it in reader.iters}
        in_loops = tuple(substitute(c, env) for c in conditions)
        missing = uncovered(replace(wanted, predicates=(*wanted.predicates, *in_loops)), written, around)
    if missing is not None:
        shape = places.shapes[read.buffer]
        if any(uncovered(side, written, around) is None for side in _wider(wanted, shape, around)):
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


def _wider(side: Side, shape: tuple[int, ...], around: frozenset[str]) -> tuple[Side, ...]:
    """Accesses of at least the same elements: indices that are no sum of loops (because they depend on data, for
    example), and then also those that use no loop of `around`, are replaced by all values of their dimensions, which
    rule 2 keeps them in."""
    data = frozenset(n for n, index in enumerate(side.indices) if as_sum(index) is None)
    free = frozenset(n for n, index in enumerate(side.indices) if not variables(index) & around)
    return tuple(_anywhere(side, shape, dims) for dims in (data, data | free))


def _anywhere(side: Side, shape: tuple[int, ...], dims: frozenset[int]) -> Side:
    """The access with the indices of some dimensions replaced by all values there."""
    names = {n: f"index {n}" for n in sorted(dims)}
    indices = tuple(Var(names[n]) if n in names else index for n, index in enumerate(side.indices))
    return Side(indices, side.predicates, (*side.loops, *((name, shape[n]) for n, name in names.items())))


def _check_own_read(reader: Block, read: Load | Previous) -> None:
    """Formal statement: a reduction reads its own buffer at the element that it writes; a scan, at the previous tag."""
    own = reader.body.indices
    if read.indices == own and (reader.is_reduction or reader.role is Role.SCAN):
        return
    raise ScheduleError(
        f"block {reader.name!r} reads {expression(read)} of its own, and writes {expression(Load(reader.writes, own))}",
        node=reader.name,
        help="undo the step: a fold carries the element that it writes, and no other",
    )


def _check_previous_value(places: _Places, reader: Block, read: Load | Previous, writers: list[Block]) -> None:
    """Formal statement: inside the rolling loop, the previous value is read before the block of role "retire" replaces
    it; after the loop, it is the last value."""
    step = next(b for b in writers if b.role is Role.RETIRE)
    starts = [b for b in writers if b.role is Role.INITIAL]
    (handed,) = loads(step.body.value)
    current = places.writers[handed.buffer][0]
    rolling = places.shared(step, current)
    around = places.shared(reader, step)
    inside = len(around) >= len(rolling)
    late = places.order[reader.name] > places.order[step.name]
    if inside == late or not starts:
        raise ScheduleError(
            f"block {reader.name!r} would read {read.buffer!r} {'after' if inside else 'before'} {step.name!r} "
            "replaces it by the current value",
            node=reader.name,
            help=f"keep {reader.name!r} {'before' if inside else 'after'} {step.name!r}",
        )
    if inside and places.order[starts[0].name] > places.order[reader.name]:
        raise ScheduleError(
            f"block {reader.name!r} would read {read.buffer!r} before it starts",
            node=reader.name,
            help="undo the step, and try another order of steps",
        )
    _check_covered(places, reader, read, (), step, around)


__all__ = ["verify", "verify_bounds"]
