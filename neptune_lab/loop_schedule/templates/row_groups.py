"""Row statistics, rows and sums of columns in one pass: the backward pass of a norm.

    for i: d_s[i] = sum over j of d_out[i, j] * …             a program per group of rows:
    for i, j: d_x[i, j] = … d_s[i] …                      ⇒     for each tile of its rows: d_s, d_x, and w += d_out * …
    for j: d_w[j] = sum over i of d_out[i, j] * …             d_w = the sum of all w, in a second kernel

Each tile holds whole rows, so what is read along rows and along columns is loaded once.  The sums of columns are split
among the programs, as keys are in decoding (`split_k_update`), and roll along the tiles of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import Dimension, Dimensions, dimensions
from neptune_lab.loop_ir.names import loop_names, unique
from neptune_lab.loop_ir.nodes import Block, Program, loads
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import (
    all_or_nothing,
    bind_grid,
    extent_of,
    finish,
    put_outermost,
    retire_all,
    start_outside,
    tile_loops,
)
from neptune_lab.loop_schedule.templates.config import PerNest, SplitKConfig
from neptune_lab.loop_schedule.templates.nest_shape import COLUMNS, power_of_two

# The longest row that a program holds, and the elements of a row per warp: 16 bytes for each lane.
LONGEST_ROW, OF_A_WARP = 8192, 256
# Elements of a tile per lane. With these numbers norms of rows of 1024 to 8192 elements are within 1.06 of the best of
# 17 to 29 tilings on an H100 (scripts/row_backward_speed.py); with 16 elements, or warps that share 128 elements, they
# take up to twice as long.
PER_LANE = 32
# Warps of all programs of a multiprocessor together.
RESIDENT_WARPS = 16
# The fewest tiles of a program: with fewer, adding up the programs' sums takes as long as reading the rows twice.
FEWEST_TILES = 4


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The blocks of such a definition, each in the order of the definition.

    Args:
        rows: number of rows.
        columns: elements of a row.
        row_axis: of the first block of `along`.
        along: blocks that have the rows: statistics, maps and results.
        sums: sums of columns.
        after: maps of these sums.
    """

    rows: int
    columns: int
    row_axis: str
    along: tuple[str, ...]
    sums: tuple[str, ...]
    after: tuple[str, ...]


def row_groups_of(program: Program) -> RowGroups | None:
    """The blocks of a definition that computes along rows, and sums columns.

    Args:
        program: the definition, before any step.

    Returns:
        Its blocks; None if there are others, or a block along the rows reads a sum of columns.
    """
    dims = dimensions(program)
    maps = [dims.all_of(b, "spatial") for b in tree.blocks(program) if reducer_of(b) is None]
    pairs = {tuple(sorted(axes, key=lambda d: axes[d])) for axes in maps if len(axes) == 2}
    found = [g for one, other in pairs for pair in ((one, other), (other, one)) if (g := _along(program, dims, *pair))]
    return found[0] if len(found) == 1 else None


def _along(program: Program, dims: Dimensions, row: Dimension, column: Dimension) -> RowGroups | None:
    """The blocks, if these are the dimensions of rows and columns."""
    blocks = tree.blocks(program)
    spatial = {b.name: dims.all_of(b, "spatial").keys() for b in blocks}
    folded = {b.name: dims.all_of(b, "reduce").keys() for b in blocks}
    along = [b for b in blocks if row in spatial[b.name]]
    sums = [b for b in blocks if spatial[b.name] == {column} and folded[b.name] == {row} and reducer_of(b) == "sum"]
    after = [b for b in blocks if spatial[b.name] == {column} and not folded[b.name]]
    if not along or not sums or len(along) + len(sums) + len(after) < len(blocks):
        return None
    if any(not spatial[b.name] <= {row, column} or not folded[b.name] <= {column} for b in along):
        return None
    if any(_reads(b) & {x.writes for x in (*sums, *after)} for b in along):
        return None
    if any(not _reads(b) & {x.writes for x in blocks} for b in after):
        return None
    first = along[0]
    axis, width = dims.all_of(first)[row], dims.all_of(sums[0])[column]
    return RowGroups(
        first.iter(axis).extent,
        sums[0].iter(width).extent,
        axis,
        tuple(b.name for b in along),
        tuple(b.name for b in sums),
        tuple(b.name for b in after),
    )


def _reads(block: Block) -> set[str]:
    return {read.buffer for read in loads(block.body.value)}


