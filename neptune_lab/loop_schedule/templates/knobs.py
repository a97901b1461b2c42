"""What each nest is tiled by: the caller's choice where there is one, else one that suits its shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dtypes import as_multiplied, dtype_of
from neptune_lab.loop_ir.nodes import Block, Program
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_schedule.plan import SMALLEST_ROWS, Nest, factors_of, is_product, parallelism
from neptune_lab.loop_schedule.templates.config import PerNest, TileConfig
from neptune_lab.strict.dtypes import HALVES
from neptune_lab.target import DEFAULT

# Rows and columns of a tile where nothing speaks for others.
ROWS, COLUMNS = 64, 64
# The longest row that one program takes whole, and the longest column of a matrix product.
LONGEST_ROW, LONGEST_FACTOR = 1 << 15, 256
# Rows shorter than this are tiled like any other operator's.
SHORT_ROW = 1024
# A product's program whose tile is this large takes 8 warps, and a multiprocessor to itself; of smaller ones two run
# side by side.
LARGE_TILE = 8192
# Elements of a tile that a warp holds: 32 for each of its 32 lanes.
ELEMENTS_A_WARP = 1024


@dataclass(frozen=True, slots=True)
class Knobs:
    """What one nest is scheduled with.

    Args:
        block_q: rows of a program.
        block_kv: columns of a tile.
        block_out: columns of the output that a program computes, where only the last product has them; None: all.
        splits: parts of the column; 1: it rolls; None: chosen when the nest is split.
        num_warps, num_stages: launch hints; None: the emitter's.
        hold: the column is one tile, so that nothing rolls and nothing needs repair.
    """

    block_q: int
    block_kv: int
    block_out: int | None = None
    splits: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    hold: bool = False


# The fields of a config that have one entry per nest; `splits` is in SplitKConfig only.
_SIZES = ("block_q", "block_kv", "block_out", "splits", "num_warps", "num_stages")


def knobs_of(program: Program, nests: tuple[Nest, ...], config: TileConfig) -> tuple[Knobs, ...]:
    """The knobs of each nest.

    Raises:
        ScheduleError: a tuple that has not one entry a nest.
    """
    for name in _SIZES:
        value = getattr(config, name, None)
        if isinstance(value, tuple) and len(value) != len(nests):
            firsts = ", ".join(nest.first for nest in nests)
            raise ScheduleError(
                f"{name}={value!r} has {len(value)} entries for {len(nests)} nests",
                help=f"give one number, or one entry for each nest, None to leave it open; they start at: {firsts}",
            )
    return tuple(_knobs(program, nest, n, len(nests) > 1, config) for n, nest in enumerate(nests))


def _knobs(program: Program, nest: Nest, n: int, several: bool, config: TileConfig) -> Knobs:
    given = {name: _entry(getattr(config, name, None), n) for name in _SIZES}
    chosen = default_knobs(program, nest, several=several, multiprocessors=config.multiprocessors)
    width = columns_of(program, nest)
    if given["splits"] is not None and given["splits"] > 1:
        # A nest that is to be split is cut into that many whole tiles where nothing else is said.
        chosen = replace(chosen, hold=False, block_kv=min(chosen.block_kv, max(COLUMNS, -(-width // given["splits"]))))
    if given["block_kv"] is not None:
        chosen = replace(chosen, hold=given["block_kv"] >= width and (given["splits"] or 1) == 1)
    chosen = replace(chosen, **{name: value for name, value in given.items() if value is not None})
    return chosen if chosen.num_warps else replace(chosen, num_warps=_warps(program, nest, chosen))


def _warps(program: Program, nest: Nest, knobs: Knobs) -> int | None:
    """8 for 128 rows of a product (a group of four warps multiplies 64) and for large tiles without rows; of long rows,
    as many as hold 32 elements a lane."""
    size = tile_elements(program, nest, knobs)
    if has_product(program, nest):
        large = size >= LARGE_TILE if nest.row is None else rows_of(program, nest, knobs) >= 2 * ROWS
        return 8 if large else None
    return warps_for(size) if size > ROWS * COLUMNS else None


def _entry(value: PerNest, n: int) -> int | None:
    return value[n] if isinstance(value, tuple) else value


def default_knobs(
    program: Program, nest: Nest, *, several: bool = False, multiprocessors: int = DEFAULT.sm_count
) -> Knobs:
    """What suits a nest by its shape.

    - Long rows without a matrix product (norms): a program a row, which takes it whole up to 2**15 elements and in
      tiles of 2**14 behind that, in as many warps as hold 32 elements a lane; where there are few rows, tiles such
      that one for each split fills the GPU once.
    - A product with a short column beside other nests (queries against random features): the column whole, and the
      most rows that still give every multiprocessor a program.
    - A product with rows enough for two programs of 128 a multiprocessor: tiles of 128 x 64 in 8 warps, within 5% of
      the best of four plain tilings of attention on an H200 at head_dim 128, and with memory to spare for loads.
    - A product in float32: tiles of 32 x 32 at most. No matrix unit has its precision, and of 64 x 64 elements a lane
      keeps more than its registers hold: ptxas 12.8 spilled 13 KB, and some rows were wrong on an H200.
    - All else: tiles of 64 x 64, with fewer columns where each has many elements (a key's features).

    Args:
        several: whether the operator has other nests; one that stands alone is asked to roll.
    """
    width, programs = columns_of(program, nest), parallelism(program, nest, 1)
    if has_product(program, nest):
        if multiplies_float32(program, nest):
            return Knobs(ROWS // 2, COLUMNS // 2)
        if several and COLUMNS < width <= LONGEST_FACTOR:
            return Knobs(_rows_that_fill(program, nest, width, multiprocessors), width, hold=True)
        if parallelism(program, nest, 2 * ROWS) >= 2 * multiprocessors and _folded(program, nest) <= 2 * COLUMNS:
            return Knobs(2 * ROWS, COLUMNS)
        return Knobs(ROWS, max(SMALLEST_ROWS, min(COLUMNS, LARGE_TILE // power_of_two(_others(program, nest)))))
    if width <= SHORT_ROW:
        return Knobs(ROWS, COLUMNS)
    if width <= LONGEST_ROW:
        return Knobs(1, width, hold=True)
    size = LONGEST_ROW // 2
    if programs < multiprocessors:
        size = min(LONGEST_ROW, max(SHORT_ROW, power_of_two(-(-width // max(1, multiprocessors // programs)))))
    return Knobs(1, size)


def _rows_that_fill(program: Program, nest: Nest, width: int, multiprocessors: int) -> int:
    """Rows of a program that holds `width` columns: the most that still leave three programs for four multiprocessors,
    in a tile that four warps can hold."""
    for rows in (128, 64, 32):
        if rows * width <= 2 * LARGE_TILE and 4 * parallelism(program, nest, rows) >= 3 * multiprocessors:
            return rows
    return 16


def _folded(program: Program, nest: Nest) -> int:
    """Elements that the nest's first product folds for each of its values."""
    first = tree.find_block(program, nest.first)[1]
    return prod(it.extent for it in first.iters if it.kind == "reduce")


def warps_for(elements: int) -> int:
    """Warps for a tile of so many elements.

    >>> [warps_for(n) for n in (256, 4096, 16384, 20000, 1 << 20)]
    [4, 4, 16, 32, 32]
    """
    return min(32, max(4, power_of_two(-(-elements // ELEMENTS_A_WARP))))


def power_of_two(n: int) -> int:
    """The least power of two that is `n` or more.

    >>> [power_of_two(n) for n in (1, 5, 8)]
    [1, 8, 8]
    """
    return 1 << (n - 1).bit_length()


def has_product(program: Program, nest: Nest) -> bool:
    """Whether a matrix product is among the nest's blocks."""
    return bool(_products(program, nest))


def multiplies_float32(program: Program, nest: Nest) -> bool:
    """Whether a matrix product of the nest has factors of float32 or wider."""
    return any(
        dtype_of(as_multiplied(*factors, program)[0], program) not in HALVES
        for b in _products(program, nest)
        if (factors := factors_of(b)) is not None
    )


def _products(program: Program, nest: Nest) -> list[Block]:
    names = {nest.first, *nest.beside, *nest.chain}
    return [b for b in tree.blocks(program) if b.name in names and reducer_of(b) == "sum" and is_product(b)]


def columns_of(program: Program, nest: Nest) -> int:
    """The extent of the nest's column in the definition."""
    return tree.find_block(program, nest.first)[1].iter(nest.column).extent


def rows_of(program: Program, nest: Nest, knobs: Knobs) -> int:
    """Rows of one tile of the nest."""
    if nest.row is None:
        return 1
    return nest.row_size or min(knobs.block_q, tree.find_block(program, nest.first)[1].iter(nest.row).extent)


def tile_elements(program: Program, nest: Nest, knobs: Knobs) -> int:
    """Elements of one tile of the nest's first block: its rows, its columns, and what else it has."""
    first = tree.find_block(program, nest.first)[1]
    columns = min(knobs.block_kv, first.iter(nest.column).extent)
    return columns * rows_of(program, nest, knobs) * _others(program, nest)


def _others(program: Program, nest: Nest) -> int:
    """Elements of the nest's first block for each row and column: dimensions that stay whole in its tile."""
    first = tree.find_block(program, nest.first)[1]
    kept = {nest.column, *nest.grid}
    return prod(it.extent for it in first.iters if it.kind == "spatial" and it.name not in kept)


# In tiles: what a program costs before and after its loop, and what one more split costs the kernel that combines.
_START, _COMBINE = 1.0, 0.05


def balanced_splits(programs: int, tiles: int, slots: int) -> int:
    """How many splits `programs` programs of `tiles` tiles are cut into, so that they run in whole waves of `slots`.

    The time is that of the waves, each as long as a split has tiles, and a little for each split that is combined.

    >>> balanced_splits(32, 512, 264), balanced_splits(8, 512, 132), balanced_splits(8, 4, 132)
    (8, 16, 4)
    """

    def cost(each: int) -> float:
        count = -(-tiles // each)
        return -(-programs * count // slots) * (each + _START) + count * _COMBINE

    return -(-tiles // min(range(1, tiles + 1), key=cost))


def splits_of(program: Program, nest: Nest, knobs: Knobs, multiprocessors: int) -> tuple[int, int]:
    """(splits, tiles in each) of a nest, no split empty."""
    tiles = -(-columns_of(program, nest) // knobs.block_kv)
    splits = knobs.splits
    if splits is None:
        beside = 1 if tile_elements(program, nest, knobs) >= LARGE_TILE else 2
        splits = balanced_splits(parallelism(program, nest, knobs.block_q), tiles, multiprocessors * beside)
    each = -(-tiles // splits)
    return -(-tiles // each), each


__all__ = [
    "COLUMNS",
    "ROWS",
    "Knobs",
    "balanced_splits",
    "columns_of",
    "default_knobs",
    "has_product",
    "knobs_of",
    "power_of_two",
    "splits_of",
    "tile_elements",
    "warps_for",
]
