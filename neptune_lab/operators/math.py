"""What a mod may do with its arguments: Python's operators, and the functions here.

A mod's arguments are `Scalar`s.  While the definition is made a `Scalar` holds a TVM expression, while the reference
runs a NumPy array; the mod cannot tell.  torch's and NumPy's functions of the same names, called on a `Scalar`, land
here as well, so that a mod written for FlexAttention works as it is (neither library is imported for that).

    >>> import numpy as np
    >>> where(Scalar(np.arange(4)) % 2 == 0, 1.0, tanh(Scalar(np.zeros(4)))).value
    array([1., 0., 1., 0.])
"""

from __future__ import annotations

import inspect
import math as _math
from collections.abc import Callable
from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import name_of

# Functions of one float; each is an operator of the loop-scalar IR of the same name.
_FLOAT_FUNCTIONS = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "erf")
_ROUNDING = ("floor", "ceil")
_LOGIC = ("and", "or", "not")

_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "floormod": np.mod,
    "pow": np.power,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "select": np.where,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "erf": np.vectorize(_math.erf, otypes=[np.float64]),
    **{
        name: getattr(np, name)
        for name in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sin", "cos", "floor", "ceil")
    },
}

# Other libraries' names of the same thing.
_ALIASES = {
    "subtract": "sub", "multiply": "mul", "true_divide": "div", "divide": "div", "floor_divide": "floordiv",
    "remainder": "floormod", "power": "pow", "negative": "neg", "absolute": "abs", "minimum": "min", "maximum": "max",
    "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne",
    "logical_and": "and", "logical_or": "or", "logical_not": "not", "bitwise_and": "and", "bitwise_or": "or",
    "bitwise_not": "not", "invert": "not", "where": "select",
}  # fmt: skip


class Unread:
    """A tensor inside a mod of which no element was read yet (`capture` makes them); no operation takes it.

    Args:
        name: of the tensor.
        missing: how many indices an element of it still needs.
    """

    __slots__ = ("missing", "name")

    def __init__(self, name: str, missing: int) -> None:
        self.name = name
        self.missing = missing


