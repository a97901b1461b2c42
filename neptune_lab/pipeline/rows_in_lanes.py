"""Rows of exponentials that are longer than a program holds, as those of a log-sum-exp: reduced lane by lane."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf

from neptune_lab.choice import NOTHING, Choice, CodeOptions, Given
from neptune_lab.errors import NeptuneError
from neptune_lab.htile_passes.reduce_in_lanes import reduce_in_lanes
from neptune_lab.htile_to_triton.in_lanes import PROGRAMS
from neptune_lab.loop_ir.nodes import Op
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.walks import walk
from neptune_lab.loop_schedule.templates.config import TileConfig
from neptune_lab.loop_schedule.templates.long_rows import HELD, HELD_TO_READ_ONCE, LONG_TO_READ_ONCE, VECTOR, busy
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.matrix_rows import MatrixRows
from neptune_lab.target import Target

# Warps of rows that are read once, by the most rows of each multiprocessor: so many that all programs run at a time, or
# in turns that leave few of them idle. On an H200, log-sum-exp of 448 x 90001 takes 24.5 us in 16 warps and 27.9 in 8,
# of 580 x 100000 33.4 in 4 and 36.6 in 8, of 1174 x 68976 42.4 in 16, 43.6 in 8 and 48.8 in 4, of 1650 x 100003 82.0 in
# 2 and 91.4 in 4, of 2508 x 120000 136.9 in 8 and 149.1 in 4; cross entropy of 369 x 120003 25.0 in 8 and 27.5 in 16.
WARPS_TO_READ_ONCE = ((2, 16), (3, 8), (4, 16), (8, 4), (9, 16), (16, 2), (inf, 8))
# Rows that 16 warps can hold have 8 in place of 16: cross entropy of 1122 x 45000 takes 28.8 us so and 29.2 in 16,
# log-sum-exp of 1174 x 30001 20.6 and 22.8 (19.9 in 4).
MANY, LONG, WARPS = 16, 65536, 8
# If there are fewer rows than multiprocessors, the fewest rows and elements for each of these, and the warps of long
# ones: split rows, whose parts are combined later, take longer. Cross entropy of 125 x 124823 takes 8.6 us in 32 warps
# and 11.5 in tiles, log-sum-exp of 80 x 250001 13.2 and 28.2, of 40 x 200001 10.5 and 12.3.
FEWEST_OF_FEW, FEWEST_ELEMENTS, WARPS_OF_FEW = 0.3, 40_000, 32
# If each multiprocessor has so many rows, from the first to below the second number, the warps of rows from `SHORT`
# elements on, by the longest. Of 252 problems of 33 to 300 rows on an H200 (docs/using/benchmark.md): log-sum-exp of
# 300 x 20000 takes 4.6 us in 8 warps and 7.7 held by 4, of 100 x 33001 3.5 and 5.3 in tiles, cross entropy of 100 x
# 57001 4.6 in 16 and 7.2 in tiles.
FEWEST_ROWS, FEW_ROWS, SHORT, WARPS_OF_SHORT = 0.25, 3, 16384, ((40960, 8), (LONG, 16))
# If there are fewer rows than this for each multiprocessor, longer ones are split among more programs if the model says
# so; whole vectors, and rows that begin between them: log-sum-exp of 33 x 80000 takes 4.2 us so and 5.2 in lanes, of 60
# x 200000 9.5 and 10.4, of 100 x 200000 15.0 and 10.9; of 40 x 226966 9.1 and 12.7, of 65 x 109742 6.6 and 7.9.
FEWEST_OF_WHOLE, FEWEST_OF_OTHERS = 0.7, 0.5
# The warps of rows that are written, by the longest: two programs of 8 have room on a multiprocessor, which then read
# and write at the same time, while the second-level cache holds the rows of all programs; the first-level cache holds
# the row of one of 32. At least so many rows of each multiprocessor, in turns that leave few of them idle.
WRITTEN, ROWS_OF_WRITTEN, BUSY = ((66000, 8), (115000, 32)), 7, 0.93


def rows_in_lanes(
    matrix: MatrixRows,
    make: Callable[[Choice], Kernel],
    target: Target,
    given: Given = NOTHING,
    *,
    sure: bool = False,
) -> Kernel | None:
    """The kernel in which each lane reduces its own part of a row, and all lanes of a program wait once a row.

    Args:
        matrix: the rows of the operator.
        make, target, given: as for `row_forms.form_of_rows`, which asks for the GPUs where it was measured.
        sure: likewise.

    Returns:
        The kernel; None if rows are short or few, or too long to be read twice, the operator does more than reduce its
        rows at once, or the choice is refused, or does not fit what is given.
    """
    if matrix.vectors:
        return None
    width, program = matrix.width, matrix.operator.program
    # Sums of other numbers are those of another pass (`squares_without_scale`), or wait for nothing.
    if not any(isinstance(e, Op) and e.name == "exp" for b in blocks(program) for e in walk(b.body.value)):
        return None
    of_each = matrix.count / target.sm_count
    warps = warps_of_written(width, of_each) if matrix.written else warps_to_read_once(width, of_each)
    choice = Choice("rolling_update", TileConfig(block_q=1, block_kv=width, num_warps=warps), CodeOptions())
    if warps is None or not given.fits(choice):
        return None
    if sure and width >= LONG and of_each < (FEWEST_OF_OTHERS if width % VECTOR else FEWEST_OF_WHOLE):
        return None
    with suppress(NeptuneError):
        kernel = make(given.over(choice) if given else choice)
        if any(done.changed for done in kernel.passes if done.name == reduce_in_lanes.__name__):
            return replace(kernel, chosen=f"the shape: each lane reduces its part of a row of {width} elements")
    return None


def warps_to_read_once(width: int, rows: float) -> int | None:
    """The warps of a program that reads a row once; None: rows are short or few.

    Args:
        width: elements of a row.
        rows: of each multiprocessor.

    >>> warps_to_read_once(30000, 1634 / 132), warps_to_read_once(46621, 2143 / 132), warps_to_read_once(91115, 3.8)
    (2, 8, 16)
    >>> warps_to_read_once(124823, 125 / 132), warps_to_read_once(134243, 255 / 132), warps_to_read_once(91115, 1.9)
    (32, 16, 8)
    >>> warps_to_read_once(900_000, 8 / 132), warps_to_read_once(60001, 100 / 132), warps_to_read_once(60001, 8.5)
    (None, 16, 8)
    """
    if FEWEST_ROWS <= rows < FEW_ROWS and SHORT <= width < LONG:
        return next(warps for most, warps in WARPS_OF_SHORT if width <= most)
    if width <= HELD_TO_READ_ONCE:
        return None
    if rows < 1:
        enough = rows >= FEWEST_OF_FEW and rows * width >= FEWEST_ELEMENTS
        return WARPS_OF_FEW if enough else None
    if rows < FEW_ROWS and width < LONG_TO_READ_ONCE:
        return WARPS
    warps = next(warps for most, warps in WARPS_TO_READ_ONCE if rows <= most)
    return WARPS if warps == MANY and width < LONG else warps


def warps_of_written(width: int, rows: float) -> int | None:
    """The same of a program that writes the row too.

    >>> warps_of_written(65537, 20.0), warps_of_written(98799, 60.0), warps_of_written(98799, 12.05)
    (8, 32, None)
    """
    if width <= HELD[-1][0] or rows < ROWS_OF_WRITTEN:
        return None
    warps = next((warps for most, warps in WRITTEN if width <= most), None)
    return warps if warps and busy(rows / PROGRAMS[warps]) >= BUSY else None


__all__ = ["rows_in_lanes", "warps_of_written", "warps_to_read_once"]
