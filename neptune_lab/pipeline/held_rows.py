"""Long rows of which there are few: one program of many warps holds each, or reads it in large tiles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from neptune_lab.choice import NOTHING, Choice, CodeOptions, Given
from neptune_lab.errors import NeptuneError
from neptune_lab.htile_passes.squares_without_scale import squares_without_scale
from neptune_lab.loop_schedule.templates.config import TileConfig
from neptune_lab.loop_schedule.templates.long_rows import HELD
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.matrix_rows import MatrixRows
from neptune_lab.target import Target

# The fewest and the most rows of each multiprocessor, the longest shorter rows that others hold as well or
# better, and the warps: of rows that are only read, that are written, and that are written beside vectors along them.
# Of 252 problems of 33 to 300 rows on an H200 (docs/using/benchmark.md): the L2 norm of 100 x 33001 takes 2.7 us so and
# 3.9 in tiles, the largest element of an RMS norm of 100 x 45000 4.1 and 5.7, of 33 x 57001 5.0 and 4.4 in splits;
# softmax of 60 x 57001 7.9 and 10.7, of 33 x 45000 over 5.7 and 5.2; layer_norm of 100 x 45000 8.0 and 16.5. With more
# rows than multiprocessors, programs run in two turns: the largest element of 152 x 21779 5.5 and 4.8.
ONLY_READ, WRITTEN, BESIDE_VECTORS = (0.25, 1.0, 20480, 32), (0.45, 1.0, 20480, 16), (0.45, 1.0, 32768, 32)
# Beside vectors, rows of up to so many elements are held by 32 warps if each multiprocessor has fewer than 3:
# layer_norm of 300 x 33001 takes 24.9 us so and 29.8 when each pass loads them again.
LONGEST_OF_MORE, MORE = 40960, 3.0
# Longer rows that are only read: the tile, its warps, and the fewest and the most rows of each multiprocessor. Norms
# whose squares are summed without their scale take 4.2 us for 60 x 80000 and 5.1 in splits, for 131 x 200000 16.4 and
# 21.9, but for 33 x 200000 8.9 and 6.1. Others wait twice in each tile, and do so only from `SURELY` elements on: the
# largest element of an RMS norm of 131 x 200000 takes 17.4 and 21.6, but of 100 x 80000 7.2 and 5.7.
TILE, TILE_WARPS, LEAST, MOST = 16384, 16, 0.45, 1.0
SURELY, LEAST_OF_OTHERS = 150_000, 0.75


def held_rows(
    matrix: MatrixRows, make: Callable[[Choice], Kernel], target: Target, given: Given = NOTHING
) -> Kernel | None:
    """The kernel in which one program of many warps has each row.

    Args:
        matrix: the rows of the operator.
        make, target, given: as for `row_forms.form_of_rows`, which asks for the GPUs where it was measured.

    Returns:
        The kernel; None if rows are short or many, or only read beside vectors, the choice is refused, or other tiles
        or warps are given.
    """
    if matrix.vectors and not matrix.written:
        return None
    of_each, width = matrix.count / target.sm_count, matrix.width
    warps = warps_that_hold(width, of_each, written=matrix.written, vectors=matrix.vectors)
    loops = warps is None and not matrix.written and width > HELD[-1][0] and LEAST <= of_each <= MOST
    if warps is None and not loops:
        return None
    tiles = TileConfig(block_q=1, block_kv=TILE if loops else width, num_warps=TILE_WARPS if loops else warps)
    choice = Choice("rolling_update", tiles, CodeOptions())
    if not given.fits(choice) or (given and given.over(choice).sizes != tiles):
        return None
    with suppress(NeptuneError):
        kernel = make(given.over(choice) if given else choice)
        plain = any(done.changed for done in kernel.passes if done.name == squares_without_scale.__name__)
        if not loops or plain or (width >= SURELY and of_each >= LEAST_OF_OTHERS):
            does = f"reads each row in tiles of {TILE}" if loops else f"holds each row of {width} elements"
            return replace(kernel, chosen=f"the shape: one program of {tiles.num_warps} warps {does}")
    return None


def warps_that_hold(width: int, rows: float, *, written: bool, vectors: bool) -> int | None:
    """The warps of a program that holds a row; None: rows are short, long, few or many.

    Args:
        width: elements of a row.
        rows: of each multiprocessor.
        written: whether the rows are written too.
        vectors: whether there are vectors along the rows.

    >>> [warps_that_hold(45000, rows / 132, written=True, vectors=True) for rows in (33, 100, 200)]
    [None, 32, None]
    >>> warps_that_hold(33001, 300 / 132, written=True, vectors=True)
    32
    >>> [warps_that_hold(45000, 100 / 132, written=written, vectors=False) for written in (False, True)]
    [32, 16]
    """
    least, most, shorter, warps = BESIDE_VECTORS if vectors else WRITTEN if written else ONLY_READ
    few = rows <= most or (vectors and width <= LONGEST_OF_MORE and rows < MORE)
    return warps if few and shorter < width <= HELD[-1][0] and least <= rows else None


__all__ = ["held_rows", "warps_that_hold"]
