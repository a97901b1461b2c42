"""torch's and NumPy's functions of two numbers and more, by operations of the loop-scalar IR.

Results are those of torch, also for NaN and infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.bits import bits, invert, origins, shift
from neptune_lab.operators.function_parts import apply as _apply
from neptune_lab.operators.function_parts import kind as _kind
from neptune_lab.operators.function_parts import log1p as _log1p
from neptune_lab.operators.function_parts import select as _select
from neptune_lab.operators.function_parts import total as _add

if TYPE_CHECKING:
    from neptune_lab.operators.scalar import Scalar


def _unless_nan(comparison: str) -> Callable[[Any, Any], Scalar]:
    """torch.fmax ("ge") and torch.fmin ("le"): if one operand is NaN, the result is the other.  Of equal ones, the
    first has all of the gradient."""

    def chosen(a: Any, b: Any) -> Scalar:
        first = _select(_apply(comparison, a, b), a, b)
        return _select(_apply("ne", a, a), b, _select(_apply("ne", b, b), a, first))

    return chosen


def _fmod(x: Any, y: Any) -> Scalar:
    """The remainder with the sign of `x`, as in C; `floormod` of the magnitudes gives its magnitude."""
    if _may_be_least(x, y):
        remainder = _apply("floormod", x, y)
        return _select(_is_rounded_down(x, y, remainder), _apply("sub", remainder, y), remainder)
    size = _select(_apply("lt", x, 0), _apply("neg", x), x)  # (|x|, whose derivative at 0 is 1, and not 0)
    remainder = _apply("floormod", size, _apply("abs", y))
    if "float" in (_kind(x), _kind(y)):  # of an infinite divisor, x itself
        beyond = _apply("and", _apply("eq", _apply("abs", y), math.inf), _apply("lt", size, math.inf))
        remainder = _select(beyond, size, remainder)
    return _select(_apply("lt", x, 0), _apply("neg", remainder), remainder)


def _may_be_least(x: Any, y: Any) -> bool:
    """Whether both are integers, and one is captured: it may be the least of its dtype, which has no magnitude."""
    return "float" not in (_kind(x), _kind(y)) and "read" in origins(x) | origins(y)


def _is_rounded_down(x: Any, y: Any, remainder: Any) -> Scalar:
    """Whether x // y is below the exact quotient, which is below 0."""
    return _apply("and", _apply("ne", remainder, 0), _apply("ne", _apply("lt", x, 0), _apply("lt", y, 0)))


def _div(x: Any, y: Any, rounding_mode: str | None = None) -> Scalar:
    if rounding_mode is None:
        return _apply("div", x, y)
    if rounding_mode == "floor":
        return _apply("floordiv", x, y)
    if rounding_mode != "trunc":
        raise DefinitionError(
            f"torch.div with rounding_mode={rounding_mode!r} in a mod", help="'floor' and 'trunc' are known"
        )
    if "float" in (_kind(x), _kind(y)):
        return trunc(_apply("div", x, y))
    if _may_be_least(x, y):
        quotient = _apply("floordiv", x, y)
        return _select(_is_rounded_down(x, y, _apply("floormod", x, y)), _apply("add", quotient, 1), quotient)
    quotient = _apply("floordiv", _apply("abs", x), _apply("abs", y))
    return _select(_apply("ne", _apply("lt", x, 0), _apply("lt", y, 0)), _apply("neg", quotient), quotient)


def trunc(x: Any) -> Scalar:
    """torch.trunc: rounded towards 0.

    Args:
        x: a `Scalar` or a plain number.

    Returns:
        A `Scalar`.
    """
    return x if _kind(x) == "int" else _select(_apply("lt", x, 0), _apply("ceil", x), _apply("floor", x))


# -- arithmetic -------------------------------------------------------------------------------------------------


def _scaled(name: str) -> Callable[..., Scalar]:
    """torch.add and torch.sub with `alpha`."""
    return lambda a, b, alpha=1: _apply(name, a, b if alpha == 1 else _apply("mul", b, alpha))


def _lerp(a: Any, b: Any, weight: Any) -> Scalar:
    return _apply("add", a, _apply("mul", weight, _apply("sub", b, a)))


def _addcmul(a: Any, b: Any, c: Any, value: Any = 1) -> Scalar:
    product = _apply("mul", b, c)
    return _apply("add", a, product if value == 1 else _apply("mul", product, value))


def _hypot(x: Any, y: Any) -> Scalar:
    """sqrt(x**2 + y**2), whose squares do not overflow; infinite if one of them is, also beside NaN."""
    x, y = _apply("abs", x), _apply("abs", y)
    large, ratio = _apply("max", x, y), _apply("div", _apply("min", x, y), _apply("max", x, y))
    infinite = _apply("or", *(_apply("eq", side, math.inf) for side in (x, y)))
    large = _select(infinite, math.inf, large)
    ends = _apply("or", _apply("eq", large, 0.0), infinite)
    return _select(ends, large, _apply("mul", large, _apply("sqrt", _add(1.0, _apply("mul", ratio, ratio)))))


def _logaddexp(x: Any, y: Any) -> Scalar:
    distance = _apply("abs", _apply("sub", x, y))
    sum_ = _apply("add", _apply("max", x, y), _log1p(_apply("exp", _apply("neg", distance))))
    # Also for two infinities; the maximum of equal numbers gives each one half of the gradient.
    return _select(_apply("eq", x, y), _apply("add", _apply("max", x, y), math.log(2)), sum_)


