"""Evaluates expressions in float64 at many points, with IEEE infinities and NaNs as on a GPU.

The numerical checks of this package use it, and not SymPy's simplifier.  Only `over_arrays` and its parts import NumPy,
for callers that have arrays.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import sympy as sp
from sympy import Basic, Expr, Rational, S, Symbol

from neptune_lab.repair.column import Column, ceiling, each, floor, maximum, minimum, sign

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[np.float64]

Values: TypeAlias = Mapping[Symbol, "Column | float"]
"""The value of each symbol: at each point, or one for all points."""

_ONE = {
    **{getattr(sp, name): getattr(math, name) for name in ("exp", "log", "erf", "sin", "cos", "tan")},
    **{getattr(sp, name): getattr(math, name) for name in ("asin", "acos", "atan", "sinh", "cosh", "tanh")},
    **{getattr(sp, name): getattr(math, name) for name in ("asinh", "acosh", "atanh")},
    sp.Abs: abs,
    sp.sign: sign,
    sp.floor: floor,
    sp.ceiling: ceiling,
}
"""SymPy's functions of one number, as Python's."""
_MANY: dict[type, Callable[[Column, Column], Column]] = {
    sp.Add: operator.add,
    sp.Max: maximum,
    sp.Min: minimum,
}


def compute(expr: Expr, at: Values, count: int | None = None) -> Column:
    """The value of `expr` at each point.

    Args:
        expr: the expression.
        at: the values of its symbols.
        count: how many points; None: as many as the columns of `at` have, or one.

    >>> from sympy.abc import x, y
    >>> compute(x / y, {x: 1.0, y: Column([0.0, 4.0])}).values
    [inf, 0.25]
    """
    return compute_all([expr], at, count)[0]


def compute_all(exprs: Sequence[Expr], at: Values, count: int | None = None) -> list[Column]:
    """Values of several expressions; what they have in common is computed once."""
    if count is None:
        count = next((len(value) for value in at.values() if isinstance(value, Column)), 1)
    known: dict[Basic, Column] = {
        symbol: value if isinstance(value, Column) else Column.full(count, value) for symbol, value in at.items()
    }
    # The parts of a real number need not be real.
    return [_by_sympy(expr, known, count) if expr.has(sp.I) else _value(expr, known, count) for expr in exprs]


def _value(expr: Basic, known: dict[Basic, Column], count: int) -> Column:
    found = known.get(expr)
    if found is None:
        found = known[expr] = _computed(expr, known, count)
    return found


def _computed(expr: Basic, known: dict[Basic, Column], count: int) -> Column:
    def value(part: Basic) -> Column:
        return _value(part, known, count)

    kind = type(expr)
    if isinstance(expr, sp.Number | sp.NumberSymbol):
        return Column.full(count, _number(expr))
    if isinstance(expr, sp.Mul):
        return _product(expr, value)
    if isinstance(expr, sp.Pow):
        return _power(expr, value)
    if kind in _MANY:
        return reduce(_MANY[kind], map(value, expr.args))
    if kind in _ONE and len(expr.args) == 1:
        return each(_ONE[kind], value(expr.args[0]))
    return _by_sympy(expr, known, count)


def _number(expr: Expr) -> float:
    try:
        return float(expr)
    except OverflowError:
        return math.copysign(math.inf, expr.is_positive or -1)


def _product(expr: sp.Mul, value: Callable[[Basic], Column]) -> Column:
    """A product over a product: x/y, and not x*(1/y), which overflows for a small y."""
    over, under = [], []
    for factor in expr.args:
        if isinstance(factor, sp.Pow) and isinstance(factor.exp, Rational) and factor.exp.is_negative:
            under.append(factor.base if factor.exp == -1 else sp.Pow(factor.base, -factor.exp, evaluate=False))
        else:
            over.append(factor)
    product = reduce(operator.mul, map(value, over or [S.One]))
    return product / reduce(operator.mul, map(value, under)) if under else product


def _power(expr: sp.Pow, value: Callable[[Basic], Column]) -> Column:
    base, exponent = value(expr.base), expr.exp
    if abs(exponent) == S.Half:  # the root of -inf is NaN, its power with 0.5 is not
        root = each(math.sqrt, base)
        return root if exponent.is_positive else value(S.One) / root
    if exponent == -1:
        return value(S.One) / base
    return each(math.pow, base, value(exponent))


def _by_sympy(expr: Basic, known: dict[Basic, Column], count: int) -> Column:
    """The value by SymPy's own evaluation, point by point; NaN where it is not a real number, or has none."""
    symbols = sorted(expr.free_symbols, key=sp.default_sort_key)

    def at(point: int) -> float:
        numbers = [(symbol, sp.sympify(known[symbol][point])) for symbol in symbols]
        try:
            number = complex(cast(Expr, expr.subs(numbers)).evalf())
        except (TypeError, ValueError, ArithmeticError):
            return math.nan
        return number.real if number.imag == 0 else math.nan

    return Column(at(point) for point in range(count))


def over_arrays(exprs: Sequence[Expr], at: Mapping[Symbol, Any]) -> list[Array]:
    """Values of several expressions over NumPy arrays, float64 in their broadcast shape.

    >>> from sympy.abc import x, y
    >>> over_arrays([x / y], {x: 1.0, y: [0.0, 4.0]})[0].tolist()
    [inf, 0.25]
    """
    columns, shape = as_columns(at.values())
    return [as_array(column, shape) for column in compute_all(exprs, dict(zip(at, columns, strict=True)))]


def as_columns(values: Iterable[Any]) -> tuple[list[Column], tuple[int, ...]]:
    """Numbers and arrays as columns over the elements of their broadcast shape, and that shape."""
    import numpy as np

    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))
    return [Column(array.ravel().tolist()) for array in arrays], arrays[0].shape if arrays else ()


def as_array(column: Column, shape: tuple[int, ...]) -> Array:
    """The inverse of `as_columns`, for one column."""
    import numpy as np

    return np.asarray(column.values, dtype=np.float64).reshape(shape)


def close(found: Column, expected: Column, scale: Column) -> list[bool]:
    """Whether two values agree to float64 rounding, relative to `scale`, the largest number they were computed from."""
    size = maximum(scale, maximum(abs(found), abs(expected)))
    return [abs(x - y) <= 1e-7 * z for x, y, z in zip(found, expected, size, strict=True)]
