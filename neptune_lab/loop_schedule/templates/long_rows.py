"""Tiles and warps of rows of 16 bits an element that are longer than 1024, without a matrix product.

Measured on an H200 over rows of 2055 to 262143 elements, odd and even (docs/using/benchmark.md).
"""

from __future__ import annotations

from math import ceil

from neptune_lab.loop_schedule.templates.nest_shape import NestConfig

# The longest rows that share a program with others.
SHORTEST = 1024
# The longest rows that a program holds in registers, by its warps: `cut_long_rows` then leaves few lanes empty.
HELD = ((4096, 2), (25600, 4), (36864, 8), (57344, 16))
# The same of rows that are read again, some of which programs load again for each pass, from the first-level cache
# (`htile_to_triton.loaded_again`): those of 22529 to 40960 elements, and beside vectors those of 32769 and more. Beside
# vectors, shorter ones from 9985 elements on are held as they were loaded (`htile_passes.hold_rows_as_loaded`).
AGAIN = (*HELD[:1], (22528, 4), *HELD[3:])
AGAIN_BESIDE_VECTORS = (*HELD[:1], (9984, 4), (24576, 8), (45056, 16), (57344, 32))
# Of fewer rows, those that are loaded again if they begin between vectors.
FEW, FEW_BESIDE_VECTORS = ((40960, 16), (57344, 32)), AGAIN_BESIDE_VECTORS[3:]
FEW_HELD, VECTOR = 20480, 8
# The fewest elements of all rows together that are loaded again beside vectors: those of fewer are not copied for each
# place where a row may begin (`shift_vectors`), and loads beside multiples of 16 bytes take longer from the cache.
MANY_ELEMENTS = 1 << 24
# The longest rows that a program holds although it reads each element once: longer ones take fewer registers, hence
# more programs per multiprocessor, in a loop.
HELD_TO_READ_ONCE = 20480
# The shortest of them that have 8 warps if each begins at a whole vector: on an H200 the largest element of an RMSNorm
# of 4852 x 16176 takes 38.9 us so and 47.4 in 4 warps, a log-sum-exp of 2700 x 16176 25.3 and 27.3, a cross entropy of
# 5000 x 18432 52.3 and 53.4, but of 3560 x 9936 24.4 and 21.1, and a log-sum-exp of 4000 x 19003 46.8 and 40.7.
WHOLE_TO_READ_ONCE, WARPS_TO_READ_ONCE = 12288, 8
# The fewest warps of rows of an odd number of elements beside vectors, if they are not loaded again: they are loaded
# one by one. On an H200 a layer_norm of 3000 x 4001 takes 19.1 us in 4 warps and 22.9 in 2, of 1900 x 2065 6.6 and 6.7.
ODD_WARPS = 4
# The longest rows without vectors that 16 warps read twice: longer ones take larger tiles, of which fewer wait for the
# reductions of all threads. On an H200 softmax of 1300 x 90112 takes 145 us so and 157 in tiles of 32768 elements, of
# 5083 x 112055 775 and 713, of 6965 x 132506 1283 and 1147.
IN_SMALL_TILES = 98304
# Tiles of rows that are read once in a loop by 4 warps, and the programs that a multiprocessor runs at a time.
ONCE = ((4096, 8), (8192, 4))
# The shortest rows that are read once in larger tiles, by 8 warps, if a multiprocessor has two at most: one row alone
# then asks for more bytes at a time. On an H200 the L2 norm of 225 x 163054 takes 19.5 us so and 22.7 in tiles of 8192,
# the log-sum-exp of 200 x 200001 26.9 and 29.9, but of 200 x 50001 9.0 and 8.7; the L2 norm of 300 x 131073 24.6 and
# 22.3.
LONG_TO_READ_ONCE = 98304
# By how much of a turn the larger tile must be better.
LESS_IDLE = 0.1


def long_rows(
    width: int, programs: int, *, again: bool, vectors: bool, multiprocessors: int, alike: bool = True
) -> NestConfig | None:
    """The config of such rows.

    Args:
        width: elements of a row.
        programs: rows.
        again: elements are read again after a reduction, such as those of a softmax.
        vectors: there are vectors along the rows, such as the scale of a norm.
        multiprocessors: of the GPU.
        alike: the rows that are written have 16 bits an element too; others were measured in registers only.

    Returns:
        The config; None if the rows are too short, or too few for a multiprocessor to have several.
    """
    if width <= SHORTEST or 4 * programs < 3 * multiprocessors:
        return None
    crowded = programs >= 4 * multiprocessors
    loads_again = again and alike and (not vectors or programs * width >= MANY_ELEMENTS)
    if crowded and width <= (HELD[-1][0] if again else HELD_TO_READ_ONCE):
        loaded = AGAIN_BESIDE_VECTORS if vectors else AGAIN
        warps = _warps(loaded if loads_again else HELD, width)
        if not again and width > WHOLE_TO_READ_ONCE and width % VECTOR == 0:
            warps = WARPS_TO_READ_ONCE
        if again and alike and vectors and not loads_again and width % 2:
            warps = max(warps, ODD_WARPS)
        return NestConfig(1, width, num_warps=warps, one_tile=True)
    if loads_again and not crowded and FEW_HELD < width <= HELD[-1][0] and width % VECTOR:
        return NestConfig(1, width, num_warps=_warps(FEW_BESIDE_VECTORS if vectors else FEW, width), one_tile=True)
    if not again and width > HELD_TO_READ_ONCE:
        if programs <= 2 * multiprocessors and width >= LONG_TO_READ_ONCE:
            return NestConfig(1, 16384, num_warps=8)
        return NestConfig(1, _tile_to_read_once(programs / multiprocessors) if crowded else 8192, num_warps=4)
    if not again or width <= HELD[-1][0]:
        return None
    if crowded and vectors:
        return NestConfig(1, 8192, num_warps=4, num_stages=3)
    if crowded and width <= IN_SMALL_TILES:
        return NestConfig(1, 16384, num_warps=16)
    return NestConfig(1, 16384 if vectors else 32768, num_warps=32)


def _warps(table: tuple[tuple[int, int], ...], width: int) -> int:
    """The warps for rows of so many elements.

    >>> _warps(HELD, 4096), _warps(HELD, 30001), _warps(AGAIN_BESIDE_VECTORS, 50257)
    (2, 8, 32)
    """
    return next(warps for most, warps in table if width <= most)


def _tile_to_read_once(rows: float) -> int:
    """The tile of rows that are read once: the smaller, unless the programs of the larger one come out better.

    Programs run in turns, and in the last one few read, too few to keep the memory busy. On an H100 2500 rows of 40001
    elements, 2.37 turns in tiles of 4096 and 4.73 in tiles of 8192, take 74.5 and 70.1 us for a cross entropy in
    float16, and 1100 of 50000 in bfloat16, 1.04 and 2.08 turns, 48.3 and 44.8.

    Args:
        rows: of each multiprocessor.

    >>> _tile_to_read_once(2500 / 132), _tile_to_read_once(1762 / 132), _tile_to_read_once(4096 / 132)
    (8192, 4096, 4096)
    """
    (small, many), (large, few) = ONCE
    return large if busy(rows / few) > busy(rows / many) + LESS_IDLE else small


def busy(turns: float) -> float:
    """The share of all turns in which programs run; 1 if one turn is enough."""
    return turns / ceil(turns) if turns > 1 else 1.0
