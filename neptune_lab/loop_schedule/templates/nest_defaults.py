"""The tile sizes of a nest that the caller leaves open, chosen by the nest's shape."""

from __future__ import annotations

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.products import is_product
from neptune_lab.loop_ir.walks import loads, variables
from neptune_lab.loop_schedule.plan import COLUMN_TILE, SMALLEST_ROWS, NestPlan, parallelism
from neptune_lab.loop_schedule.templates.launch_hints import CROWDED
from neptune_lab.loop_schedule.templates.long_rows import long_rows
from neptune_lab.loop_schedule.templates.nest_reads import (
    element_bytes,
    folds_columns,
    matrices_read,
    reads_diagonals,
    reads_per_pair,
    reads_vector,
    writes_rows,
)
from neptune_lab.loop_schedule.templates.nest_shape import (
    COLUMNS,
    LARGE_TILE,
    ROWS,
    NestConfig,
    accumulated,
    accumulates_several,
    columns_of,
    folded,
    has_product,
    is_vector_product,
    multiplies_float32,
    multiplies_twice,
    others,
    products,
)
from neptune_lab.loop_schedule.templates.splits import SPLIT_ROW, SPLIT_ROW_WARPS, splits_written_rows
from neptune_lab.power_of_two import power_of_two
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import DEFAULT

# The most elements of a row that one program holds in one tile, and the most columns if it has a matrix product.
LONGEST_ROW, LONGEST_FACTOR = 1 << 15, 256
# The most elements of a row that a program holds beside another row and a vector, if there are many programs: of longer
# ones, registers are spilled. On an H100 the gradient of an RMSNorm of 2048 x 32768 takes 430 us with one tile and 249
# us with tiles of 16384; of a layer_norm 545 and 285 us. Of 2048 x 20000 one tile is faster: 150 us instead of 168.
HELD_BESIDE_A_VECTOR = 20480
# Rows of at most this many elements get the default tile. Longer ones, up to SHORT_ROW, share programs with others.
SHORTEST_ROW, SHORT_ROW = 256, 4096
# The fewest columns of a split.
SHORTEST_SPLIT = 1024
# Elements of the shortest rows that share a program; of longer ones, two rows do.
SHARED_ROWS = 2048
# The fewest neighbouring columns or diagonals of a program, and the elements of a diagonal in a tile: on an H200, sums
# along diagonals of 128 matrices of 1024 x 1024 take 272 us with tiles of 64 x 16, 314 us with 64 x 32, 1014 us with
# 64 x 64.
FEWEST_NEIGHBOURS, DIAGONAL_COLUMNS = 16, 16
# Bytes of a tile of keys that few rows are multiplied with.
KEYS_TILE = 16 << 10
# A product that sums over more elements than this is tiled along them too: its operands would not fit shared memory.
LONGEST_CONTRACTION = 256


