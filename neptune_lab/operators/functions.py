"""torch's and NumPy's functions that take several operations of the loop-scalar IR, or arguments that these lack.

Arguments are `Scalar`s and plain numbers.  Results are those of torch, also for NaN and infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.bits import origins
from neptune_lab.operators.formulas import FLAT_AT_LIMITS, FORMULAS, Term
from neptune_lab.operators.function_parts import apply as _apply
from neptune_lab.operators.function_parts import kind as _kind
from neptune_lab.operators.function_parts import log1p as _log1p
from neptune_lab.operators.function_parts import select as _select
from neptune_lab.operators.function_parts import total as _add
from neptune_lab.operators.mod_ties import at_limits
from neptune_lab.operators.operations import NARROW, NUMBERS, is_wide, to_tvm, wrapped
from neptune_lab.operators.ties import HALVES_TIES
from neptune_lab.operators.two_operands import FUNCTIONS as OF_TWO
from neptune_lab.operators.two_operands import trunc
from neptune_lab.scalar_ops import OPERATIONS
from neptune_lab.strict.dtypes import LARGEST_FINITE

if TYPE_CHECKING:
    from neptune_lab.operators.scalar import Scalar

# -- ranges -----------------------------------------------------------------------------------------------------


def _clamp(x: Any, min: Any = None, max: Any = None, *, part: float = 1.0) -> Scalar:
    """x within limits; at a limit, PyTorch's derivative is `part`."""
    with at_limits(part):
        x = x if min is None else _apply("max", x, min)
        return x if max is None else _apply("min", x, max)


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
    largest = LARGEST_FINITE["float64" if is_wide(getattr(x, "value", x)) else "float32"]
    high = largest if posinf is None else posinf
    low = -largest if neginf is None else neginf
    finite = _select(_apply("eq", x, math.inf), high, _select(_apply("eq", x, -math.inf), low, x))
    return _select(_apply("ne", x, x), 0.0 if nan is None else nan, finite)


def _finite(x: Any) -> Scalar:
    return _apply("lt", _apply("abs", x), math.inf)


# -- parts of a number ------------------------------------------------------------------------------------------


def _sign(x: Any) -> Scalar:
    """1, -1, or 0 for zeros and NaN; of an integer, in its dtype."""
    one: Any = 1.0
    if _kind(x) == "int":
        one = 1 if getattr(x, "limits", None) is not None else _add(_apply("mul", x, 0), 1)
    return _select(_apply("gt", x, 0), one, _select(_apply("lt", x, 0), -one, one - one))


# -- exp(x) - 1, and what uses log(1 + x) ------------------------------------------------------------------------


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
    with at_limits(0.0):
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
    return _select(_apply("le", x, 0), _apply("mul", _expm1(x), float(alpha)), x)


def _celu(x: Any, alpha: float = 1.0) -> Scalar:
    return _select(_apply("le", x, 0), _apply("mul", _expm1(_apply("div", x, float(alpha))), float(alpha)), x)


def _selu(x: Any) -> Scalar:
    low = _apply("mul", _expm1(x), 1.6732632423543772)
    return _apply("mul", _select(_apply("le", x, 0), low, x), 1.0507009873554805)


def _softshrink(x: Any, lambd: float = 0.5) -> Scalar:
    outer = _select(_apply("gt", x, 0), _apply("sub", x, lambd), _apply("add", x, lambd))
    return _select(_apply("le", _apply("abs", x), lambd), 0.0, outer)


def _hardshrink(x: Any, lambd: float = 0.5) -> Scalar:
    return _select(_apply("le", _apply("abs", x), lambd), 0.0, x)


def _threshold(x: Any, threshold: float, value: float) -> Scalar:
    return _select(_apply("le", x, threshold), value, x)


def _prelu(x: Any, weight: Any) -> Scalar:
    from neptune_lab.operators.arrays import Array

    if isinstance(weight, Array):
        weight = weight.element((0,) * weight.ndim)
    return _select(_apply("gt", x, 0), x, _apply("mul", x, weight))


