"""Rows that are longer than a program holds and are written, as those of a softmax: programs share them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from neptune_lab.autotune.nests import entry
from neptune_lab.choice import NOTHING, Choice, CodeOptions, Given
from neptune_lab.errors import NeptuneError
from neptune_lab.htile_passes.share_rows import OF_A_WARP
from neptune_lab.htile_to_triton.waiting import resident
from neptune_lab.loop_schedule.templates.config import TileConfig
from neptune_lab.loop_schedule.templates.long_rows import HELD, VECTOR
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.matrix_rows import MatrixRows
from neptune_lab.target import Target

# Warps of a program that has a part of a row: with vectors along the rows, such as the scale of a norm, and without. On
# an H200 layer_norm of 2509 x 118068 takes 405 us with 2 and 430 with 4, softmax of 6965 x 132506 1258 and 1149.
WITH_VECTORS, WITHOUT = 2, 4
# The fewest rows, and the fewest of each multiprocessor of those that are split among programs otherwise and are
# shorter than `SURELY`: whole vectors of so many elements. On an H200 softmax of 60 x 80000 takes 9.4 us split and 10.0
# shared, of 100 x 80000 14.9 and 10.8, of 60 x 200000 19.6 and 14.7; layer_norm of 20 x 176507 takes 12.3 shared.
FEWEST_ROWS, FEWEST_OF_WHOLE, SURELY = 20, 0.6, 131072
# Rows without vectors that begin between vectors, and that a program could hold, are shared if they are longer than
# this and each multiprocessor has so many: it runs one program that holds a row at a time, which reads or writes, and
# in the last turn some run none. On an H200 softmax of 400 x 52002 takes 27.6 us so and 32.9 alone, 629 x 55579 44.3
# and 49.2, 1000 x 55001 68.7 and 72.5, but 800 x 45001 47.9 and 47.3.
FEW_ROWS_SHARED, LEAST_OF_EACH, MOST_OF_EACH = 49152, 3, 8
# Shorter rows that are shared too, by the rows of each multiprocessor: of more than the first number up to the second,
# those longer than the third. With vectors along the rows, and without. On an H200
# layer_norm of 33 x 45000 takes 6.0 us so and 6.6 in one program of 32 warps, of 33 x 57001 8.7 and 15.3, of 60 x 45000
# 7.1 and 6.8, of 200 x 45000 12.6 and 14.2, of 300 x 45000 17.5 and 21.5, of 200 x 33001 19.6 and 18.1; softmax of 200
# x 57001 14.2 and 18.8, of 300 x 45000 17.0 and 21.5, of 200 x 45000 12.8 and 11.4.
SHORT_WITH_VECTORS = ((0.0, 0.45, 32768), (1.0, 3.0, 40960))
SHORT_WITHOUT = ((1.0, 2.0, 49152), (2.0, 3.0, 40960))


def shared_rows(
    matrix: MatrixRows, make: Callable[[Choice], Kernel], target: Target, given: Given = NOTHING
) -> Kernel | None:
    """The kernel in which programs share rows and wait for each other once a row.

    Args:
        matrix: the rows of the operator.
        make, target, given: as for `row_forms.form_of_rows`, which asks for the GPUs where it was measured.

    Returns:
        The kernel; None if rows are short, few or not written, programs would wait more than once, or the choice is
        refused, or does not fit what is given.
    """
    if not matrix.written or len(matrix.operator.outputs) != 1:
        return None
    rows, width, vectors = matrix.count, matrix.width, matrix.vectors
    usual = WITH_VECTORS if vectors else WITHOUT
    choice = Choice(
        "rolling_update",
        TileConfig(block_q=1, block_kv=width, num_warps=usual),
        CodeOptions(combine="waiting"),
    )
    if not given.fits(choice):
        return None
    choice = given.over(choice) if given else choice
    warps = entry(choice.sizes.num_warps, 0) or usual
    parts = -(-width // (OF_A_WARP * warps))
    if resident(warps) * target.sm_count < parts or width <= _longest_alone(rows / target.sm_count, width, vectors):
        return None
    whole = not vectors and width % VECTOR == 0 and width < SURELY
    if rows < (FEWEST_OF_WHOLE * target.sm_count if whole else FEWEST_ROWS):
        return None
    with suppress(NeptuneError):
        kernel = make(choice)
        if [len(one.waits) for one in kernel.triton.kernels if one.waits] == [2]:
            return replace(kernel, chosen=f"the shape: {parts} programs share each row of {width} elements")
    return None


def _longest_alone(rows: float, width: int, vectors: bool) -> int:
    """The longest rows that are not shared.

    Args:
        rows: of each multiprocessor.
        width: elements of a row.
        vectors: whether there are vectors along the rows.

    >>> _longest_alone(0.3, 40000, vectors=True), _longest_alone(1.0, 40000, vectors=True)
    (32768, 57344)
    >>> _longest_alone(2.5, 40000, vectors=False), _longest_alone(4.0, 40001, vectors=False)
    (40960, 49152)
    """
    for least, most, longest in SHORT_WITH_VECTORS if vectors else SHORT_WITHOUT:
        if least < rows <= most:
            return longest
    few = not vectors and width % VECTOR > 0 and LEAST_OF_EACH <= rows < MOST_OF_EACH
    return FEW_ROWS_SHARED if few else HELD[-1][0]


__all__ = ["shared_rows"]
