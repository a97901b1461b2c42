"""The forms of long rows that were measured, of which the model of costs knows too little to rank them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from neptune_lab.choice import NOTHING, Choice, Given
from neptune_lab.pipeline.held_rows import held_rows
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.matrix_rows import matrix_rows
from neptune_lab.pipeline.rows_in_lanes import rows_in_lanes
from neptune_lab.pipeline.shared_rows import shared_rows
from neptune_lab.target import Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator


def form_of_rows(
    operator: Operator,
    make: Callable[[Choice], Kernel],
    target: Target,
    given: Given = NOTHING,
    *,
    sure: bool = False,
) -> Kernel | None:
    """The kernel whose lanes reduce rows, whose programs share them, or one of whose programs holds each.

    Args:
        operator: what is compiled.
        make: compiles a choice.
        target: the GPU.
        given: what the caller gives, which replaces parts of the choice.
        sure: only if it is faster than other tiles and splits that the model may rank first.

    Returns:
        The kernel; None if none of these forms was faster for rows of this length and number, the operator has others
        than `matrix_rows`, or the GPU is another one than those where they were measured.
    """
    matrix = matrix_rows(operator) if target.warpgroup_products else None
    if matrix is None:
        return None
    return (
        rows_in_lanes(matrix, make, target, given, sure=sure)
        or shared_rows(matrix, make, target, given)
        or held_rows(matrix, make, target, given)
    )


__all__ = ["form_of_rows"]
