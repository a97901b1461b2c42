"""Operations on a mod's arguments: Python's operators, the functions here, and those of `scalar_ops`, such as `exp`.

A mod's arguments are `Scalar`s (scalar.py), which torch's and NumPy's functions accept too.  This does not import
torch.

    >>> import numpy as np
    >>> from neptune_lab.operators import math
    >>> math.where(math.Scalar(np.arange(4)) % 2 == 0, 1.0, math.tanh(math.Scalar(np.zeros(4)))).value
    array([1., 0., 1., 0.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neptune_lab.operators.scalar import Scalar, apply
from neptune_lab.scalar_ops import rows


def minimum(a: Any, b: Any) -> Scalar:
    """The smaller of two values, position by position.

    Args:
        a, b: `Scalar`s or plain numbers.

    Returns:
        A `Scalar`.
    """
    return apply("min", a, b)


def maximum(a: Any, b: Any) -> Scalar:
    """The larger of two values, position by position.

    Args:
        a, b: `Scalar`s or plain numbers.

    Returns:
        A `Scalar`.
    """
    return apply("max", a, b)


def where(condition: Any, yes: Any, no: Any) -> Scalar:
    """`yes` where the condition holds, `no` elsewhere.

    Args:
        condition: a `Scalar` condition, or a bool.
        yes, no: `Scalar`s or plain numbers.

    Returns:
        A `Scalar`.

    Raises:
        DefinitionError: `condition` is a number.
    """
    return apply("select", condition, yes, no)


def __getattr__(name: str) -> Callable[..., Scalar]:
    """A function of the table in `scalar_ops`, such as `exp`, `rsqrt`, `erf` or `floor`."""
    if name not in _functions():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def function(*args: Any) -> Scalar:
        return apply(name, *args)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` of `Scalar`s and plain numbers, position by position."
    return function


def __dir__() -> list[str]:
    return sorted({*globals(), *_functions()})


def _functions() -> set[str]:
    return {row.name for row in rows("loop") if row.ir == "both" and not row.symbol}


__all__ = ["Scalar", "apply", "maximum", "minimum", "where"]
