"""Ranges of values, and what operations make of them: interval arithmetic.

Ranges are closed: an exponential is positive over the reals but underflows to 0 in floats, so only what is bounded away
from 0 counts as positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from neptune_lab.scalar_ops import NUMPY, OPERATIONS, ScalarOp, compose

_INF = math.inf


@dataclass(frozen=True, slots=True)
class ValueRange:
    """`low <= value <= high`; the ends may be infinite.

    >>> ValueRange(0.5, 2.0).words, ValueRange(0.0, 2.0).words, ValueRange(-1.0, 2.0).words
    (('positive',), ('nonnegative',), ())
    """

    low: float = -_INF
    high: float = _INF

    @property
    def words(self) -> tuple[str, ...]:
        """The strongest word for its sign, as `repair.solve` takes it; none if both signs are possible."""
        for word, holds in (
            ("positive", self.low > 0),
            ("negative", self.high < 0),
            ("nonnegative", self.low >= 0),
            ("nonpositive", self.high <= 0),
        ):
            if holds:
                return (word,)
        return ()

    def hull(self, other: ValueRange) -> ValueRange:
        """The smallest range that contains both."""
        return ValueRange(min(self.low, other.low), max(self.high, other.high))


ANY = ValueRange()
UNIT = ValueRange(0.0, 1.0)


def _without_nan(values: ValueRange) -> ValueRange:
    """The range with ends that are NaN, such as -inf - (-inf), replaced by infinities."""
    low, high = values.low, values.high
    return ValueRange(-_INF if math.isnan(low) else low, _INF if math.isnan(high) else high)


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _multiplied(a: ValueRange, b: ValueRange) -> ValueRange:
    corners = [_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return ValueRange(min(corners), max(corners))


def _divided(a: ValueRange, b: ValueRange) -> ValueRange:
    if b.low > 0 or b.high < 0:
        return _multiplied(a, ValueRange(1 / b.high, 1 / b.low))
    if a.low >= 0 and b.low >= 0:
        return ValueRange(0.0)  # an infinity at most
    return ANY


def even_power(a: ValueRange, exponent: float) -> ValueRange:
    """The range of `a` to an even power above 0."""
    ends = [bounded_power(abs(a.low), exponent), bounded_power(abs(a.high), exponent)]
    return ValueRange(0.0 if a.low <= 0 <= a.high else min(ends), max(ends))


def power(base: ValueRange, exponent: float | None) -> ValueRange:
    """The range of a power; `exponent` is None if it is not known."""
    if exponent is None:
        return ValueRange(0.0) if base.low >= 0 else ANY
    if exponent > 0 and exponent % 2 == 0:
        return even_power(base, exponent)
    if exponent < 0:
        return _divided(ValueRange(1.0, 1.0), power(base, -exponent))
    if base.low >= 0:
        return ValueRange(bounded_power(base.low, exponent), bounded_power(base.high, exponent))
    return ANY


def bounded_power(base: float, exponent: float) -> float:
    """A power, infinity if it overflows."""
    try:
        return base**exponent
    except OverflowError:
        return _INF


def _absolute(a: ValueRange) -> ValueRange:
    ends = (abs(a.low), abs(a.high))
    return ValueRange(0.0 if a.low <= 0 <= a.high else min(ends), max(ends))


_RULES: dict[str, Callable[..., ValueRange]] = {
    "sub": lambda a, b: ValueRange(a.low - b.high, a.high - b.low),
    "mul": _multiplied,
    "div": _divided,
    "neg": lambda a: ValueRange(-a.high, -a.low),
    "abs": _absolute,
}


def range_of_operation(name: str, args: Sequence[ValueRange]) -> ValueRange:
    """The range of an operation on ranges: by its own rule, or by its row in the table of scalar operations."""
    row = OPERATIONS[name]
    if name in _RULES:
        return _without_nan(_RULES[name](*args))
    if row.rising:
        result = _without_nan(
            ValueRange(_evaluated_at(row, [a.low for a in args]), _evaluated_at(row, [a.high for a in args]))
        )
    elif row.formula is not None:
        result = compose(row.formula, args, range_of_operation, lambda value: ValueRange(value, value))
    else:
        result = ANY
    least, most = row.within  # reached in floats
    return ValueRange(max(result.low, least), min(result.high, most))


def _evaluated_at(row: ScalarOp, values: Sequence[float]) -> float:
    with np.errstate(all="ignore"):
        return float(NUMPY[row.name](*(np.float64(max(value, row.start)) for value in values)))


__all__ = ["ANY", "UNIT", "ValueRange", "bounded_power", "even_power", "power", "range_of_operation"]
