"""The tile sizes and launch hints of each nest: the caller's if given, otherwise chosen by its shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dtypes import as_multiplied, dtype_of
from neptune_lab.loop_ir.nodes import Block, Program
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_schedule.plan import COLUMN_TILE, SMALLEST_ROWS, NestPlan, factors_of, is_product, parallelism
from neptune_lab.loop_schedule.templates.config import TileConfig
from neptune_lab.strict.dtypes import EIGHTS, HALVES
from neptune_lab.target import DEFAULT

# The default rows and columns of a tile.
ROWS, COLUMNS = 64, 64
# The most elements of a row that one program holds in one tile, and the most columns if it has a matrix product.
LONGEST_ROW, LONGEST_FACTOR = 1 << 15, 256
# Rows of at most this many elements get the default tile. Longer ones, up to SHORT_ROW, share programs with others.
SHORTEST_ROW, SHORT_ROW = 256, 1024
# A program whose product has a tile of this many elements takes 8 warps and a whole multiprocessor. Of smaller
# programs, two share a multiprocessor.
LARGE_TILE = 8192
# A product that sums over more elements than this is tiled along them too: its operands would not fit shared memory.
LONGEST_CONTRACTION = 256
# Elements of a tile per warp: 32 for each of its 32 lanes.
ELEMENTS_PER_WARP = 1024


@dataclass(frozen=True, slots=True)
class NestConfig:
    """The tile sizes and launch hints of one nest.

    Args:
        block_q: rows per program.
        block_kv: columns per tile.
        block_out: columns of the output per program, if only the last product has them; None: all.
        splits: parts that the reduce axis is split into; 1: the nest rolls; None: chosen when the nest is split.
        num_warps, num_stages: launch hints; None: the emitter's defaults.
        one_tile: one tile holds the whole reduce axis, so that nothing rolls and nothing needs a repair.
    """

    block_q: int
    block_kv: int
    block_out: int | None = None
    splits: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    one_tile: bool = False


# The fields of a config that have one entry per nest; `splits` is in SplitKConfig only.
_SIZES = ("block_q", "block_kv", "block_out", "splits", "num_warps", "num_stages")


def nest_configs(program: Program, nests: tuple[NestPlan, ...], config: TileConfig) -> tuple[NestConfig, ...]:
    """The config of each nest.

    Args:
        program: the definition, before any step.
        nests: from `plan`.
        config: what the caller chose; sizes that it leaves open are chosen by shape (`default_config`).

    Returns:
        One NestConfig per nest.

    Raises:
        ScheduleError: a tuple in `config` does not have one entry per nest.
    """
    for name in _SIZES:
        value = getattr(config, name, None)
        if isinstance(value, tuple) and len(value) != len(nests):
            firsts = ", ".join(nest.first for nest in nests)
            raise ScheduleError(
                f"{name}={value!r} has {len(value)} entries for {len(nests)} nests",
                help="give one number, or one entry per nest (None: chosen by shape); the nests start at the blocks "
                f"{firsts}",
            )
    several = len(nests) > 1
    return tuple(_nest_config(program, nest, n, several, config) for n, nest in enumerate(nests))


def _nest_config(program: Program, nest: NestPlan, n: int, several: bool, config: TileConfig) -> NestConfig:
    values = {name: getattr(config, name, None) for name in _SIZES}
    given = {name: value[n] if isinstance(value, tuple) else value for name, value in values.items()}
    chosen = default_config(program, nest, several=several, multiprocessors=config.multiprocessors)
    width, splits = columns_of(program, nest), given["splits"] or 1
    if splits > 1:
        # Unless block_kv is given, tiles are short enough for this number of splits.
        chosen = replace(chosen, one_tile=False, block_kv=min(chosen.block_kv, max(COLUMNS, -(-width // splits))))
    if given["block_kv"] is not None:
        chosen = replace(chosen, one_tile=given["block_kv"] >= width and splits == 1)
    chosen = replace(chosen, **{name: value for name, value in given.items() if value is not None})
    return chosen if chosen.num_warps else replace(chosen, num_warps=_warps(program, nest, chosen))


def _warps(program: Program, nest: NestPlan, config: NestConfig) -> int | None:
    """8 for 128 rows of a product (a group of four warps multiplies 64 rows), unless a row accumulates at most 64
    elements; 8 for large tiles of a product without rows; for long rows without a product, enough for 32 elements per
    lane; None: the emitter's default."""
    size = tile_elements(program, nest, config)
    if has_product(program, nest):
        if nest.row_axis is None:
            return 8 if size >= LARGE_TILE else None
        wide = config.block_kv > COLUMNS or _accumulated(program, nest) > COLUMNS
        return 8 if wide and rows_of(program, nest, config) >= 2 * ROWS else None
    return warps_for(size) if size > ROWS * COLUMNS else None


