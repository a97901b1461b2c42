"""Splits in parallel, then combined: FlashDecoding from attention (paper, Figure 3 and section 4.3)."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.nodes import variables
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_schedule.arguments import check_options
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import Nest, parallelism, plan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.choose import MULTIPROCESSORS
from neptune_lab.loop_schedule.templates.common import (
    all_or_nothing,
    alone_in_order,
    bind_grid,
    check_plan,
    extent_of,
    finish,
    fuse_after,
    fuse_before,
    join,
    outer_first,
    planned_later,
    retire_all,
    row_tile,
    start_contraction,
    start_outside,
    tile_contraction,
    tile_nest,
)
from neptune_lab.loop_schedule.templates.rolling_update import roll_nest

# Where the split count is not given: enough programs for four on each multiprocessor of a large GPU.
WANTED_PROGRAMS = 4 * MULTIPROCESSORS


@all_or_nothing
def split_k_update(
    sch: Schedule,
    block_q: int = 64,
    block_kv: int = 64,
    splits: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> Schedule:
    """Splits of the columns (keys) in parallel, each rolling over its tiles; then a combining kernel. Returns `sch`.

    Args:
        block_q: rows (queries) of a program.
        block_kv: columns of a tile.
        splits: how many parts the columns are cut into, in whole tiles; it need not divide, and the last part may be
            shorter.  None: enough to fill a large GPU; of several nests, one that fills it without rolls instead.
    """
    sizes = {"block_q": block_q, "block_kv": block_kv, "splits": splits}
    check_options("split_k_update", split_k_update, {**sizes, "num_warps": num_warps, "num_stages": num_stages})
    nests = plan(sch.program)
    check_plan(sch, nests)
    loops: list[str | None] = []
    contractions: list[str] = []
    while len(loops) < len(nests):
        nests, loop, contraction = _split_or_roll(sch, nests, len(loops), block_q, block_kv, splits)
        loops.append(loop)
        contractions += [contraction] if contraction else []
    # TVM moves no block any more once a value is written in two places, so this waits until all stand where they will.
    retire_all(sch)
    for loop in loops:
        if loop is not None:
            start_outside(sch, loop)
            alone_in_order(sch, loop)
    for contraction in contractions:
        start_contraction(sch, contraction)
    finish(sch, block_q, block_kv, num_warps, num_stages)
    return sch


def tiles_a_split(sch: Schedule, nest: Nest, block_q: int, block_kv: int, splits: int | None) -> tuple[int, int]:
    """(splits, tiles in each), no split empty."""
    tiles = -(-extent_of(sch, nest.first, nest.column) // block_kv)
    if splits is None:
        splits = max(1, WANTED_PROGRAMS // parallelism(sch.program, nest, block_q))
    each = -(-tiles // splits)
    return -(-tiles // each), each


def _split_or_roll(
    sch: Schedule, nests: tuple[Nest, ...], n: int, block_q: int, block_kv: int, splits: int | None
) -> tuple[tuple[Nest, ...], str | None, str | None]:
    """Schedules nest number `n`: split, or where a reduction of it cannot be combined from splits, rolling. As
    `roll_nest`; the loop is None where each split is one tile."""
    programs = parallelism(sch.definition, nests[n], block_q)
    if splits is None and len(nests) > 1 and programs >= MULTIPROCESSORS:
        sch.remark(f"{nests[n].first} and what follows it roll: {programs} programs fill a GPU.")
        return roll_nest(sch, nests, n, block_q, block_kv)
    before = len(sch.steps)
    try:
        return nests, *_split(sch, nests[n], block_q, block_kv, splits, planned_later(nests, n))
    except ScheduleError as error:
        sch.back_to(before)
        sch.remark(f"{nests[n].first} and what follows it roll instead: {error.reason}")
        return roll_nest(sch, nests, n, block_q, block_kv)


def _split(
    sch: Schedule, nest: Nest, block_q: int, block_kv: int, splits: int | None, later: frozenset[str]
) -> tuple[str | None, str | None]:
    first, column = nest.first, nest.column
    count, each = tiles_a_split(sch, nest, block_q, block_kv, splits)
    if each == 1:
        tile = split = tile_nest(sch, nest, block_q, block_kv).partition(".")[2]
    else:
        split, tile = f"{column}s", f"{column}0"
        size = min(block_kv, extent_of(sch, first, column))
        sch.split(f"{first}.{column}", (count, each, size), names=(split, tile, f"{column}1"))
        if rows := row_tile(sch, nest, block_q):
            sch.tile(first, **rows)
        outer_first(sch, nest, split, tile)
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
    grid = bind_grid(sch, local, outside=names[names.index(split) + 1])
    fuse_before(sch, nest, grid)
    _combine(sch, nest, block_q, block_kv, later)
    return f"{local}.{tile}" if each > 1 else None, contraction


def _folds(sch: Schedule, block: str, loop: str) -> bool:
    """Whether the block is a reduction that folds along the loop."""
    found = tree.find_block(sch.program, block)[1]
    return any(it.kind == "reduce" and loop in variables(it.binding) for it in found.iters)


def _combine(sch: Schedule, nest: Nest, block_q: int, block_kv: int, later: frozenset[str]) -> None:
    """The global halves, and what reads them, in a kernel of their own."""
    folded = [b.name for b in tree.blocks(sch.definition) if b.name in (nest.first, *nest.chain)]
    halves = [name for name in folded if sch.has_block(name) and _is_global(sch, name)]
    anchor = halves[0]
    dims = dimensions(sch.definition)
    names_of = dims.all_of(tree.find_block(sch.definition, anchor)[1])
    first = tree.find_block(sch.definition, nest.first)[1]
    shape = [names_of[dims.of(first, name)] for name in nest.grid]
    tiled = [names_of[dims.of(first, nest.row)]] if nest.row is not None and nest.row_size is None else []
    rows = {v: min(block_q, extent_of(sch, anchor, v)) for v in tiled if extent_of(sch, anchor, v) > 1}
    if rows:
        sch.tile(anchor, **rows)
    names = [loop_ref(ref)[1] for ref in sch.loops(anchor)]
    outer = [f"{v}0" if v in rows else v for v in shape]
    grid = bind_grid(sch, anchor, outside=names[len(outer)])
    if grid is not None:
        for name in halves[1:]:
            try:
                sch.fuse_under(name, grid)
            except ScheduleError as error:
                sch.remark(f"{name} is combined in a kernel of its own: {error.reason}")
    fuse_after(sch, anchor, grid, block_kv, later)


def _is_global(sch: Schedule, name: str) -> bool:
    block = tree.find_block(sch.program, name)[1]
    return block.role == "global" and reducer_of(block) is not None
