"""One nest after the other: held whole, rolled or split, and what its kernels take in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import networkx as nx

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import graph
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.names import loop_names, unique
from neptune_lab.loop_ir.nodes import Program, Var, variables
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import Nest, parallelism, plan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.combine import combine
from neptune_lab.loop_schedule.templates.common import (
    alone_in_order,
    bind_grid,
    check_plan,
    extent_of,
    finish,
    free_axis,
    note_refusal,
    outer_first,
    placed,
    retire_all,
    row_tile,
    start_contraction,
    start_outside,
    tile_contraction,
    tile_loops,
    tile_nest,
)
from neptune_lab.loop_schedule.templates.config import TileConfig
from neptune_lab.loop_schedule.templates.fusing import fuse_after, fuse_before, join, own_loops, recompute_over_column
from neptune_lab.loop_schedule.templates.knobs import Knobs, knobs_of, splits_of

# Elements of the largest tile that each program of a nest folds once more for itself.
LARGEST_REPEATED = 1 << 15


@dataclass(slots=True)
class Work:
    """What the nests scheduled so far leave to be done at the end.

    Args:
        start: the program that the template was given.
        nests: all nests, in order; one that cannot be fused whole puts new ones behind itself.
        knobs: what each is scheduled with.
        loops: rolling loops.
        contractions: loops of long contractions.
        spreads: what tiles a dimension outermost. TVM moves no block into another nest once one computes the same
            elements in several iterations, so this waits until all blocks stand where they will.
        hints: num_warps and num_stages by a block of the kernel.
    """

    start: Program
    nests: tuple[Nest, ...]
    knobs: tuple[Knobs, ...]
    loops: list[str] = field(default_factory=list)
    contractions: list[str] = field(default_factory=list)
    spreads: list[Callable[[], None]] = field(default_factory=list)
    hints: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def insert(self, n: int, nests: tuple[Nest, ...]) -> None:
        """`nests` behind number `n`, with its knobs."""
        self.nests = (*self.nests[: n + 1], *nests, *self.nests[n + 1 :])
        rest = replace(self.knobs[n], block_out=None)
        self.knobs = (*self.knobs[: n + 1], *(rest for _ in nests), *self.knobs[n + 1 :])

    def renew(self, n: int, sch: Schedule) -> None:
        """Nest number `n` planned again if another nest has taken a block of it, as after a refusal; there may be none
        left, or several."""
        nest, knobs, taken = self.nests[n], self.knobs[n], placed(sch, self.start)
        if taken & {nest.first, *nest.before, *nest.apart, *nest.beside, *nest.chain}:
            left = {nest.first, *nest.chain} - taken
            nests = plan(sch.definition, left, placed=taken)
            self.nests = (*self.nests[:n], *nests, *self.nests[n + 1 :])
            self.knobs = (*self.knobs[:n], *(knobs for _ in nests), *self.knobs[n + 1 :])
            if not nests and n < len(self.nests):
                self.renew(n, sch)


def schedule_nests(sch: Schedule, config: TileConfig, *, split: bool) -> None:
    """The whole of a template: every nest of the plan, then what can only be done once all stand where they will.

    Args:
        split: nests are split where that helps; otherwise all of them roll.
    """
    nests = plan(sch.program, pad_rows=config.pad_rows)
    check_plan(sch, nests)
    for nest in nests:
        _check_parallel(sch, nest)  # before any work: most definitions that cannot be fused whole fail here
    work = Work(sch.program, nests, knobs_of(sch.program, nests, config))
    n = 0
    while n < len(work.nests):
        work.renew(n, sch)
        if n == len(work.nests):
            break
        if work.knobs[n].hold and _has_grid(work.nests[n]):
            hold_nest(sch, work, n)
        elif split:
            split_or_roll(sch, work, n, config.multiprocessors)
        else:
            roll_nest(sch, work, n)
        n += 1
    for spread in work.spreads:
        spread()
    # Nor does TVM move a block once a value is written in two places.
    retire_all(sch)
    for loop in work.loops:
        start_outside(sch, loop)
        alone_in_order(sch, loop)
    for contraction in work.contractions:
        start_contraction(sch, contraction)
    finish(sch, work.hints)


def _has_grid(nest: Nest) -> bool:
    """Whether the nest has loops outside its tile; TVM keeps none for a single program."""
    return bool(nest.grid)


def roll_nest(sch: Schedule, work: Work, n: int) -> None:
    """Schedules nest number `n` in one loop over the tiles of its column."""
    nest, knobs = work.nests[n], work.knobs[n]
    _check_parallel(sch, nest)
    loop = tile_nest(sch, nest, knobs)
    contraction = tile_contraction(sch, nest, loop.partition(".")[2])
    grid = bind_grid(sch, nest.first, outside=loop.partition(".")[2], axes=2 if knobs.block_out else 3)
    join(sch, nest, loop)
    for done, block in enumerate(nest.chain):
        try:
            sch.rolling_update(block, loop)
        except ScheduleError as error:
            note_refusal(sch, f"{block} starts a loop of its own: {error.reason}", error)
            work.insert(n, plan(sch.definition, nest.chain[done:], placed=placed(sch, work.start)))
            break
    fuse_before(sch, nest, grid, _rolling(work))
    again = fuse_after(sch, nest, nest.first, grid, planned_later(sch, work, n))
    fuse_before(sch, nest, grid, _rolling(work))
    for name in again:
        recompute_over_column(sch, name, knobs.block_kv)
    work.spreads.append(partial(spread_output, sch, nest, knobs))
    work.loops.append(loop)
    work.contractions += [contraction] if contraction else []
    work.hints[nest.first] = (knobs.num_warps, knobs.num_stages)


def _check_parallel(sch: Schedule, nest: Nest) -> None:
    """The reductions of a nest share an independent dimension, if they have any: one program would compute all else."""
    if nest.grid or not nest.chain:
        return
    blocks = [tree.find_block(sch.definition, name)[1] for name in (nest.first, *nest.chain)]
    for block in blocks:
        own = [it.name for it in block.iters if it.kind == "spatial" and it.extent > 1 and it.name != nest.column]
        if own and reducer_of(block) is not None:
            raise ScheduleError(
                f"{', '.join(b.name for b in blocks)} have no independent dimension in common: fused, all of "
                f"{', '.join(own)} of {block.name!r} would be the work of one program",
                node=block.name,
                help="schedule them apart: cut before the one that reads the others",
            )


def _rolling(work: Work) -> frozenset[str]:
    """Blocks that have a rolling loop."""
    return frozenset(loop_ref(loop)[0] for loop in work.loops)


def hold_nest(sch: Schedule, work: Work, n: int) -> None:
    """Schedules nest number `n` with its whole column in one tile: every reduction is complete where it is read, so
    nothing is repaired."""
    nest, knobs = work.nests[n], work.knobs[n]
    rows = row_tile(sch, nest, knobs.block_q)
    outer_first(sch, nest, tile_loops(sch, nest.first, rows) if rows else {})
    names = [loop_ref(ref)[1] for ref in sch.loops(nest.first)]
    grid = bind_grid(sch, nest.first, outside=names[len(nest.grid)], axes=2 if knobs.block_out else 3)
    assert grid is not None
    contraction = tile_contraction(sch, nest, loop_ref(grid)[1])
    join(sch, nest, grid)
    again = fuse_after(sch, nest, nest.first, grid, planned_later(sch, work, n), nest.chain)
    fuse_before(sch, nest, grid, whole=True)
    for name in again:
        recompute_over_column(sch, name, knobs.block_kv)
    kernel = tree.find_block(sch.program, nest.first)[0][0]
    left = tuple(b for b in nest.chain if tree.find_block(sch.program, b)[0][0] != kernel)
    if left:
        sch.remark(f"{', '.join(left)} could not follow {nest.first} into its kernel.")
        work.insert(n, plan(sch.definition, left, placed=placed(sch, work.start)))
    work.spreads.append(partial(spread_output, sch, nest, knobs))
    work.contractions += [contraction] if contraction else []
    work.hints[nest.first] = (knobs.num_warps, knobs.num_stages)


def split_or_roll(sch: Schedule, work: Work, n: int, multiprocessors: int) -> None:
    """Schedules nest number `n` split; rolling where one split is enough, or where a reduction of it cannot be combined
    from splits."""
    nest, knobs = work.nests[n], work.knobs[n]
    programs = parallelism(sch.definition, nest, knobs.block_q)
    if knobs.splits == 1:
        roll_nest(sch, work, n)
        return
    if knobs.splits is None and len(work.nests) > 1 and programs >= multiprocessors:
        sch.remark(f"{nest.first} and what follows it roll: {programs} programs fill a GPU.")
        roll_nest(sch, work, n)
        return
    before = len(sch.steps)
    try:
        _split(sch, work, n, multiprocessors)
    except ScheduleError as error:
        sch.back_to(before)
        note_refusal(sch, f"{nest.first} and what follows it roll instead: {error.reason}", error)
        roll_nest(sch, work, n)


def _split(sch: Schedule, work: Work, n: int, multiprocessors: int) -> None:
    nest, knobs = work.nests[n], work.knobs[n]
    first, column = nest.first, nest.column
    count, each = splits_of(sch.definition, nest, knobs, multiprocessors)
    if each == 1:
        tile = split = tile_nest(sch, nest, knobs).partition(".")[2]
    else:
        size = min(knobs.block_kv, extent_of(sch, first, column))
        taken = loop_names(*sch.program.body) - {column}
        names = [unique(f"{column}{end}", taken, "_") for end in ("s", "0", "1")]
        sch.split(f"{first}.{column}", (count, each, size), names=names)
        split, tile, _ = names
        rows = row_tile(sch, nest, knobs.block_q)
        outer_first(sch, nest, tile_loops(sch, first, rows) if rows else {}, split, tile)
    contraction = tile_contraction(sch, nest, tile)
    join(sch, nest, f"{first}.{tile}")
    local, made = first, []
    for block in nest.chain:
        made.append(sch.split_k_update(block, f"{local}.{split}")[0])
        if sch.has_block(f"{first}_local"):
            local = f"{first}_local"
    if local == first and _folds(sch, first, split):
        local = sch.privatize_reduction(f"{first}.{split}")
    if each > 1:
        for block in made:
            sch.rolling_update(block, f"{local}.{tile}")
    names = [loop_ref(ref)[1] for ref in sch.loops(local)]
    grid = bind_grid(sch, local, outside=names[names.index(split) + 1], axes=2 if knobs.block_out else 3)
    fuse_before(sch, nest, grid, _rolling(work))
    anchor, spread = combine(sch, nest, knobs, count, planned_later(sch, work, n))
    work.spreads += [partial(spread_output, sch, nest, knobs), spread]
    work.loops += [f"{local}.{tile}"] if each > 1 else []
    work.contractions += [contraction] if contraction else []
    work.hints[local] = (knobs.num_warps, knobs.num_stages)
    work.hints[anchor] = (None, None)


def _folds(sch: Schedule, block: str, loop: str) -> bool:
    """Whether the block is a reduction that folds along the loop."""
    found = tree.find_block(sch.program, block)[1]
    return any(it.kind == "reduce" and loop in variables(it.binding) for it in found.iters)


def spread_output(sch: Schedule, nest: Nest, knobs: Knobs) -> None:
    """The columns that only the last product of the nest has, in tiles of `block_out` on the grid (MCFuser, III-A: the
    deep order; without, the flat one, all of them in one accumulator)."""
    if knobs.block_out is None:
        return
    loop = _own_column(sch, nest)
    if loop is None:
        raise ScheduleError(
            f"block_out={knobs.block_out}: no reduction of the nest of {nest.first!r} has columns of its own",
            node=nest.first,
            help="leave it out, or give None for this nest",
        )
    axis = free_axis(sch, loop_ref(loop)[0])
    assert axis is not None, "bind_grid left one"
    if extent_of(sch, *loop_ref(loop)) > knobs.block_out:
        sch.bind(sch.tile_outermost(loop, knobs.block_out), axis)


def _own_column(sch: Schedule, nest: Nest) -> str | None:
    """The loop of a reduction of the nest along a dimension that the nest's first block does not have."""
    dims = dimensions(sch.definition)
    shared = dims.all_of(tree.find_block(sch.definition, nest.first)[1])
    for stage in reversed(nest.chain):
        block = tree.find_block(sch.definition, stage)[1]
        own = [name for c, name in dims.all_of(block, "spatial").items() if c not in shared]
        kernels = [
            b
            for b in tree.blocks(sch.program)
            if b.origin == stage and b.role in (Role.DEFINED, Role.LOCAL, Role.SCAN, Role.TILE)
        ]
        for b in kernels:
            loops = {x.var: x for x in own_loops(sch, b.name)}
            for it in b.iters:
                if it.name in own and isinstance(it.binding, Var) and it.binding.name in loops:
                    return f"{b.name}.{it.binding.name}"
    return None