def _accumulated(program: Program, nest: NestPlan) -> int:
    """Elements that the nest's products keep for each row over the loop."""
    rows = prod(tree.find_block(program, nest.first)[1].iter(name).extent for name in nest.parallel_axes)
    kept = [b for b in _products(program, nest) if b.name != nest.first]
    return sum(prod(it.extent for it in b.iters if it.kind == "spatial") for b in kept) // rows


def default_config(
    program: Program, nest: NestPlan, *, several: bool = False, multiprocessors: int = DEFAULT.sm_count
) -> NestConfig:
    """The config of a nest, chosen by its shape.

    - Rows of 257 to 1024 elements without a matrix product: whole rows, as many per program as fill a tile of the
      default size and still give every multiprocessor two programs.
    - Long rows without a matrix product (norms): one program per row, with one tile for the whole row up to 2**15
      elements, otherwise tiles of 2**14; with few rows, tiles such that one split per tile fills the GPU once.
    - A product with 65 to 256 columns in an operator of several nests (queries against random features): one tile
      for all columns, and the most rows that still give every multiprocessor a program.
    - A product with enough rows for two programs of 128 rows per multiprocessor: tiles of 128 x 64 in 8 warps. This is
      within 5% of the best of four plain tilings of attention on an H200 at head_dim 128, and leaves shared memory
      for loads.
    - One product of many rows and columns over a long axis (logits, of which a loss is left): tiles of 128 x 256 in
      8 warps, as of a matrix product alone.
    - A product in float32: tiles of 32 x 32 at most. No matrix unit has that precision, and with 64 x 64 elements a
      lane needs more registers than it has: ptxas 12.8 spilled 13 KB, and some rows were wrong on an H200.
    - A sum of rows beside a narrower one (masked means): one row and 64 columns per program, in tiles of 64 x 64.
    - Otherwise: tiles of 64 x 64, with fewer columns if each has many elements (a key's features).

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        several: whether the operator has other nests.
        multiprocessors: of the GPU.

    Returns:
        The config, without splits and launch hints.
    """
    width, programs = columns_of(program, nest), parallelism(program, nest, 1)
    if nest.column_axis is not None:
        return NestConfig(1, COLUMNS, block_out=COLUMN_TILE)
    if has_product(program, nest):
        if multiplies_float32(program, nest):
            return NestConfig(ROWS // 2, COLUMNS // 2)
        if _is_large_product(program, nest, multiprocessors):
            return NestConfig(2 * ROWS, 4 * COLUMNS, num_stages=3)
        if several and COLUMNS < width <= LONGEST_FACTOR:
            return NestConfig(_rows_that_fill(program, nest, width, multiprocessors), width, one_tile=True)
        if parallelism(program, nest, 2 * ROWS) >= 2 * multiprocessors and _folded(program, nest) <= 2 * COLUMNS:
            return NestConfig(2 * ROWS, COLUMNS)
        return NestConfig(ROWS, max(SMALLEST_ROWS, min(COLUMNS, LARGE_TILE // power_of_two(_others(program, nest)))))
    if width <= SHORTEST_ROW:
        return NestConfig(ROWS, COLUMNS)
    if width <= SHORT_ROW:
        return NestConfig(_short_rows(program, nest, width, multiprocessors), width, one_tile=True)
    if width <= LONGEST_ROW:
        return NestConfig(1, width, one_tile=True)
    size = LONGEST_ROW // 2
    if programs < multiprocessors:
        size = min(LONGEST_ROW, max(SHORT_ROW, power_of_two(-(-width // max(1, multiprocessors // programs)))))
    return NestConfig(1, size)


def _rows_that_fill(program: Program, nest: NestPlan, width: int, multiprocessors: int) -> int:
    """Rows of a program that holds `width` columns: the most whose tile fits four warps, and that give programs to
    three of four multiprocessors."""
    for rows in (128, 64, 32):
        if rows * width <= 2 * LARGE_TILE and 4 * parallelism(program, nest, rows) >= 3 * multiprocessors:
            return rows
    return 16


def _short_rows(program: Program, nest: NestPlan, width: int, multiprocessors: int) -> int:
    """Whole rows of a program: the most that fit a tile of the default size and give every multiprocessor two
    programs."""
    rows = max(1, ROWS * COLUMNS // (power_of_two(width) * _others(program, nest)))
    while rows > 1 and parallelism(program, nest, rows) < 2 * multiprocessors:
        rows //= 2
    return rows


def _is_large_product(program: Program, nest: NestPlan, multiprocessors: int) -> bool:
    """Whether the nest's only product sums over a long axis, and has a tile of 128 x 256 for each multiprocessor."""
    first = tree.find_block(program, nest.first)[1]
    if nest.row_axis is None or nest.row_size is not None or not is_product(first):
        return False
    long = any(
        it.kind == "reduce" and it.name != nest.reduce_axis and it.extent > LONGEST_CONTRACTION for it in first.iters
    )
    tiles = parallelism(program, nest, 2 * ROWS) * (columns_of(program, nest) // (4 * COLUMNS))
    full = first.iter(nest.row_axis).extent >= 2 * ROWS and _others(program, nest) == 1
    return long and full and tiles >= multiprocessors and len(_products(program, nest)) == 1


def _folded(program: Program, nest: NestPlan) -> int:
    """How many elements the nest's first block folds into one value."""
    first = tree.find_block(program, nest.first)[1]
    return prod(it.extent for it in first.iters if it.kind == "reduce")


def warps_for(elements: int) -> int:
    """Warps for a tile: 32 elements per lane, between 4 and 32 warps.

    Args:
        elements: elements of the tile.

    Returns:
        The number of warps, a power of two.

    >>> [warps_for(n) for n in (256, 4096, 16384, 20000, 1 << 20)]
    [4, 4, 16, 32, 32]
    """
    return min(32, max(4, power_of_two(-(-elements // ELEMENTS_PER_WARP))))


def power_of_two(n: int) -> int:
    """The least power of two that is `n` or more.

    Args:
        n: a positive integer.

    Returns:
        The power of two.

    >>> [power_of_two(n) for n in (1, 5, 8)]
    [1, 8, 8]
    """
    return 1 << (n - 1).bit_length()


def contraction_tile(rows: int, columns: int) -> int:
    """Elements that one step of a product sums over, if it sums over more than `LONGEST_CONTRACTION`: 128, or 64 for
    tiles of 128 x 256, of which three stages then fit shared memory.

    Args:
        rows, columns: of the product's tile.

    Returns:
        The number of elements.

    >>> contraction_tile(64, 64), contraction_tile(128, 256)
    (128, 64)
    """
    return 64 if rows * columns >= 4 * LARGE_TILE else 128


def has_product(program: Program, nest: NestPlan) -> bool:
    """Whether a matrix product is among the nest's blocks.

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        True if there is one.
    """
    return bool(_products(program, nest))


def multiplies_float32(program: Program, nest: NestPlan) -> bool:
    """Whether a matrix product of the nest has factors of float32 or wider."""
    return any(
        dtype_of(as_multiplied(*factors, program)[0], program) not in (*EIGHTS, *HALVES)
        for b in _products(program, nest)
        if (factors := factors_of(b)) is not None
    )


def _products(program: Program, nest: NestPlan) -> list[Block]:
    names = {nest.first, *nest.auxiliary_reductions, *nest.reductions}
    return [b for b in tree.blocks(program) if b.name in names and reducer_of(b) == "sum" and is_product(b)]


def columns_of(program: Program, nest: NestPlan) -> int:
    """The extent of the nest's reduce axis.

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        The number of columns.
    """
    return tree.find_block(program, nest.first)[1].iter(nest.reduce_axis).extent


def rows_of(program: Program, nest: NestPlan, config: NestConfig) -> int:
    """Rows of one tile of the nest."""
    if nest.row_axis is None:
        return 1
    return nest.row_size or min(config.block_q, tree.find_block(program, nest.first)[1].iter(nest.row_axis).extent)


def tile_elements(program: Program, nest: NestPlan, config: NestConfig) -> int:
    """Elements of one tile of the nest's first block: rows x columns x the extents of its other axes.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        config: the nest's tile sizes.

    Returns:
        The number of elements.
    """
    first = tree.find_block(program, nest.first)[1]
    columns = min(config.block_kv, first.iter(nest.reduce_axis).extent)
    return columns * rows_of(program, nest, config) * _others(program, nest)


def _others(program: Program, nest: NestPlan) -> int:
    """Elements of the nest's first block per row and column: the product of the extents of its other axes."""
    first = tree.find_block(program, nest.first)[1]
    kept = {nest.reduce_axis, *nest.parallel_axes}
    return prod(it.extent for it in first.iters if it.kind == "spatial" and it.name not in kept)


# In units of the time of one tile: the time of a program outside its loop, and the time to combine one more split.
_START, _COMBINE = 1.0, 0.05


def balanced_splits(programs: int, tiles: int, slots: int) -> int:
    """The number of splits for `programs` programs of `tiles` tiles each, so that they run in whole waves of `slots`.

    It minimises a model of the time: waves x (tiles per split + `_START`) + splits x `_COMBINE`.

    Args:
        programs: programs without splits.
        tiles: tiles of each program.
        slots: programs that the GPU runs at a time.

    Returns:
        The number of splits, at least 1.

    >>> balanced_splits(32, 512, 264), balanced_splits(8, 512, 132), balanced_splits(8, 4, 132)
    (8, 16, 4)
    """

    def cost(each: int) -> float:
        count = -(-tiles // each)
        return -(-programs * count // slots) * (each + _START) + count * _COMBINE

    return -(-tiles // min(range(1, tiles + 1), key=cost))


def splits_of(program: Program, nest: NestPlan, config: NestConfig, multiprocessors: int) -> tuple[int, int]:
    """The number of splits of a nest, and the tiles in each.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        config: the nest's tile sizes, and the number of splits if the caller chose it.
        multiprocessors: of the GPU.

    Returns:
        (splits, tiles per split); no split is empty.
    """
    tiles = -(-columns_of(program, nest) // config.block_kv)
    splits = config.splits
    if splits is None:
        resident = 1 if tile_elements(program, nest, config) >= LARGE_TILE else 2
        splits = balanced_splits(parallelism(program, nest, config.block_q), tiles, multiprocessors * resident)
    each = -(-tiles // splits)
    return -(-tiles // each), each


__all__ = [
    "COLUMNS",
    "LONGEST_CONTRACTION",
    "ROWS",
    "NestConfig",
    "balanced_splits",
    "columns_of",
    "contraction_tile",
    "default_config",
    "has_product",
    "nest_configs",
    "power_of_two",
    "splits_of",
    "tile_elements",
    "warps_for",
]
