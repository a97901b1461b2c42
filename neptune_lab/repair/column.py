"""Float64 values at many points, with IEEE arithmetic in plain Python: 1/0 is inf, 0/0 is NaN, and nothing raises.

The numerical checks of this package compute with at most a few hundred points.  Without NumPy they run wherever SymPy
runs, and for so few points they are as fast.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import copysign, inf, nan
from typing import Any


class Column:
    """A value for each point.  Both operands of an operation have the same number of points.

    >>> (Column([1.0, 0.0]) / Column([0.0, 0.0])).values
    [inf, nan]
    """

    __slots__ = ("values",)

    def __init__(self, values: Iterable[float]) -> None:
        self.values = list(values)

    @classmethod
    def full(cls, count: int, value: float) -> Column:
        """The same value at each point."""
        return cls([value] * count)

    @classmethod
    def joined(cls, columns: Iterable[Column]) -> Column:
        """The points of several columns, one after the other."""
        return cls(value for column in columns for value in column.values)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[float]:
        return iter(self.values)

    def __getitem__(self, point: int) -> float:
        return self.values[point]

    def __repr__(self) -> str:
        return f"Column({self.values})"

    def __add__(self, other: Column) -> Column:
        return each(operator.add, self, other)

    def __sub__(self, other: Column) -> Column:
        return each(operator.sub, self, other)

    def __mul__(self, other: Column) -> Column:
        return each(operator.mul, self, other)

    def __truediv__(self, other: Column) -> Column:
        return each(operator.truediv, self, other)

    def __neg__(self) -> Column:
        return each(operator.neg, self)

    def __abs__(self) -> Column:
        return each(abs, self)

    @property
    def finite(self) -> list[bool]:
        """Whether the value is finite, for each point."""
        return list(map(math.isfinite, self.values))

    def at(self, points: Iterable[int]) -> Column:
        """The values at some of the points."""
        return Column(self.values[point] for point in points)


def each(function: Callable[..., Any], *columns: Column) -> Column:
    """A function of numbers at each point; where Python's own raises, the IEEE result.

    >>> each(math.log, Column([0.0, -1.0, 1.0])).values, each(math.pow, Column([-8.0]), Column([0.5])).values
    ([-inf, nan, 0.0], [nan])
    """
    values = [column.values for column in columns]
    try:
        return Column(map(function, *values))
    except (ArithmeticError, ValueError):
        return Column(_ieee(function, numbers) for numbers in zip(*values, strict=True))


def maximum(x: Column, y: Column) -> Column:
    """The larger value at each point; NaN if either is NaN.

    >>> maximum(Column([1.0, nan, 1.0]), Column([2.0, 1.0, nan])).values
    [2.0, nan, nan]
    """
    return Column(a if a > b or a != a else b for a, b in zip(x.values, y.values, strict=True))


def minimum(x: Column, y: Column) -> Column:
    """The smaller value at each point; NaN if either is NaN."""
    return Column(a if a < b or a != a else b for a, b in zip(x.values, y.values, strict=True))


def total(columns: Sequence[Column]) -> Column:
    """The sum of one or more columns at each point, in their order."""
    sums = columns[0]
    for column in columns[1:]:
        sums = sums + column
    return sums


def largest(columns: Sequence[Column]) -> Column:
    """The largest of one or more columns at each point."""
    found = columns[0]
    for column in columns[1:]:
        found = maximum(found, column)
    return found


def floor(x: float) -> float:
    """The next whole number below, as a float; infinities and NaN stay."""
    return float(math.floor(x)) if math.isfinite(x) else x


def ceiling(x: float) -> float:
    """The next whole number above, as a float."""
    return -floor(-x)


def sign(x: float) -> float:
    """-1, 0 or 1; NaN stays."""
    return copysign(1.0, x) if abs(x) > 0 else x


def rank(rows: Sequence[Column], tolerance: float) -> int:
    """How many of the rows are linearly independent: by Gram and Schmidt, the largest remainder first.

    Args:
        rows: finite numbers, about 1 at most.
        tolerance: length of a remainder that counts as 0.

    >>> rank([Column([1.0, 0.0]), Column([1.0, 1.0]), Column([0.0, 0.5])], 1e-9)
    2
    """
    left, found = [row.values for row in rows], 0
    while left:
        lengths = [math.hypot(*row) for row in left]
        best = max(range(len(left)), key=lengths.__getitem__)
        if lengths[best] <= tolerance:
            break
        axis = [x / lengths[best] for x in left.pop(best)]
        found += 1
        for _ in range(2):  # the second time for what rounding left in the first
            left = [_without(row, axis) for row in left]
    return found


def _without(row: Sequence[float], axis: Sequence[float]) -> list[float]:
    """The part of a row that is orthogonal to a vector of length 1."""
    part = math.fsum(a * b for a, b in zip(row, axis, strict=True))
    return [a - part * b for a, b in zip(row, axis, strict=True)]


def _ieee(function: Callable[..., float], numbers: tuple[float, ...]) -> float:
    try:
        return function(*numbers)
    except (ArithmeticError, ValueError):
        return _AT_ERROR.get(function, _undefined)(*numbers)


def _undefined(*_: float) -> float:
    return nan


def _divided(x: float, y: float) -> float:
    return nan if x == 0 or x != x else copysign(inf, x) * copysign(1.0, y)


def _power(x: float, y: float) -> float:
    """A pole at 0, an overflow, or a root of a negative number."""
    if x < 0 and not y.is_integer():
        return nan
    return copysign(inf, x) if y % 2 == 1 else inf


_AT_ERROR: dict[Callable[..., Any], Callable[..., float]] = {
    operator.truediv: _divided,
    math.pow: _power,
    math.exp: lambda x: inf,
    math.cosh: lambda x: inf,
    math.sinh: lambda x: copysign(inf, x),
    math.log: lambda x: -inf if x == 0 else nan,
    math.atanh: lambda x: copysign(inf, x) if abs(x) == 1 else nan,
}
"""What a function gives where Python's own raises an error; NaN for the others."""
