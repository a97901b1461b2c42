"""Float32 constants in tile expressions: recognises them, splits off constant factors and merges factors."""

from __future__ import annotations

import math
from collections.abc import Callable

from neptune_lab.htile.nodes import Elementwise, Literal, TileExpr

_LARGEST = 3.4e38
# A denormal is off by 2 ** -150 at most, which this factor leaves below the smallest normal number, 2 ** -126.
_AMPLIFIED = 2.0**23


def number(expr: TileExpr) -> float | None:
    """The value of a finite float32 constant; None for any other expression."""
    if isinstance(expr, Literal) and expr.dtype == "float32" and math.isfinite(expr.value):
        return float(expr.value)
    return None


def float32(value: float) -> Literal:
    """A float32 constant."""
    return Literal(value, "float32")


def split_factor(expr: TileExpr) -> tuple[TileExpr, float]:
    """`expr` as (rest, factor): `x * 0.5` is (x, 0.5); (expr, 1.0) if there is no constant factor.

    >>> from neptune_lab.htile.nodes import Access
    >>> x = Access("x", ())
    >>> split_factor(Elementwise("mul", (float32(0.5), x), "float32"))
    (Access(tensor='x', index=()), 0.5)
    """
    match expr:
        case Elementwise(op="mul", args=(a, b), dtype="float32"):
            if (value := number(b)) is not None:
                return a, value
            if (value := number(a)) is not None:
                return b, value
        case _:
            pass
    return expr, 1.0


def normal(value: float) -> bool:
    """Whether the value is in the range of float32's normal numbers."""
    return 1.2e-38 < abs(value) < _LARGEST


def may_merge(largest: Callable[[], float], inner: float, outer: float) -> bool:
    """Whether `x * inner * outer` may be computed as `x * (inner * outer)`, in float32, for every x.

    Formal statement: x * inner is infinite only if x * inner * outer is, and what x * inner loses below the smallest
    normal number is below that number after the factor `outer` too.

    Args:
        largest: returns the largest finite |x|; called only if the factors alone do not decide.

    >>> may_merge(lambda: math.inf, 0.125, 0.02), may_merge(lambda: math.inf, 1e30, 1e-30)
    (True, False)
    >>> may_merge(lambda: 65504.0, 1e30, 1e-30), may_merge(lambda: 1.0, 1e-30, 1e30)
    (True, False)
    """
    if not (normal(inner) and normal(outer) and normal(inner * outer)):
        return False
    if abs(inner) < 1 and abs(outer) > _AMPLIFIED:
        return False
    return abs(inner) <= 1 or abs(outer) >= 1 or largest() * abs(inner) < _LARGEST


def times(expr: TileExpr, factor: float) -> TileExpr:
    """`expr * factor` for a float32 tile; constant factors are merged if their product is a normal number."""
    rest, own = split_factor(expr)
    if own != 1.0 and number(rest) is None and not normal(factor * own):
        rest, own = expr, 1.0
    factor *= own
    if (value := number(rest)) is not None:
        return float32(value * factor)
    if isinstance(rest, Literal):  # an infinity
        return float32(rest.value * factor)
    return rest if factor == 1.0 else Elementwise("mul", (rest, float32(factor)), "float32")