@all_or_nothing
def row_groups(sch: Schedule, config: SplitKConfig) -> Schedule:
    """Schedules such a definition as one kernel over groups of rows, and one that adds up their sums.

    Args:
        sch: the schedule of a definition, without steps.
        config: `block_q` is the rows of a tile, `splits` the number of groups; what it leaves open is chosen by shape.

    Returns:
        `sch`.

    Raises:
        ScheduleError: the definition is another one, its rows are too long or too few, or a step is refused.
    """
    groups = row_groups_of(sch.program)
    if groups is None:
        raise ScheduleError(
            "the definition does more than statistics of rows, maps of them, and sums of columns",
            help="leave the template out: the compiler then chooses one",
        )
    if groups.columns > LONGEST_ROW:
        raise ScheduleError(
            f"rows of {groups.columns} elements do not fit a tile, whose rows have at most {LONGEST_ROW}",
            help="leave the template out: rows and sums of columns are then separate kernels",
        )
    rows, (count, each), warps = _sizes(groups, config)
    loop = _rows_in_groups(sch, groups, (count, each, rows))
    _combine(sch, groups)
    retire_all(sch)
    start_outside(sch, loop)
    finish(sch, {groups.along[0]: (warps, _one(config.num_stages))})
    sch.remark(
        f"{count} programs have {each} tiles of {rows} row{'s' if rows > 1 else ''} each, for which they compute "
        f"{', '.join(groups.along)} and add up {', '.join(groups.sums)}."
    )
    return sch


def _sizes(groups: RowGroups, config: SplitKConfig) -> tuple[int, tuple[int, int], int]:
    """The rows of a tile, the numbers of groups and of a group's tiles, and the warps."""
    width = power_of_two(groups.columns)
    warps = _one(config.num_warps) or min(RESIDENT_WARPS, max(1, width // OF_A_WARP))
    rows = _one(config.block_q) or max(1, 32 * PER_LANE * warps // max(width, OF_A_WARP))
    while True:
        tiles = -(-groups.rows // rows)
        wanted = _one(config.splits) or config.multiprocessors * max(1, RESIDENT_WARPS // warps)
        each = max(-(-tiles // wanted), 1 if config.splits else FEWEST_TILES)
        count = -(-tiles // each)
        if config.splits or 4 * count >= 3 * config.multiprocessors:
            return rows, (count, each), warps
        if rows == 1 or config.block_q:
            raise ScheduleError(
                f"{groups.rows} rows are too few for {config.multiprocessors} groups",
                help="give the number of groups: config=nl.SplitKConfig(splits=8)",
            )
        rows //= 2


def _one(size: PerNest) -> int | None:
    """A size that is given as one number, or per nest: of the first."""
    return size[0] if isinstance(size, tuple) else size


def _rows_in_groups(sch: Schedule, groups: RowGroups, factors: tuple[int, int, int]) -> str:
    """The kernel over groups of rows: its loop over tiles, as "block.loop"."""
    first = groups.along[0]
    taken = loop_names(*sch.program.body)
    names = [unique(f"{groups.row_axis}{end}", taken - {groups.row_axis}, "_") for end in ("s", "0", "1")]
    sch.split(f"{first}.{groups.row_axis}", factors, names=names)
    group, tile, _ = names
    put_outermost(sch, first, group, tile)
    for name in groups.along[1:]:
        sch.fuse_under(name, f"{first}.{tile}")
    local = [sch.split_k_update(name, f"{first}.{group}")[0] for name in groups.sums]
    for name in local:
        sch.rolling_update(name, f"{first}.{tile}")
    sch.bind(f"{first}.{group}", "blockIdx.x")
    return f"{first}.{tile}"


def _combine(sch: Schedule, groups: RowGroups) -> None:
    """The kernel that adds up the groups' sums, and computes the maps of them."""
    first = groups.sums[0]
    axis = next(it.name for it in tree.find_block(sch.base, first)[1].iters if it.kind == "spatial")
    made = tile_loops(sch, first, {axis: min(COLUMNS, extent_of(sch, first, axis))})
    ordered = put_outermost(sch, first, made[axis])
    grid = bind_grid(sch, first, outside=ordered[1])
    assert grid is not None
    for name in (*groups.sums[1:], *groups.after):
        sch.fuse_under(name, f"{first}.{loop_ref(grid)[1]}")


__all__ = ["RowGroups", "row_groups", "row_groups_of"]