class Scalar:
    """One value of every position: a TVM expression, or a NumPy array over all positions.

    Args:
        value: the expression (its dtype int32, float32 or bool) or the array (int64, float64 or bool).
    """

    __slots__ = ("value",)
    __hash__ = None  # type: ignore[assignment]  # == makes a comparison, so a Scalar is in no set

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def kind(self) -> str:
        """ "bool", "int" or "float"."""
        return _kind(self.value)

    def __repr__(self) -> str:
        return f"Scalar({self.value})"

    def __bool__(self) -> bool:
        raise DefinitionError(
            "a mod asks for the truth of a value that differs from position to position",
            help="write `&`, `|`, `~` and `math.where` for `and`, `or`, `not` and `if`",
        )

    def __add__(self, other: Any) -> Scalar:
        return _apply("add", self, other)

    def __radd__(self, other: Any) -> Scalar:
        return _apply("add", other, self)

    def __sub__(self, other: Any) -> Scalar:
        return _apply("sub", self, other)

    def __rsub__(self, other: Any) -> Scalar:
        return _apply("sub", other, self)

    def __mul__(self, other: Any) -> Scalar:
        return _apply("mul", self, other)

    def __rmul__(self, other: Any) -> Scalar:
        return _apply("mul", other, self)

    def __truediv__(self, other: Any) -> Scalar:
        return _apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Scalar:
        return _apply("div", other, self)

    def __floordiv__(self, other: Any) -> Scalar:
        return _apply("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Scalar:
        return _apply("floordiv", other, self)

    def __mod__(self, other: Any) -> Scalar:
        return _apply("floormod", self, other)

    def __rmod__(self, other: Any) -> Scalar:
        return _apply("floormod", other, self)

    def __pow__(self, other: Any) -> Scalar:
        return _apply("pow", self, other)

    def __rpow__(self, other: Any) -> Scalar:
        return _apply("pow", other, self)

    def __neg__(self) -> Scalar:
        return _apply("neg", self)

    def __abs__(self) -> Scalar:
        return _apply("abs", self)

    def __lt__(self, other: Any) -> Scalar:
        return _apply("lt", self, other)

    def __le__(self, other: Any) -> Scalar:
        return _apply("le", self, other)

    def __gt__(self, other: Any) -> Scalar:
        return _apply("gt", self, other)

    def __ge__(self, other: Any) -> Scalar:
        return _apply("ge", self, other)

    def __eq__(self, other: Any) -> Scalar:  # type: ignore[override]
        return _apply("eq", self, other)

    def __ne__(self, other: Any) -> Scalar:  # type: ignore[override]
        return _apply("ne", self, other)

    def __and__(self, other: Any) -> Scalar:
        return _apply("and", self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Scalar:
        return _apply("or", self, other)

    __ror__ = __or__

    def __invert__(self) -> Scalar:
        return _apply("not", self)

    def new_ones(self, size: tuple[()], dtype: Any = None) -> Scalar:
        """True; torch's `and_masks` starts with it."""
        return Scalar(True)

    def new_zeros(self, size: tuple[()], dtype: Any = None) -> Scalar:
        """False; torch's `or_masks` starts with it."""
        return Scalar(False)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Scalar:
        """torch's functions on a `Scalar` (torch calls this)."""
        return _foreign("torch", func.__name__, args, kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Scalar:
        """NumPy's elementwise functions on a `Scalar` (NumPy calls this)."""
        return _foreign("numpy", ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}", args, kwargs)

    def __array_function__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Scalar:
        """NumPy's other functions, of which `numpy.where` is one (NumPy calls this)."""
        return _foreign("numpy", func.__name__, args, kwargs)


def exp(x: Any) -> Scalar:
    """e**x."""
    return _apply("exp", x)


def exp2(x: Any) -> Scalar:
    """2**x."""
    return _apply("exp2", x)


def log(x: Any) -> Scalar:
    """The natural logarithm."""
    return _apply("log", x)


def log2(x: Any) -> Scalar:
    """The logarithm to base 2."""
    return _apply("log2", x)


def sqrt(x: Any) -> Scalar:
    """The square root."""
    return _apply("sqrt", x)


def rsqrt(x: Any) -> Scalar:
    """1/sqrt(x)."""
    return _apply("rsqrt", x)


def tanh(x: Any) -> Scalar:
    """The hyperbolic tangent."""
    return _apply("tanh", x)


def sigmoid(x: Any) -> Scalar:
    """1/(1 + exp(-x))."""
    return _apply("sigmoid", x)


def minimum(a: Any, b: Any) -> Scalar:
    """The smaller of two values, position by position."""
    return _apply("min", a, b)


def maximum(a: Any, b: Any) -> Scalar:
    """The larger of two values, position by position."""
    return _apply("max", a, b)


def where(condition: Any, yes: Any, no: Any) -> Scalar:
    """`yes` where the condition holds, `no` elsewhere."""
    return _apply("select", condition, yes, no)


def call_mod(argument: str, mod: Callable[..., Any], *args: Any) -> Any:
    """The mod's value on `args` (TVM expressions, or NumPy arrays), unwrapped and of the right kind.

    Args:
        argument: "score_mod" or "mask_mod", for messages; it decides the kind, float32 (float64) or bool.
        mod: the user's function.
        args: what it is called with.
    """
    shown = f"{argument}={name_of(mod)}" if callable(mod) else f"{argument}={mod!r}"
    signature = "(score, b, h, q, kv)" if argument == "score_mod" else "(b, h, q, kv)"
    if not callable(mod):
        raise DefinitionError(f"{shown}: expected a function of {signature}")
    try:
        inspect.signature(mod).bind(*args)
    except ValueError:
        pass  # a builtin without a signature: the call will tell
    except TypeError as error:
        raise DefinitionError(f"{shown}: expected a function of {signature}, but {error}") from error
    try:
        result = mod(*(Scalar(a) for a in args))
    except DefinitionError as error:
        raise DefinitionError(f"{shown}: {error.reason}", help=_help(error)) from error
    except (TypeError, AttributeError) as error:
        raise DefinitionError(f"{shown}: {error}", help="mods take Python's operators and operators.math") from error
    except IndexError as error:  # an array that stands in no variable
        raise DefinitionError(f"{shown}: {error}", help="give the array a variable of its own and index it") from error
    wanted = "float" if argument == "score_mod" else "bool"
    value = result.value if isinstance(result, Scalar) else result
    if isinstance(result, Unread):
        raise DefinitionError(f"{shown}: {_unread(result)}")
    if not isinstance(result, Scalar | bool | int | float | np.bool_ | np.integer | np.floating):
        raise DefinitionError(f"{shown} returned {type(result).__name__}: expected a {wanted} made from its arguments")
    kind = _kind(value)
    if (kind == "bool") != (wanted == "bool"):
        help = "compare: `q >= kv`" if wanted == "bool" else "select: `math.where(condition, score, other)`"
        raise DefinitionError(f"{shown} returned {kind}: expected {wanted}", help=help)
    symbolic = not isinstance(args[0], np.ndarray)
    return _to_tvm(value, "float32" if wanted == "float" else "bool") if symbolic else np.asarray(value)


def _help(error: DefinitionError) -> str | None:
    return error.help


def _unread(tensor: Unread) -> str:
    return f"the captured tensor {tensor.name} is used whole: an element of it needs {tensor.missing} more indices"


# -- how an operation is done ------------------------------------------------------------------------------


def _kind(value: Any) -> str:
    """ "bool", "int" or "float" of an expression, an array or a plain number."""
    if isinstance(value, bool | int | float):
        dtype = type(value).__name__
    elif isinstance(value, np.ndarray | np.generic):
        dtype = str(value.dtype)
    else:
        dtype = str(value.ty.dtype)
    return "bool" if dtype == "bool" else "int" if dtype.startswith("int") else "float"


def _foreign(library: str, name: str, args: tuple[Any, ...], kwargs: Any) -> Scalar:
    """Another library's function, called on a `Scalar`."""
    name = name.strip("_")
    ours = _ALIASES.get(name, name)
    if kwargs or ours not in _NUMPY:
        known = sorted({*_FLOAT_FUNCTIONS, *_ROUNDING, "abs", "minimum", "maximum", "where"})
        raise DefinitionError(
            f"{library}.{name} is not one of the functions that a mod can use", help=f"it can use {', '.join(known)}"
        )
    return _apply(ours, *args)


def _apply(name: str, *args: Any) -> Scalar:
    """One operation, by its name in the loop-scalar IR, on `Scalar`s and plain numbers."""
    values = [a.value if isinstance(a, Scalar) else a for a in args]
    for value, arg in zip(values, args, strict=True):
        if isinstance(arg, Unread):
            raise DefinitionError(_unread(arg))
        if not isinstance(arg, Scalar | bool | int | float | np.bool_ | np.integer | np.floating):
            raise DefinitionError(
                f"a mod combines its arguments with a {type(value).__name__}: only plain numbers can be used whole",
                help="read one element of a captured tensor, as in `slopes[h]`",
            )
    kinds = [_kind(v) for v in values]
    truths = kinds if name in _LOGIC else kinds[:1] if name == "select" else []
    if any(kind != "bool" for kind in truths):
        spelled = {"and": "&", "or": "|", "not": "~", "select": "math.where"}[name]
        raise DefinitionError(f"`{spelled}` takes conditions, got {', '.join(kinds)}")
    if all(isinstance(v, np.ndarray | np.generic | bool | int | float) for v in values):
        return Scalar(_on_numpy(name, values, kinds))
    return Scalar(_on_tvm(name, values, kinds))


def _on_numpy(name: str, values: list[Any], kinds: list[str]) -> np.ndarray:
    if name == "pow" and "float" not in kinds:
        values = [np.asarray(v, dtype=np.float64) for v in values]  # NumPy refuses 2 ** -1
    with np.errstate(all="ignore"):
        return np.asarray(_NUMPY[name](*values))


def _on_tvm(name: str, values: list[Any], kinds: list[str]) -> Any:
    from tvm import tirx

    if name in _LOGIC:
        build = {"and": tirx.And, "or": tirx.Or, "not": tirx.Not}[name]
        return build(*(_to_tvm(v, "bool") for v in values))
    head = [_to_tvm(values[0], "bool")] if name == "select" else []
    values, kinds = values[len(head) :], kinds[len(head) :]
    floats = "float" in kinds or name in ("div", "pow", *_FLOAT_FUNCTIONS)
    if not floats and name in _ROUNDING:
        return values[0]
    dtype = "float32" if floats else "bool" if name == "select" and set(kinds) == {"bool"} else "int32"
    operands = head + [_to_tvm(v, dtype) for v in values]
    if floats and name in ("floordiv", "floormod"):
        a, b = operands
        whole = tirx.floor(a / b)
        return whole if name == "floordiv" else a - whole * b
    match name:
        case "add":
            return operands[0] + operands[1]
        case "sub":
            return operands[0] - operands[1]
        case "mul":
            return operands[0] * operands[1]
        case "neg":
            return tirx.const(0, dtype) - operands[0]
        case "select":
            return tirx.if_then_else(*operands)
    build = {
        "div": tirx.Div, "floordiv": tirx.FloorDiv, "floormod": tirx.FloorMod, "min": tirx.Min, "max": tirx.Max,
        "lt": tirx.LT, "le": tirx.LE, "gt": tirx.GT, "ge": tirx.GE, "eq": tirx.EQ, "ne": tirx.NE,
    }.get(name) or getattr(tirx, name)  # fmt: skip
    return build(*operands)


def _to_tvm(value: Any, dtype: str) -> Any:
    """A number or an expression as an expression of `dtype`."""
    from tvm import tirx

    if isinstance(value, bool | int | float | np.generic):
        return tirx.const(value.item() if isinstance(value, np.generic) else value, dtype)
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)
