"""torch's and NumPy's functions that take several operations of the loop-scalar IR, or arguments that these lack.

Arguments are `Scalar`s and plain numbers.  Results are those of torch, also for NaN and infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.formulas import FORMULAS, Term
from neptune_lab.operators.operations import NARROW, NUMBERS, is_wide, kind_of, operate, wrapped
from neptune_lab.scalar_ops import OPERATIONS

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
    if input is not None and _kind(condition) != "bool" == _kind(input):  # the method: x.where(condition, other)
        condition, input = input, condition
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


def _relu(x: Any) -> Scalar:
    return _apply("max", x, 0)


def _gelu(x: Any, approximate: str = "none") -> Scalar:
    half = _apply("mul", x, 0.5)
    if approximate == "tanh":
        cubic = _apply("add", x, _apply("mul", _apply("mul", _apply("mul", x, x), x), 0.044715))
        return _apply("mul", half, _apply("add", _apply("tanh", _apply("mul", cubic, math.sqrt(2 / math.pi))), 1.0))
    return _apply("mul", half, _apply("add", _apply("erf", _apply("mul", x, math.sqrt(0.5))), 1.0))


def _leaky_relu(x: Any, negative_slope: float = 0.01) -> Scalar:
    return _select(_apply("gt", x, 0), x, _apply("mul", x, negative_slope))


def _elu(x: Any, alpha: float = 1.0) -> Scalar:
    return _select(_apply("gt", x, 0), x, _apply("mul", _expm1(x), float(alpha)))


def _celu(x: Any, alpha: float = 1.0) -> Scalar:
    return _select(_apply("gt", x, 0), x, _apply("mul", _expm1(_apply("div", x, float(alpha))), float(alpha)))


def _selu(x: Any) -> Scalar:
    low = _apply("mul", _expm1(x), 1.6732632423543772)
    return _apply("mul", _select(_apply("gt", x, 0), x, low), 1.0507009873554805)


def _softshrink(x: Any, lambd: float = 0.5) -> Scalar:
    inner = _select(_apply("lt", x, -lambd), _apply("add", x, lambd), _apply("mul", x, 0.0))
    return _select(_apply("gt", x, lambd), _apply("sub", x, lambd), inner)


def _hardshrink(x: Any, lambd: float = 0.5) -> Scalar:
    return _select(_apply("le", _apply("abs", x), lambd), 0.0, x)


def _threshold(x: Any, threshold: float, value: float) -> Scalar:
    return _select(_apply("le", x, threshold), value, x)


def _hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Scalar:
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


def _hypot(x: Any, y: Any) -> Scalar:
    """sqrt(x**2 + y**2), whose squares do not overflow."""
    x, y = _apply("abs", x), _apply("abs", y)
    large, ratio = _apply("max", x, y), _apply("div", _apply("min", x, y), _apply("max", x, y))
    ends = _apply("or", _apply("eq", large, 0.0), _apply("eq", large, math.inf))
    return _select(ends, large, _apply("mul", large, _apply("sqrt", _add(1.0, _apply("mul", ratio, ratio)))))


def _logaddexp(x: Any, y: Any) -> Scalar:
    distance = _apply("abs", _apply("sub", x, y))
    sum_ = _apply("add", _apply("max", x, y), _log1p(_apply("exp", _apply("neg", distance))))
    return _select(_apply("eq", x, y), _apply("add", x, math.log(2)), sum_)  # also for two infinities


def _heaviside(x: Any, at_zero: Any) -> Scalar:
    return _select(_apply("eq", x, 0), at_zero, _select(_apply("gt", x, 0), 1.0, 0.0))


def _copysign(x: Any, y: Any) -> Scalar:
    negative = _apply("or", _apply("lt", y, 0.0), _apply("lt", _apply("div", 1.0, y), 0.0))  # -0.0 is negative
    return _select(negative, _apply("neg", _apply("abs", x)), _apply("abs", x))


def by_formula(term: Term, x: Any) -> Any:
    """A formula's value.

    Args:
        term: a formula of `formulas`.
        x: a `Scalar` or a plain number.

    Returns:
        A `Scalar`; a number for a constant.
    """
    if term == "x":
        return x
    if not isinstance(term, tuple):
        return term
    operands = [by_formula(part, x) for part in term[1:]]
    return _select(operands[0], 1.0, 0.0) if term[0] == "number" else _apply(term[0], *operands)


def _row_or_formula(name: str, x: Any) -> Any:
    """A row of the table of scalar operations, if it has one of this name, precedes its formula."""
    return _apply(name, x) if name in OPERATIONS else by_formula(FORMULAS[name], x)


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


def _new(x: Any, value: Any, size: Any = (), dtype: Any = None) -> Any:
    """A constant of torch's `new_full`, of `dtype`; if None, of the dtype of `x`."""
    from neptune_lab.operators.array_functions import FUNCTIONS as OF_ARRAYS

    one = _filled(x, value, dtype)
    return OF_ARRAYS["expand"](one, size) if size != () else one


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
    **{name: partial(_row_or_formula, name) for name in FORMULAS},
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
    "log1p": _log1p,
    "expm1": _expm1,
    "special_log1p": _log1p,
    "special_expm1": _expm1,
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    "logsigmoid": _log_sigmoid,
    "relu": _relu,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "hardtanh": _hardtanh,
    "softsign": lambda x: _apply("div", x, _add(1.0, _apply("abs", x))),
    "tanhshrink": lambda x: _apply("sub", x, _apply("tanh", x)),
    "mish": lambda x: _apply("mul", x, _apply("tanh", _softplus(x))),
    "celu": _celu,
    "selu": _selu,
    "softshrink": _softshrink,
    "hardshrink": _hardshrink,
    "threshold": _threshold,
    "hypot": _hypot,
    "logaddexp": _logaddexp,
    "heaviside": _heaviside,
    "copysign": _copysign,
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
    "new_ones": lambda x, size=(), dtype=None, **_others: _new(x, 1, size, dtype),
    "new_zeros": lambda x, size=(), dtype=None, **_others: _new(x, 0, size, dtype),
    "new_full": lambda x, size, fill_value, dtype=None, **_others: _new(x, fill_value, size, dtype),
    "new_tensor": lambda x, data, dtype=None, **_others: _filled(x, data, dtype),
    "is_floating_point": lambda x: _kind(x) == "float",
}