def _heaviside(x: Any, at_zero: Any) -> Scalar:
    return _select(_apply("eq", x, 0), at_zero, _select(_apply("gt", x, 0), 1.0, 0.0))


def _copysign(x: Any, y: Any) -> Scalar:
    negative = _apply("or", _apply("lt", y, 0.0), _apply("lt", _apply("div", 1.0, y), 0.0))  # -0.0 is negative
    return _select(negative, _apply("neg", _apply("abs", x)), _apply("abs", x))


def _negative(x: Any) -> Any:
    """Whether a number is below 0; -0.0 is, too."""
    below = _apply("lt", x, 0)
    return below if _kind(x) != "float" else _apply("or", below, _apply("lt", _apply("div", 1.0, x), 0.0))


def _arctan2(y: Any, x: Any) -> Scalar:
    """The angle of (x, y), with the signs of zeros and the angles of infinities as in C; (0, 0) has no gradient."""
    y, x = (_apply("mul", side, 1.0) for side in (y, x))
    infinite = _apply("and", *(_apply("eq", _apply("abs", side), math.inf) for side in (x, y)))
    angle = _apply("atan", _apply("div", *(_select(infinite, _copysign(1.0, side), side) for side in (y, x))))
    turned = _select(_negative(x), _add(angle, _copysign(math.pi, y)), angle)
    at_zero = _select(_negative(x), _copysign(math.pi, y), _copysign(0.0, y))
    leaning = _apply("sub", _copysign(math.pi / 2, y), _apply("atan", _apply("div", x, y)))  # whose derivative is -1/y
    upright = _select(_apply("eq", y, 0.0), at_zero, leaning)
    return _select(_apply("and", _apply("eq", x, 0.0), _apply("eq", y, y)), upright, turned)


def _xlogy(x: Any, y: Any) -> Scalar:
    """x * log(y), and 0 for an x of 0 unless y is NaN; its derivative by x is log(y) there too, if there is one."""
    without = _apply("or", _apply("le", y, 0.0), _apply("eq", y, math.inf))
    left_out = _apply("and", _apply("eq", x, 0), without)
    return _apply("mul", x, _apply("log", _select(left_out, 1.0, y)))


def _logaddexp2(x: Any, y: Any) -> Scalar:
    return _apply("div", _logaddexp(*(_apply("mul", v, math.log(2)) for v in (x, y))), math.log(2))


def _isclose(x: Any, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    x, y = (_apply("mul", v, 1.0) for v in (x, y))
    allowed = _apply("add", _apply("mul", _apply("abs", y), rtol), atol)
    distance = _apply("abs", _apply("sub", x, y))
    near = _apply("and", _apply("le", distance, allowed), _apply("lt", distance, math.inf))
    close = _apply("or", _apply("eq", x, y), near)
    if not equal_nan:
        return close
    return _apply("or", close, _apply("and", _apply("ne", x, x), _apply("ne", y, y)))


def _logical(name: str) -> Callable[..., Any]:
    """A function of conditions; a number counts as one if it is not 0."""

    def of_conditions(*args: Any) -> Any:
        return _apply(name, *(a if _kind(a) == "bool" else _apply("ne", a, 0) for a in args))

    return of_conditions


def _power(x: Any, exponent: Any) -> Scalar:
    from neptune_lab.operators.foreign import power

    return power(x, exponent)


# By the name in torch or NumPy.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": _scaled("add"),
    "sub": _scaled("sub"),
    "subtract": _scaled("sub"),
    "rsub": lambda a, b, alpha=1: _scaled("sub")(b, a, alpha),
    "rdiv": lambda a, b: _apply("div", b, a),
    "lerp": _lerp,
    "addcmul": _addcmul,
    "addcdiv": lambda a, b, c, value=1: _addcmul(a, b, _apply("div", 1.0, c), value),
    "fmax": _unless_nan("ge"),
    "fmin": _unless_nan("le"),
    "div": _div,
    "divide": _div,
    "fmod": _fmod,
    "hypot": _hypot,
    "logaddexp": _logaddexp,
    "logaddexp2": _logaddexp2,
    "heaviside": _heaviside,
    "copysign": _copysign,
    "signbit": _negative,
    "atan2": _arctan2,
    "xlogy": _xlogy,
    "ldexp": lambda x, exponent: _apply("mul", x, _apply("exp2", exponent)),
    "isclose": _isclose,
    "dist": lambda x, y: _apply("abs", _apply("sub", x, y)),
    "pow": _power,
    "power": _power,
    "and": partial(bits, "and"),
    "or": partial(bits, "or"),
    "xor": partial(bits, "xor"),
    "bitwise_and": partial(bits, "and"),
    "bitwise_or": partial(bits, "or"),
    "bitwise_xor": partial(bits, "xor"),
    "bitwise_left_shift": shift,
    "bitwise_right_shift": partial(shift, right=True),
    "left_shift": shift,
    "right_shift": partial(shift, right=True),
    "lshift": shift,
    "rshift": partial(shift, right=True),
    "bitwise_not": invert,
    "invert": invert,
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("ne"),
    "logical_not": _logical("not"),
}
