"""Row statistics, rows and sums of columns in one pass: the backward pass of a norm.

    for i: d_s[i] = sum over j of d_out[i, j] * …             a program per group of rows:
    for i, j: d_x[i, j] = … d_s[i] …                      ⇒     for each tile of its rows: d_s, d_x, and w += d_out * …
    for j: d_w[j] = sum over i of d_out[i, j] * …             d_w = the sum of all w, in a second kernel

Each tile holds whole rows, so what is read along rows and along columns is loaded once.  The sums of columns are split
among the programs, as keys are in decoding (`split_k_update`), and roll along the tiles of each.

Rows may be numbered by several dimensions, such as (batch, length) of an input (batch, length, width): tiles run along
the longest of them, and each index of the others has groups of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import Dimension, Dimensions, dimensions
from neptune_lab.loop_ir.names import loop_names, unique
from neptune_lab.loop_ir.nodes import Block, Program
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.walks import folded_loops, loads
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import (
    all_or_nothing,
    bind_grid,
    finish,
    put_outermost,
    retire_all,
    start_contraction,
    start_outside,
    tile_loops,
)
from neptune_lab.loop_schedule.templates.config import PerNest, SplitKConfig
from neptune_lab.loop_schedule.templates.launch_hints import warps_for
from neptune_lab.loop_schedule.templates.nest_shape import COLUMNS
from neptune_lab.power_of_two import power_of_two

# The longest row that a program holds, and the elements of a row per warp: 16 bytes for each lane.
LONGEST_ROW, OF_A_WARP = 8192, 256
# The longest row of 16 bits an element if the program adds up one sum and reads one row beside the cotangent's, as that
# of an RMSNorm: 2048 x 16384 take 67 us on an H200, and 108 us with kernels of their own. Two sums spill registers: 125
# us of a layer_norm, and 121 us with kernels of their own. So do rows that begin beside multiples of 16 bytes.
LONGEST_WITH_ONE_SUM, AT_ONCE, HALF = 16384, 8, 2
# Elements of a tile per lane. With these numbers norms of rows of 1024 to 8192 elements are within 1.06 of the best of
# 17 to 29 tilings on an H100 (scripts/row_backward_speed.py); with 16 elements, or warps that share 128 elements, they
# take up to twice as long.
PER_LANE = 32
# Warps of all programs of a multiprocessor together; those that have room if two sums of columns have masked lanes,
# which take 160 registers and more: on an H200 a layer_norm of 5895 x 960 takes 15.5 us with 12, and 19.9 with 16.
RESIDENT_WARPS, MASKED_WARPS = 16, 12
# Warps of a row of 16 bits an element that leaves a quarter of a power of two empty, or less if there are two sums: so
# few that empty lanes are whole vectors of all lanes, which no code computes. A lane then has twice as many elements,
# and a multiprocessor half as many warps. On an H200 a layer_norm of 8000 x 1408 takes 31.1 us with 2 warps a row, and
# 44.7 with 8; of 32904 x 704 54.8 with one, and 76.9 with 4; of 6000 x 2240 40.4 with 4, and 47.7 with 16.
FEW_LANES, FEW_WARPS = 1024, 8
# Tiles in flight: the programs of a multiprocessor are too few to load while others compute. The same three take 23.9,
# 43.7 and 30.8 us with three tiles, of 8192 x 4096 61.6 with, 73.7 without, of 5000 x 6592 60.3 and 92.6; but an
# RMSNorm of 2048 x 16384 74.4 and 68.4, and rows that are loaded one element at a time 104 and 76 (9859 x 3503).
# Rows that fill their lanes have half the usual warps then: of 16384 x 1024 31.5 us with two, and 35.3 with four that
# load one tile at a time; of 10000 x 2048 38.2 with four, 45.6 with eight.
STAGES, SHARED = 3, 200 << 10
# The fewest tiles of a program: with fewer, adding up the programs' sums takes as long as reading the rows twice.
FEWEST_TILES = 4
# The most partial sums that a program holds while it adds them up.
HELD = 1 << 16
# The fewest neighbouring columns whose partial sums a program adds up, and the most warps: with 64 columns and 4 warps,
# the 515 partial sums of 704 columns were 11 programs of 512 elements a lane.
FEWEST_COLUMNS, MOST_TO_ADD_UP = 16, 16


@dataclass(frozen=True, slots=True)
class Shape:
    """The programs of a kernel over groups of rows.

    Args:
        warps: of a program, which share each row.
        per_lane: elements of a tile for each of their lanes.
        resident: warps of a multiprocessor.
        stages: tiles in flight, of which all but the first are in shared memory; None: a tile is loaded when it is
            computed.
    """

    warps: int
    per_lane: int = PER_LANE
    resident: int = RESIDENT_WARPS
    stages: int | None = None


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The blocks of such a definition, each in the order of the definition.

    Args:
        rows: number of rows along `row_axis`.
        columns: elements of a row.
        row_axis: of the first block of `along`: the longest dimension that numbers rows.
        along: blocks that have the rows: statistics, maps and results.
        sums: sums of columns.
        after: maps of these sums.
        outer: the other dimensions that number rows: the axis of the first block of `along`, and the extent.
    """

    rows: int
    columns: int
    row_axis: str
    along: tuple[str, ...]
    sums: tuple[str, ...]
    after: tuple[str, ...]
    outer: tuple[tuple[str, int], ...] = ()

    @property
    def outside(self) -> int:
        """How many indices the other dimensions have together."""
        return prod(extent for _, extent in self.outer)


