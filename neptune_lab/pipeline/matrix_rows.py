"""Operators on the rows of one matrix, whose forms were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neptune_lab.strict.dtypes import FLOATS, HALVES

if TYPE_CHECKING:
    from neptune_lab.operators import Operator


@dataclass(frozen=True, slots=True)
class MatrixRows:
    """The rows of the matrix.

    Args:
        operator: whose matrix it is.
        count: how many.
        width: elements of each.
        written: whether a matrix like it is made; otherwise, numbers of each row.
        vectors: whether there are vectors along the rows, such as the scale of a norm.
    """

    operator: Operator
    count: int
    width: int
    written: bool
    vectors: bool


def matrix_rows(operator: Operator) -> MatrixRows | None:
    """The rows of an operator's matrix of 16 bits an element, if it has one, of which it makes numbers or another one
    like it; None for others, and for kernels in parts or for all sizes."""
    matrices = [spec for spec in operator.inputs if len(spec.shape) > 1]
    if len(matrices) != 1 or len(matrices[0].shape) != 2 or operator.parts or operator.family is not None:
        return None
    (matrix,) = matrices
    made = [spec for spec in operator.outputs if spec.shape != matrix.shape[:1]]
    if len(made) > 1 or any(spec.shape != matrix.shape for spec in made):
        return None
    halves = all(spec.dtype in HALVES for spec in (matrix, *made))
    if not halves or any(spec.dtype not in FLOATS for spec in operator.outputs):
        return None
    count, width = matrix.shape
    vectors = any(spec.shape == (width,) for spec in operator.inputs)
    return MatrixRows(operator, count, width, bool(made), vectors)


__all__ = ["MatrixRows", "matrix_rows"]