def _rrelu(x: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Scalar:
    if training:
        raise DefinitionError("a mod draws random slopes", help="training=False takes their mean")
    return _leaky_relu(x, (lower + upper) / 2)


def _dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    if p and training:
        raise DefinitionError(
            f"a mod drops elements with probability {p}, by random numbers",
            help="training=False drops none; a hash of the positions, such as (q * 7919 + kv * 104729) % 10 > 0, does "
            "without random numbers",
        )
    return x


def _logit(x: Any, eps: float | None = None) -> Scalar:
    x = x if eps is None else _clamp(x, eps, 1 - eps)
    return _apply("log", _apply("div", x, _apply("sub", 1.0, x)))


def _round(x: Any, decimals: int = 0) -> Scalar:
    if not decimals:
        return _apply("round", x)
    factor = 10.0 ** abs(decimals)
    inward, outward = ("mul", "div") if decimals > 0 else ("div", "mul")
    return _apply(outward, _apply("round", _apply(inward, x, factor)), factor)


def _hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Scalar:
    return _clamp(x, min_val, max_val, part=0.0)


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
    with at_limits(0.0 if name in FLAT_AT_LIMITS else HALVES_TIES):
        return _apply(name, x) if name in OPERATIONS else by_formula(FORMULAS[name], x)


def _filled(x: Any, value: Any, dtype: Any = None, **_others: Any) -> Scalar:
    """torch.full_like: a constant of `dtype`; if None, of the dtype of `x`."""
    from neptune_lab.operators.foreign import DTYPES, dtype_named
    from neptune_lab.operators.scalar import Scalar

    name = None if dtype is None else dtype_named(dtype)
    narrow = getattr(x, "short_int", "") if dtype is None else name if name in NARROW else ""
    if narrow:
        return Scalar(int(wrapped(int(value), narrow).item()), narrow)
    if name is not None and name not in DTYPES:
        return Scalar(value).to(dtype)  # which refuses it
    kind = _kind(x) if name is None else name.rstrip("0123456789")
    kinds: dict[str, Callable[[Any], Any]] = {"bool": bool, "int": int, "long": int}
    if dtype is None and _has_32_bits(x):
        return Scalar(to_tvm(int(value), "int32"))
    return Scalar(kinds.get(kind, float)(value))


def _has_32_bits(x: Any) -> bool:
    """Whether PyTorch has an integer in 32 bits: it is computed of captured integers of int32 alone."""
    value = getattr(x, "value", x)
    if _kind(x) != "int" or isinstance(value, NUMBERS) or is_wide(value) or getattr(x, "limits", None) is not None:
        return False
    return origins(x) == {"read"}


def _new(x: Any, value: Any, size: Any = (), dtype: Any = None) -> Any:
    """A constant of torch's `new_full`, of `dtype`; if None, of the dtype of `x`."""
    from neptune_lab.operators.array_functions import FUNCTIONS as OF_ARRAYS

    one = _filled(x, value, dtype)
    return OF_ARRAYS["expand"](one, size) if size != () else one


def _of_value(value: float) -> Callable[..., Scalar]:
    """torch.zeros_like and torch.ones_like."""
    return lambda x, **others: _filled(x, value, **others)


# By the name in torch or NumPy.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: partial(_row_or_formula, name) for name in FORMULAS},
    **OF_TWO,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda x, min: _clamp(x, min),
    "clamp_max": lambda x, max: _clamp(x, None, max),
    "where": _where,
    "masked_fill": _masked_fill,
    "nan_to_num": _nan_to_num,
    "isnan": lambda x: _apply("ne", x, x),
    "isinf": lambda x: _apply("eq", _apply("abs", x), math.inf),
    "isfinite": _finite,
    "isposinf": lambda x: _apply("eq", x, math.inf),
    "isneginf": lambda x: _apply("eq", x, -math.inf),
    "trunc": trunc,
    "fix": trunc,
    "frac": lambda x: _apply("sub", x, trunc(x)),
    "sign": _sign,
    "log1p": _log1p,
    "expm1": _expm1,
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
    "full_like": _filled,
    "zeros_like": _of_value(0),
    "ones_like": _of_value(1),
    "new_ones": lambda x, size=(), dtype=None, **_others: _new(x, 1, size, dtype),
    "new_zeros": lambda x, size=(), dtype=None, **_others: _new(x, 0, size, dtype),
    "new_full": lambda x, size, fill_value, dtype=None, **_others: _new(x, fill_value, size, dtype),
    "new_tensor": lambda x, data, dtype=None, **_others: _filled(x, data, dtype),
    "prelu": _prelu,
    "rrelu": _rrelu,
    "dropout": _dropout,
    "logit": _logit,
    "round": _round,
    "angle": lambda x: _select(_apply("ne", x, x), x, _select(_apply("lt", x, 0), math.pi, 0.0)),
    "isreal": lambda x: _apply("or", _apply("eq", x, x), _apply("ne", x, x)),
    **dict.fromkeys(("positive", "real", "conj", "conj_physical", "resolve_conj", "resolve_neg"), lambda x: x),
    "is_floating_point": lambda x: _kind(x) == "float",
}