def row_groups_of(program: Program) -> RowGroups | None:
    """The blocks of a definition that computes along rows, and sums columns.

    Args:
        program: the definition, before any step.

    Returns:
        Its blocks; None if there are others, or a block along the rows reads a sum of columns.
    """
    dims = dimensions(program)
    maps = [dims.all_of(b, "spatial").keys() for b in tree.blocks(program) if reducer_of(b) is None]
    pairs = {(axes - {column}, column) for axes in map(frozenset, maps) if len(axes) > 1 for column in axes}
    found = [g for rows, column in pairs if (g := _along(program, dims, rows, column))]
    return found[0] if len(found) == 1 else None


def _along(program: Program, dims: Dimensions, rows: Collection[Dimension], column: Dimension) -> RowGroups | None:
    """The blocks, if rows are numbered by the dimensions `rows`, and `column` runs along them."""
    blocks, rows = tree.blocks(program), frozenset(rows)
    spatial = {b.name: dims.all_of(b, "spatial").keys() for b in blocks}
    folded = {b.name: dims.all_of(b, "reduce").keys() for b in blocks}
    along = [b for b in blocks if rows <= spatial[b.name]]
    sums = [b for b in blocks if spatial[b.name] == {column} and folded[b.name] == rows and reducer_of(b) == "sum"]
    after = [b for b in blocks if spatial[b.name] == {column} and not folded[b.name]]
    if not along or not sums or len(along) + len(sums) + len(after) < len(blocks):
        return None
    if any(not spatial[b.name] <= {*rows, column} or not folded[b.name] <= {column} for b in along):
        return None
    if any(_reads(b) & {x.writes for x in (*sums, *after)} for b in along):
        return None
    if any(not _reads(b) & {x.writes for x in blocks} for b in after):
        return None
    first = along[0]
    width = dims.all_of(sums[0])[column]
    extents = {it.name: it.extent for it in first.iters if dims.of(first, it.name) in rows}
    axis = max(reversed(extents), key=extents.__getitem__)
    return RowGroups(
        extents.pop(axis),
        sums[0].iter(width).extent,
        axis,
        tuple(b.name for b in along),
        tuple(b.name for b in sums),
        tuple(b.name for b in after),
        tuple(extents.items()),
    )


def _reads(block: Block) -> set[str]:
    return {read.buffer for read in loads(block.body.value)}


