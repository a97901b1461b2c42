"""torch's and NumPy's functions that take several operations of the loop-scalar IR, or arguments that these lack.

Arguments are `Scalar`s and plain numbers.  Results are those of torch, also for NaN and infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.operations import NARROW, NUMBERS, is_wide, kind_of, operate, wrapped

if TYPE_CHECKING:
    from neptune_lab.operators.math import Scalar

_LARGEST_FLOAT32 = 3.4028234663852886e38
_LARGEST_FLOAT64 = 1.7976931348623157e308


def _apply(name: str, *args: Any) -> Any:
    """The operation's result: a plain number if all arguments are, else a `Scalar`."""
    from neptune_lab.operators.math import apply

    if all(isinstance(a, NUMBERS) for a in args):
        return operate(name, list(args)).item()
    return apply(name, *args)


def _kind(x: Any) -> str:
    return kind_of(getattr(x, "value", x))


def _add(*terms: Any) -> Scalar:
    first, second, *more = terms
    total = _apply("add", first, second)
    return _add(total, *more) if more else total


def _select(condition: Any, yes: Any, no: Any) -> Scalar:
    return _apply("select", condition, yes, no)


# -- ranges -----------------------------------------------------------------------------------------------------


def _clamp(x: Any, min: Any = None, max: Any = None) -> Scalar:
    x = x if min is None else _apply("max", x, min)
    return x if max is None else _apply("min", x, max)


def _unless_nan(name: str) -> Callable[[Any, Any], Scalar]:
    """torch.fmax and torch.fmin: if one operand is NaN, the result is the other."""

    def chosen(a: Any, b: Any) -> Scalar:
        return _select(_apply("ne", a, a), b, _select(_apply("ne", b, b), a, _apply(name, a, b)))

    return chosen


def _where(condition: Any, input: Any = None, other: Any = None) -> Scalar:
    if input is None or other is None:
        raise DefinitionError(
            "torch.where with a condition alone gives indices, which a mod cannot use",
            help="give it both values, as in `torch.where(q >= kv, score, -torch.inf)`",
        )
    return _select(condition, input, other)


def _masked_fill(x: Any, mask: Any, value: Any) -> Scalar:
    return _select(mask, value, x)


def _nan_to_num(x: Any, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None) -> Scalar:
    largest = _LARGEST_FLOAT64 if is_wide(getattr(x, "value", x)) else _LARGEST_FLOAT32
    high = largest if posinf is None else posinf
    low = -largest if neginf is None else neginf
    finite = _select(_apply("eq", x, math.inf), high, _select(_apply("eq", x, -math.inf), low, x))
    return _select(_apply("ne", x, x), 0.0 if nan is None else nan, finite)


def _finite(x: Any) -> Scalar:
    return _apply("lt", _apply("abs", x), math.inf)


# -- quotients --------------------------------------------------------------------------------------------------


def _trunc(x: Any) -> Scalar:
    return x if _kind(x) == "int" else _select(_apply("lt", x, 0), _apply("ceil", x), _apply("floor", x))


def _fmod(x: Any, y: Any) -> Scalar:
    """The remainder with the sign of `x`, as in C; `floormod` of the magnitudes gives its magnitude."""
    remainder = _apply("floormod", _apply("abs", x), _apply("abs", y))
    return _select(_apply("lt", x, 0), _apply("neg", remainder), remainder)


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
        return _trunc(_apply("div", x, y))
    quotient = _apply("floordiv", _apply("abs", x), _apply("abs", y))
    return _select(_apply("ne", _apply("lt", x, 0), _apply("lt", y, 0)), _apply("neg", quotient), quotient)


def _sign(x: Any) -> Scalar:
    """1, -1, or 0 for zeros and NaN."""
    one = 1.0 if _kind(x) == "float" else 1
    return _select(_apply("gt", x, 0), one, _select(_apply("lt", x, 0), -one, one - one))


# -- log(1 + x), exp(x) - 1 and what uses them ------------------------------------------------------------------


def _log1p(x: Any) -> Scalar:
    """log(1 + x); for |x| < 1 times x / ((1 + x) - 1), which corrects the rounding of 1 + x (Kahan)."""
    total = _apply("add", x, 1.0)
    rounded = _apply("sub", total, 1.0)
    corrected = _apply("div", _apply("mul", _apply("log", total), x), rounded)
    uncorrected = _apply("log", total)
    small = _select(_apply("eq", rounded, 0.0), x, corrected)
    return _select(_apply("lt", _apply("abs", x), 1.0), small, uncorrected)


def _expm1(x: Any) -> Scalar:
    """exp(x) - 1; for |x| < 0.01 its series up to x**3 / 6, whose next term is x**4 / 24."""
    series = _add(x, _apply("mul", _apply("mul", x, x), _add(_apply("mul", x, 1 / 6), 0.5)))
    return _select(_apply("lt", _apply("abs", x), 0.01), series, _apply("sub", _apply("exp", x), 1.0))


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Scalar:
    scaled = _apply("mul", x, float(beta))
    smooth = _apply("div", _log1p(_apply("exp", scaled)), float(beta))
    return _select(_apply("gt", scaled, float(threshold)), x, smooth)


def _log_sigmoid(x: Any) -> Scalar:
    return _apply("sub", _apply("min", x, 0.0), _log1p(_apply("exp", _apply("neg", _apply("abs", x)))))


# -- activations ------------------------------------------------------------------------------------------------


def _relu(x: Any, inplace: bool = False) -> Scalar:
    return _apply("max", x, 0)