def default_config(
    program: Program, nest: NestPlan, *, several: bool = False, multiprocessors: int = DEFAULT.sm_count
) -> NestConfig:
    """The config of a nest, chosen by its shape.

    - A sum of rows beside a narrower one (masked means): one row and 64 columns per program, in tiles of 64 x 64.
    - Matrix products: `_of_product`, and `_of_few_rows` for those of few rows.
    - Sums of columns (the gradient of a norm's scale): tiles of 64 x 64, so that neighbours in memory are loaded
      together; of few columns, down to 16 x 256.
    - Rows of at most 256 elements: `_rows_of_few_elements`, in tiles of 64 columns.
    - Longer rows: `_of_rows`.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        several: whether the operator has other nests.
        multiprocessors: of the GPU.

    Returns:
        The config, without splits and launch hints.
    """
    if nest.column_axis is not None:
        return NestConfig(1, COLUMNS, block_out=COLUMN_TILE)
    if has_product(program, nest):
        return _of_product(program, nest, several, multiprocessors)
    if folds_columns(program, nest) and parallelism(program, nest, ROWS) < multiprocessors:
        rows = _rows_of_short_sums(program, nest, multiprocessors)
        return NestConfig(rows, ROWS * COLUMNS // rows)
    if columns_of(program, nest) <= SHORTEST_ROW or folds_columns(program, nest):
        return NestConfig(_rows_of_few_elements(program, nest, multiprocessors), COLUMNS)
    return _of_rows(program, nest, multiprocessors)


def _of_product(program: Program, nest: NestPlan, several: bool, multiprocessors: int) -> NestConfig:
    """The config of a nest with a matrix product.

    - In float32: tiles of 32 x 32 at most. No matrix unit has that precision, and with 64 x 64 elements a lane needs
      more registers than it has: ptxas 12.8 spilled 13 KB, and some rows were wrong on an H200.
    - Products that accumulate side by side (the gradients of keys and values): tiles of 64 x 64 in 4 warps and 2
      stages, since each row keeps two accumulators: the best of six tilings on an H100, by geometric mean of four
      sizes.
      If a bias per pair is loaded through pointers, and both accumulators together have at most 128 columns, tiles of
      64 x 128: 210 us in place of 271 us on an H200, at 4 x 32 x 1024 x 64.
    - One product of many rows and columns over a long axis (logits, of which a loss is left): tiles of 128 x 256 in
      8 warps, as of a matrix product alone.
    - 65 to 256 columns in an operator of several nests (queries against random features): one tile for all columns,
      and the most rows that still give every multiprocessor a program.
    - Two products per tile before the one that accumulates at most 64 columns (the gradient of queries): tiles of
      64 x 64. Those of 128 x 64 take 1.2 to 1.4 times as long on an H100 in 4 or 8 warps.
    - One that accumulates more than 64 columns beside a bias per pair that is loaded through pointers: tiles of
      64 x 64 in 4 warps and 2 stages, so that two programs share a multiprocessor. On an H200, 1 x 16 x 4096 x 128
      takes 608 us with them, 600 us with 64 x 32, and 1302 us with 128 x 64; causal 343, 383 and 688; 1 x 16 x 1024 x
      128 takes 48, 55 and 92.
    - Two products per tile before the one that accumulates more than 64 columns, beside an input of 32 bits per pair:
      the same tiles. Those of 128 x 64 in 3 stages, 128 columns wide, take 262,144 bytes of shared memory, by Triton
      3.6 for sm_90, of which a multiprocessor has 232,448.
    - Enough rows for two programs of 128 rows per multiprocessor: tiles of 128 x 64 in 8 warps. This is within 5% of
      the best of four plain tilings of attention on an H200 at head_dim 128, and leaves shared memory for loads. Not
      where tiles of 64 rows compute at least a sixth less (`_pads_rows`).
    - Otherwise as `_of_few_rows`.
    """
    width = columns_of(program, nest)
    if multiplies_float32(program, nest):
        return NestConfig(ROWS // 2, COLUMNS // 2)
    if accumulates_several(program, nest) and nest.row_size is None:
        pointers = reads_per_pair(program, nest) and accumulated(program, nest) <= 2 * COLUMNS
        return NestConfig(ROWS, 2 * COLUMNS if pointers else COLUMNS, num_warps=4, num_stages=2)
    if _is_large_product(program, nest, multiprocessors):
        return NestConfig(2 * ROWS, 4 * COLUMNS, num_stages=3)
    if several and COLUMNS < width <= LONGEST_FACTOR:
        return NestConfig(_rows_that_fill(program, nest, width, multiprocessors), width, one_tile=True)
    if multiplies_twice(program, nest) and accumulated(program, nest) <= COLUMNS:
        return NestConfig(ROWS, COLUMNS)
    if _waits_for_pairs(program, nest) or _holds_wide_pairs(program, nest):
        return NestConfig(ROWS, COLUMNS, num_warps=4, num_stages=2)
    many = parallelism(program, nest, 2 * ROWS) >= 2 * multiprocessors
    if many and folded(program, nest) <= 2 * COLUMNS and not _pads_rows(program, nest):
        return NestConfig(2 * ROWS, COLUMNS)
    return _of_few_rows(program, nest, multiprocessors)


def _pads_rows(program: Program, nest: NestPlan) -> bool:
    """Whether tiles of 128 rows compute at least a sixth more rows than tiles of 64: of 129 to 192 rows and of 257 to
    320.

    On an H200, attention takes in tiles of 64 and of 128 rows: 512 heads of 130 x 64 17.8 and 25.2 us, of 185 x 64 25.9
    and 28.8, of 280 x 32 29.8 and 38.1; seven other problems 0.65 to 0.78 of the time.
    """
    if nest.row_axis is None:
        return False
    rows = tree.find_block(program, nest.first)[1].iter(nest.row_axis).extent
    tiles = -(-rows // ROWS)
    return tiles in (3, 5)


def _of_few_rows(program: Program, nest: NestPlan, multiprocessors: int) -> NestConfig:
    """The config of a product with too few rows to fill the GPU with tiles of 128.

    - Decoding: tiles of at most 16 KiB of keys, so that the next ones can be loaded meanwhile.
    - A sum over more than 128 elements: tiles of 64 x 32, so that several programs share a multiprocessor. On an H200,
      8 x 16 heads with 116 queries, 210 keys and widths of 192 and 128 take 11.4 us with them and 19.5 us with tiles of
      64 x 64; seven other problems take 0.70 to 1.02 of the time.
    - A sum over more than 64 elements, few columns, and programs of which each multiprocessor has three at most: the
      same tiles, so that all of them run at once. On an H200, attention of 128 heads of 139 x 128 takes 8.8 us with
      them and 11.5 us with tiles of 64 x 64, of 139 x 80 8.7 and 10.4, of 80 heads of 250 x 96 12.1 and 13.1; four
      other problems take 0.78 to 0.98 of the time.
    - Otherwise: tiles of 64 x 64, with fewer columns if each has many elements (a key's features).
    """
    columns = min(COLUMNS, LARGE_TILE // power_of_two(others(program, nest)))
    if nest.row_size is not None or is_vector_product(program, nest):
        widest = max(folded(program, nest), accumulated(program, nest), 1)
        columns = min(columns, KEYS_TILE // (power_of_two(widest) * element_bytes(program, nest)))
    elif folded(program, nest) > 2 * COLUMNS or _run_at_once(program, nest, multiprocessors):
        columns = min(columns, COLUMNS // 2)
    return NestConfig(ROWS, max(SMALLEST_ROWS, columns))


def _run_at_once(program: Program, nest: NestPlan, multiprocessors: int) -> bool:
    """Whether tiles of 64 x 32, of which a multiprocessor has room for three, make programs run in one turn where tiles
    of 64 x 64 would take two."""
    programs = parallelism(program, nest, ROWS)
    few = columns_of(program, nest) <= 4 * COLUMNS and folded(program, nest) > COLUMNS
    return few and 2 * multiprocessors < programs <= 3 * multiprocessors


def _of_rows(program: Program, nest: NestPlan, multiprocessors: int) -> NestConfig:
    """The config of rows of more than 256 elements without a matrix product (norms, softmax).

    - Diagonals: `_rows_of_diagonals`, in tiles of 16 elements of each.
    - 16 bits an element: as in `long_rows`, where that says something.
    - Up to 4096 elements: whole rows; two or more per program if every multiprocessor still has four programs, half as
      many if several inputs have rows (gradients).
    - Longer: one program per row, with one tile for the whole row up to 2**15 elements, otherwise tiles of 2**14; with
      few rows, tiles such that one split per tile fills the GPU once (of a softmax in 16 bits, tiles of 2**13 in 16
      warps). Many rows that are read beside others and a vector (gradients of norms) have one tile up to 20480
      elements.
    """
    width, programs = columns_of(program, nest), parallelism(program, nest, 1)
    if reads_diagonals(program, nest):
        return NestConfig(_rows_of_diagonals(program, nest, multiprocessors), DIAGONAL_COLUMNS)
    if others(program, nest) == 1 and element_bytes(program, nest) <= 2:
        again, vectors = writes_rows(program, nest), reads_vector(program, nest)
        written = [b for b in program.buffers if b.name in program.outputs and b.shape[-1:] == (width,)]
        alike = all(itemsize(b.dtype) == 2 for b in written)
        found = long_rows(width, programs, again=again, vectors=vectors, multiprocessors=multiprocessors, alike=alike)
        if found is not None:
            return found
    if width <= SHORT_ROW:
        return NestConfig(_short_rows(program, nest, multiprocessors), width, one_tile=True)
    if width <= (HELD_BESIDE_A_VECTOR if _is_crowded(program, nest, multiprocessors) else LONGEST_ROW):
        return NestConfig(1, width, one_tile=True)
    if splits_written_rows(program, nest, programs, multiprocessors):
        return NestConfig(1, SPLIT_ROW, num_warps=SPLIT_ROW_WARPS)
    size = LONGEST_ROW // 2
    if programs < multiprocessors:
        size = min(LONGEST_ROW, max(SHORTEST_SPLIT, power_of_two(-(-width // max(1, multiprocessors // programs)))))
    return NestConfig(1, size)


def _waits_for_pairs(program: Program, nest: NestPlan) -> bool:
    """Whether programs wait for elements of a bias per pair, and only one with a tile of 128 x 64 has room on a
    multiprocessor, so that nothing else runs meanwhile: it accumulates more than 64 columns.  With one more product
    per tile (the gradient of queries), there is enough to do."""
    rolls = nest.row_axis is not None and nest.row_size is None and accumulated(program, nest) > COLUMNS
    return rolls and reads_per_pair(program, nest) and not multiplies_twice(program, nest)


def _holds_wide_pairs(program: Program, nest: NestPlan) -> bool:
    """Whether the gradient of queries has tiles of an input of 32 bits per pair in shared memory, beside wide rows."""
    if nest.row_axis is None or not multiplies_twice(program, nest) or accumulated(program, nest) <= COLUMNS:
        return False
    dims, first = dimensions(program), tree.find_block(program, nest.first)[1]
    pair = {dims.of(first, nest.row_axis), dims.of(first, nest.reduce_axis)}
    wide = {b.name for b in program.buffers if b.name in program.inputs and itemsize(b.dtype) == 4}
    for name in nest.maps:
        block = tree.find_block(program, name)[1]
        for read in (read for read in loads(block.body.value) if read.buffer in wide):
            if pair <= {dims.of(block, axis) for index in read.indices for axis in variables(index)}:
                return True
    return False


def _is_crowded(program: Program, nest: NestPlan, multiprocessors: int) -> bool:
    """Whether many programs each read two rows or more and a vector along them, as the gradient of a norm does."""
    crowded = parallelism(program, nest, 1) >= CROWDED * multiprocessors
    return reads_vector(program, nest) and matrices_read(program, nest) > 1 and crowded


def _rows_of_few_elements(program: Program, nest: NestPlan, multiprocessors: int) -> int:
    """Rows of a program if each has few elements, such as a sum over samples: so many that it has a tile of usual size,
    if every multiprocessor then has enough programs.

    On an H200, sums of 4 elements in 33,554,432 rows take 446 us with 64 rows per program and 224 us with 1024.
    """
    rows, width = ROWS, columns_of(program, nest)
    while 2 * rows * power_of_two(width) <= ROWS * COLUMNS and parallelism(program, nest, 2 * rows) >= (
        2 * CROWDED * multiprocessors
    ):
        rows *= 2
    return rows


def _rows_of_short_sums(program: Program, nest: NestPlan, multiprocessors: int) -> int:
    """Columns that a program sums if 64 leave multiprocessors idle: fewer, in taller tiles.

    On an H200, the gradient of a layer_norm of 308 x 1294, of which the sums have 21 programs of 64 x 64 elements or 81
    of 16 x 256, takes 10.5 and 5.3 us.
    """
    rows = ROWS
    while rows > FEWEST_NEIGHBOURS and parallelism(program, nest, rows) < multiprocessors:
        rows //= 2
    return rows


def _rows_of_diagonals(program: Program, nest: NestPlan, multiprocessors: int) -> int:
    """Diagonals of a program: neighbours, whose elements lie beside each other in memory, so that all that is loaded at
    once (32 bytes) is used."""
    rows = ROWS
    while rows > FEWEST_NEIGHBOURS and parallelism(program, nest, rows) < CROWDED * multiprocessors:
        rows //= 2
    return rows


def _rows_that_fill(program: Program, nest: NestPlan, width: int, multiprocessors: int) -> int:
    """Rows of a program that holds `width` columns: the most whose tile fits four warps, and that give programs to
    three of four multiprocessors."""
    for rows in (128, 64, 32):
        if rows * width <= 2 * LARGE_TILE and 4 * parallelism(program, nest, rows) >= 3 * multiprocessors:
            return rows
    return 16


def _short_rows(program: Program, nest: NestPlan, multiprocessors: int) -> int:
    """Whole rows of a program: two, or more of short ones, if every multiprocessor then has four programs; half as many
    if several inputs have such rows, as the gradient of a softmax reads."""
    size = power_of_two(columns_of(program, nest))
    inputs = min(2, max(1, matrices_read(program, nest, beside=True)))
    rows = max(1, max(SHARED_ROWS, 2 * size) // (inputs * size * others(program, nest)))
    while rows > 1 and parallelism(program, nest, rows) < CROWDED * multiprocessors:
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
    full = first.iter(nest.row_axis).extent >= 2 * ROWS and others(program, nest) == 1
    return long and full and tiles >= multiprocessors and len(products(program, nest)) == 1


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


__all__ = ["LONGEST_CONTRACTION", "contraction_tile", "default_config"]