@all_or_nothing
def row_groups(sch: Schedule, config: SplitKConfig) -> Schedule:
    """Schedules such a definition as one kernel over groups of rows, and one that adds up their sums.

    Args:
        sch: the schedule of a definition, without steps.
        config: `block_q` is the rows of a tile, `splits` the number of groups along the longest dimension of rows; what
            it leaves open is chosen by shape.

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
    if groups.columns > (longest := _longest(sch.program, groups)):
        raise ScheduleError(
            f"rows of {groups.columns} elements do not fit a tile, whose rows have at most {longest}",
            help="leave the template out: rows and sums of columns are then separate kernels",
        )
    rows, (count, each), warps = _sizes(groups, config, shape := _shape(sch.program, groups, config))
    loop, partial = _rows_in_groups(sch, groups, (count, each, rows))
    columns = _columns_at_once(groups, config.multiprocessors)
    _combine(sch, groups, partial, columns)
    retire_all(sch)
    start_outside(sch, loop)
    adding = _warps_to_add_up(power_of_two(count) * columns)
    own = config.block_q is None and config.num_warps is None
    stages = _one(config.num_stages) or (shape.stages if own else None)
    hints = {groups.along[0]: (warps, stages), groups.sums[0]: (adding, None)}
    finish(sch, hints, config.matrix_unit)
    sch.remark(
        f"{count * groups.outside} programs have {each} tiles of {rows} row{'s' if rows > 1 else ''} each, for which "
        f"they compute {', '.join(groups.along)} and add up {', '.join(groups.sums)}."
    )
    return sch


def _longest(program: Program, groups: RowGroups) -> int:
    """The most elements of a row that fit the registers of a program."""
    matrices = _itemsizes(program, groups)
    small = len(groups.sums) == 1 and len(matrices) <= 2 and _widest(program, groups) <= HALF
    return LONGEST_WITH_ONE_SUM if small and groups.columns % AT_ONCE == 0 else LONGEST_ROW


def _widest(program: Program, groups: RowGroups) -> int:
    """The bytes of the widest element of the rows that a program reads."""
    return max(_itemsizes(program, groups), default=2 * HALF)


def _itemsizes(program: Program, groups: RowGroups) -> list[int]:
    """The bytes of an element of each input that has such rows."""
    rows = [b for b in program.buffers if b.name in program.inputs and b.shape[-1:] == (groups.columns,)]
    return [np.dtype(b.dtype).itemsize for b in rows if len(b.shape) > 1]


def _sizes(groups: RowGroups, config: SplitKConfig, shape: Shape) -> tuple[int, tuple[int, int], int]:
    """The rows of a tile, the numbers of groups and of a group's tiles, and the warps."""
    width = power_of_two(groups.columns)
    warps = _one(config.num_warps) or shape.warps
    rows = _one(config.block_q) or max(1, 32 * shape.per_lane * warps // max(width, OF_A_WARP))
    while True:
        tiles = -(-groups.rows // rows)
        wanted = config.multiprocessors * max(1, shape.resident // warps)
        each = -(-tiles // splits) if (splits := _one(config.splits)) else -(-tiles * groups.outside // wanted)
        each = min(tiles, max(each, 1 if splits else FEWEST_TILES))
        count = -(-tiles // each)
        if splits or (each >= FEWEST_TILES and 4 * count * groups.outside >= 3 * config.multiprocessors):
            return rows, (count, each), warps
        if rows == 1 or config.block_q:
            of_each = f" of each of {groups.outside} indices" if groups.outer else ""
            raise ScheduleError(
                f"{groups.rows} rows{of_each} are too few for {config.multiprocessors} groups of {FEWEST_TILES} tiles",
                help="give the number of groups: config=nl.SplitKConfig(splits=8)",
            )
        rows //= 2


def _shape(program: Program, groups: RowGroups, config: SplitKConfig) -> Shape:
    """The programs of rows of so many elements; of few rows, those of which there are more."""
    columns, width = groups.columns, power_of_two(groups.columns)
    usual = Shape(min(RESIDENT_WARPS, max(1, width // OF_A_WARP)))
    if _widest(program, groups) > HALF:
        return usual
    two = len(groups.sums) > 1
    if columns < width and two:
        usual = replace(usual, resident=MASKED_WARPS)
    half = Shape(min(RESIDENT_WARPS, max(1, width // (2 * OF_A_WARP))))
    if columns % AT_ONCE:
        found = half
    elif not FEW_LANES <= width <= LONGEST_ROW:
        found = usual
    else:
        few = Shape(max(1, width // FEW_LANES), 2 * PER_LANE, FEW_WARPS, STAGES)
        lanes = 32 * AT_ONCE * few.warps
        empty = 4 * -(-columns // lanes) * lanes <= 3 * width
        if width > FEW_LANES:
            usual = replace(usual, stages=STAGES)
            empty = empty or (two and columns < width)
        found = few if empty else replace(half, resident=FEW_WARPS, stages=STAGES)
    rows = 32 * found.per_lane * found.warps // width * FEWEST_TILES
    programs = groups.rows * groups.outside // max(1, rows)
    found = found if 2 * programs * found.warps >= found.resident * config.multiprocessors else usual
    return found if _has_room(program, groups, found, config) else replace(found, stages=None)


def _has_room(program: Program, groups: RowGroups, shape: Shape, config: SplitKConfig) -> bool:
    """Whether the tiles in flight of all programs of a multiprocessor fit the shared memory of GPUs from Hopper on."""
    tiles = max(1, shape.resident // shape.warps) * 32 * shape.per_lane * shape.warps
    held = tiles * sum(_itemsizes(program, groups)) * (STAGES - 1)
    return config.matrix_unit in ("wgmma", "tcgen05") and held <= SHARED


def _columns_at_once(groups: RowGroups, multiprocessors: int) -> int:
    """The columns whose partial sums one program adds up: 64, or fewer if they leave multiprocessors idle."""
    columns = COLUMNS
    while columns > FEWEST_COLUMNS and groups.columns < columns * multiprocessors:
        columns //= 2
    return min(columns, groups.columns)


def _warps_to_add_up(elements: int) -> int | None:
    """The warps of a program that adds up so many partial sums; None: the emitter's default."""
    warps = min(MOST_TO_ADD_UP, warps_for(elements))
    return warps if warps > warps_for(1) else None


def _one(size: PerNest) -> int | None:
    """A size that is given as one number, or per nest: of the first."""
    return size[0] if isinstance(size, tuple) else size


def _rows_in_groups(
    sch: Schedule, groups: RowGroups, factors: tuple[int, int, int]
) -> tuple[str, dict[str, list[str]]]:
    """The kernel over groups of rows: its loop over tiles, as "block.loop"; and for each sum, the blocks that add up
    its partial sums along one of the other dimensions of rows, each after the one that reads it."""
    first = groups.along[0]
    taken = loop_names(*sch.program.body)
    names = [unique(f"{groups.row_axis}{end}", taken - {groups.row_axis}, "_") for end in ("s", "0", "1")]
    sch.split(f"{first}.{groups.row_axis}", factors, names=names)
    group, tile, _ = names
    outside = [*(name for name, _ in groups.outer), group]
    put_outermost(sch, first, *outside, tile)
    for name in groups.along[1:]:
        sch.fuse_under(name, f"{first}.{tile}")
    partial: dict[str, list[str]] = {}
    for name in groups.sums:
        (local,) = sch.split_k_update(name, f"{first}.{group}")
        partial[name] = []
        for axis, _ in reversed(groups.outer):  # (so that partial sums of a row are contiguous)
            partial[name].append(local)
            local = sch.privatize_reduction(f"{local}.{axis}")
        sch.rolling_update(local, f"{first}.{tile}")
    bind_grid(sch, first, outside=tile)
    return f"{first}.{tile}", partial


def _combine(sch: Schedule, groups: RowGroups, partial: Mapping[str, Sequence[str]], columns: int) -> None:
    """The kernel that adds up the groups' sums of so many columns a program, and computes the maps of them."""
    first = groups.sums[0]
    axis = next(it.name for it in tree.find_block(sch.base, first)[1].iters if it.kind == "spatial")
    made = tile_loops(sch, first, {axis: columns})
    ordered = put_outermost(sch, first, made[axis])
    grid = bind_grid(sch, first, outside=ordered[1])
    assert grid is not None
    loop = f"{first}.{loop_ref(grid)[1]}"
    for name in (*groups.sums[1:], *groups.after):
        sch.fuse_under(name, loop)
    for names in partial.values():
        _add_up(sch, groups, names, loop, columns)


def _add_up(sch: Schedule, groups: RowGroups, names: Sequence[str], loop: str, columns: int) -> None:
    """Adds up partial sums along the other dimensions of rows inside `loop`: all at once, or if they are too many to be
    held, one index of a dimension after another, and a tile of indices of the last dimension."""
    if not names:
        return
    kept = power_of_two(sch.program.buffer(tree.find_block(sch.program, names[0])[1].writes).shape[0]) * columns
    for name, (_, extent) in zip(names, reversed(groups.outer), strict=True):
        sch.fuse_under(name, loop)
        if kept * groups.outside <= HELD or extent == 1:
            continue
        size = 1 if name != names[-1] else min(extent, max(1, power_of_two(HELD // kept + 1) // 2))
        (added,) = folded_loops(tree.find_block(sch.program, name)[1])
        outer, _ = sch.split(f"{name}.{added}", (None, size))
        own = [loop_ref(ref)[1] for ref in sch.loops(name)]
        put_outermost(sch, name, loop_ref(outer)[1], among=own[own.index(loop_ref(loop)[1]) + 1 :])
        start_contraction(sch, outer)
        loop = outer


__all__ = ["RowGroups", "row_groups", "row_groups_of"]
