"""What the functions of a mod are made of: operations of the IR on `Scalar`s and plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neptune_lab.operators.operations import NUMBERS, kind_of, operate

if TYPE_CHECKING:
    from neptune_lab.operators.scalar import Scalar


def apply(name: str, *args: Any) -> Any:
    """The result of an operation.

    Args:
        name: the operation's name in the IR.
        args: `Scalar`s and plain numbers.

    Returns:
        A plain number if all arguments are, else a `Scalar`.
    """
    from neptune_lab.operators import math

    if all(isinstance(a, NUMBERS) for a in args):
        return operate(name, list(args)).item()
    return math.apply(name, *args)


def kind(x: Any) -> str:
    """The kind of a value.

    Args:
        x: a `Scalar` or a plain number.

    Returns:
        "bool", "int" or "float".
    """
    return kind_of(getattr(x, "value", x))


def total(*terms: Any) -> Scalar:
    """The sum of two or more values.

    Args:
        terms: `Scalar`s and plain numbers.

    Returns:
        A `Scalar`.
    """
    first, second, *more = terms
    added = apply("add", first, second)
    return total(added, *more) if more else added


def select(condition: Any, yes: Any, no: Any) -> Scalar:
    """`yes` if the condition holds, else `no`.

    Args:
        condition, yes, no: `Scalar`s and plain numbers.

    Returns:
        A `Scalar`.
    """
    return apply("select", condition, yes, no)


def log1p(x: Any) -> Scalar:
    """log(1 + x); for |x| < 1 times x / ((1 + x) - 1), which corrects the rounding of 1 + x (Kahan).

    Args:
        x: a `Scalar` or a plain number.

    Returns:
        A `Scalar`.
    """
    added = apply("add", x, 1.0)
    rounded = apply("sub", added, 1.0)
    corrected = apply("div", apply("mul", apply("log", added), x), rounded)
    small = select(apply("eq", rounded, 0.0), x, corrected)
    return select(apply("lt", apply("abs", x), 1.0), small, apply("log", added))