def _silu(x: Any, inplace: bool = False) -> Scalar:
    return _apply("mul", x, _apply("sigmoid", x))


def _gelu(x: Any, approximate: str = "none") -> Scalar:
    half = _apply("mul", x, 0.5)
    if approximate == "tanh":
        cubic = _apply("add", x, _apply("mul", _apply("mul", _apply("mul", x, x), x), 0.044715))
        return _apply("mul", half, _apply("add", _apply("tanh", _apply("mul", cubic, math.sqrt(2 / math.pi))), 1.0))
    return _apply("mul", half, _apply("add", _apply("erf", _apply("mul", x, math.sqrt(0.5))), 1.0))


def _leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Scalar:
    return _select(_apply("gt", x, 0), x, _apply("mul", x, negative_slope))


def _elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Scalar:
    return _select(_apply("gt", x, 0), x, _apply("mul", _expm1(x), float(alpha)))


def _hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Scalar:
    return _clamp(x, min_val, max_val)


# -- arithmetic -------------------------------------------------------------------------------------------------


def _scaled(name: str) -> Callable[..., Scalar]:
    """torch.add and torch.sub with `alpha`."""
    return lambda a, b, alpha=1: _apply(name, a, b if alpha == 1 else _apply("mul", b, alpha))


def _lerp(a: Any, b: Any, weight: Any) -> Scalar:
    return _apply("add", a, _apply("mul", weight, _apply("sub", b, a)))


def _addcmul(a: Any, b: Any, c: Any, value: Any = 1) -> Scalar:
    product = _apply("mul", b, c)
    return _apply("add", a, product if value == 1 else _apply("mul", product, value))


def _filled(x: Any, value: Any, dtype: Any = None, **_others: Any) -> Scalar:
    """torch.full_like: a constant of `dtype`; if None, of the dtype of `x`."""
    from neptune_lab.operators.foreign import DTYPES, dtype_named
    from neptune_lab.operators.math import Scalar

    name = None if dtype is None else dtype_named(dtype)
    narrow = getattr(x, "narrow", "") if dtype is None else name if name in NARROW else ""
    if narrow:
        return Scalar(int(wrapped(int(value), narrow).item()), narrow)
    if name is not None and name not in DTYPES:
        return Scalar(value).to(dtype)  # which refuses it
    kind = _kind(x) if name is None else name.rstrip("0123456789")
    kinds: dict[str, Callable[[Any], Any]] = {"bool": bool, "int": int, "long": int}
    return Scalar(kinds.get(kind, float)(value))


def _of_value(value: float) -> Callable[..., Scalar]:
    """torch.zeros_like and torch.ones_like."""
    return lambda x, **others: _filled(x, value, **others)


def _bitwise(name: str) -> Callable[[Any, Any], Scalar]:
    def applied(a: Any, b: Any) -> Scalar:
        from neptune_lab.operators.foreign import bits

        return bits(name, a, b)

    return applied


def _power(x: Any, exponent: Any) -> Scalar:
    from neptune_lab.operators.foreign import power

    return power(x, exponent)


def _invert(x: Any) -> Scalar:
    from neptune_lab.operators.foreign import invert

    return invert(x)


def _shift(right: bool) -> Callable[[Any, Any], Scalar]:
    def applied(x: Any, by: Any) -> Scalar:
        from neptune_lab.operators.foreign import shift

        return shift(x, by, right)

    return applied


# By the name in torch or NumPy.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": _scaled("add"),
    "sub": _scaled("sub"),
    "subtract": _scaled("sub"),
    "rsub": lambda a, b: _apply("sub", b, a),
    "lerp": _lerp,
    "addcmul": _addcmul,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda x, min: _clamp(x, min),
    "clamp_max": lambda x, max: _clamp(x, None, max),
    "fmax": _unless_nan("max"),
    "fmin": _unless_nan("min"),
    "where": _where,
    "masked_fill": _masked_fill,
    "nan_to_num": _nan_to_num,
    "isnan": lambda x: _apply("ne", x, x),
    "isinf": lambda x: _apply("eq", _apply("abs", x), math.inf),
    "isfinite": _finite,
    "isposinf": lambda x: _apply("eq", x, math.inf),
    "isneginf": lambda x: _apply("eq", x, -math.inf),
    "div": _div,
    "divide": _div,
    "fmod": _fmod,
    "trunc": _trunc,
    "fix": _trunc,
    "frac": lambda x: _apply("sub", x, _trunc(x)),
    "sign": _sign,
    "square": lambda x: _apply("mul", x, x),
    "reciprocal": lambda x: _apply("div", 1.0, x),
    "tan": lambda x: _apply("div", _apply("sin", x), _apply("cos", x)),
    "log1p": _log1p,
    "expm1": _expm1,
    "special_log1p": _log1p,
    "special_expm1": _expm1,
    "log10": lambda x: _apply("mul", _apply("log2", x), math.log10(2)),
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    "logsigmoid": _log_sigmoid,
    "relu": _relu,
    "silu": _silu,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "hardtanh": _hardtanh,
    "relu6": lambda x, inplace=False: _clamp(x, 0, 6.0),
    "pow": _power,
    "power": _power,
    "bitwise_and": _bitwise("and"),
    "bitwise_or": _bitwise("or"),
    "bitwise_xor": _bitwise("xor"),
    "logical_xor": lambda a, b: _apply("ne", a, b),
    "bitwise_left_shift": _shift(False),
    "bitwise_right_shift": _shift(True),
    "bitwise_not": _invert,
    "invert": _invert,
    "full_like": _filled,
    "zeros_like": _of_value(0),
    "ones_like": _of_value(1),
}