def planned_later(sch: Schedule, work: Work, done: int) -> frozenset[str]:
    """Blocks that the nests after number `done` take.

    A nest takes besides its own what only it needs of the tensors that it reads anyway, such as a sum along its column:
    where that is a tile at most, each of its programs computes it again, which is less than a kernel of its own.
    """
    names: set[str] = set()
    flow = graph(sch.definition)
    dims = dimensions(sch.definition)
    blocks = {b.name: b for b in tree.blocks(sch.definition)}
    for nest in work.nests[done + 1 :]:
        own = {nest.first, *nest.before, *nest.beside, *nest.chain}
        names |= own
        behind = set().union(*(nx.descendants(flow, name) for name in own)) | own
        column = dims.of(blocks[nest.first], nest.column)
        read = set().union(*(flow.predecessors(name) for name in own))
        for b in blocks.values():
            folds = reducer_of(b) is not None and set(dims.all_of(b, "reduce")) == {column}
            grid = {dims.of(blocks[nest.first], name) for name in nest.grid}
            size = prod(b.iter(name).extent for c, name in dims.all_of(b).items() if c not in grid)
            if (
                folds
                and size <= LARGEST_REPEATED
                and set(flow.predecessors(b.name)) <= read
                and set(flow.successors(b.name)) <= behind
            ):
                names.add(b.name)
    return frozenset(names)


__all__ = ["Work", "hold_nest", "roll_nest", "schedule_nests", "split_or_roll"]
