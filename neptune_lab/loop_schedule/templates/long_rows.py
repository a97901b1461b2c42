"""Tiles and warps of rows of 16 bits an element that are longer than 1024, without a matrix product.

Measured on an H200 over rows of 2055 to 262143 elements, odd and even (docs/using/benchmark.md).
"""

from __future__ import annotations

from neptune_lab.loop_schedule.templates.nest_shape import NestConfig

# The longest rows that share a program with others.
SHORTEST = 1024
# The longest rows that a program holds in registers, by its warps: `cut_long_rows` then leaves few lanes empty.
HELD = ((4096, 2), (25600, 4), (36864, 8), (57344, 16))
# The longest rows that a program holds although it reads each element once: longer ones take fewer registers, hence
# more programs per multiprocessor, in a loop.
HELD_TO_READ_ONCE = 20480
# The longest rows without vectors that 16 warps read twice: longer ones take larger tiles, of which fewer wait for the
# reductions of all threads. On an H200 softmax of 1300 x 90112 takes 145 us so and 157 in tiles of 32768 elements, of
# 5083 x 112055 775 and 713, of 6965 x 132506 1283 and 1147.
IN_SMALL_TILES = 98304


def long_rows(width: int, programs: int, *, again: bool, vectors: bool, multiprocessors: int) -> NestConfig | None:
    """The config of such rows.

    Args:
        width: elements of a row.
        programs: rows.
        again: elements are read again after a reduction, such as those of a softmax.
        vectors: there are vectors along the rows, such as the scale of a norm.
        multiprocessors: of the GPU.

    Returns:
        The config; None if the rows are too short, or too few for a multiprocessor to have several.
    """
    if width <= SHORTEST or 4 * programs < 3 * multiprocessors:
        return None
    crowded = programs >= 4 * multiprocessors
    if crowded and width <= (HELD[-1][0] if again else HELD_TO_READ_ONCE):
        warps = next(warps for most, warps in HELD if width <= most)
        return NestConfig(1, width, num_warps=warps, one_tile=True)
    if not again and width > HELD_TO_READ_ONCE:
        return NestConfig(1, 4096 if crowded else 8192, num_warps=4)
    if not again or width <= HELD[-1][0]:
        return None
    if crowded and vectors:
        return NestConfig(1, 8192, num_warps=4, num_stages=3)
    if crowded and width <= IN_SMALL_TILES:
        return NestConfig(1, 16384, num_warps=16)
    return NestConfig(1, 16384 if vectors else 32768, num_warps=32)
