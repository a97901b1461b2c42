"""torch's and NumPy's functions and methods on a mod's arguments, as operations of the loop-scalar IR."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.arrays import Array, constant, elementwise
from neptune_lab.operators.bits import shift
from neptune_lab.operators.functions import FUNCTIONS
from neptune_lab.operators.operations import is_wide, kind_of
from neptune_lab.operators.stopped_gradients import SAME
from neptune_lab.scalar_ops import rows

if TYPE_CHECKING:
    from neptune_lab.operators.scalar import Scalar

# Other names of operations in `scalar_ops`.
_ALIASES = {
    "float_power": "pow",
    "absolute": "abs",
    "expit": "sigmoid",
    "sgn": "sign",
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")},
}
# The dtype for each name of a dtype or of a method that converts, such as x.half().
DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64",
    **{n: n for n in ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")},
}  # fmt: skip
NARROW_METHODS = {"char": "int8", "byte": "uint8", "short": "int16"}
# Methods of `Scalar` that are called on the elements of arrays.
_CONVERSIONS = {"to", "type", "astype", "type_as", *DTYPES, *NARROW_METHODS}
_LARGEST_EXPONENT = 64
_SYMBOLS = {
    "__iadd__": "+",
    "__isub__": "-",
    "__imul__": "*",
    "__itruediv__": "/",
    "__ifloordiv__": "//",
    "__imod__": "%",
    "__ipow__": "**",
    "__iand__": "&",
    "__ior__": "|",
    "__ixor__": "^",
    "__ilshift__": "<<",
    "__irshift__": ">>",
}


def _apply(name: str, *args: Any) -> Scalar:
    from neptune_lab.operators.scalar import apply

    return apply(name, *args)


def call(library: str, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
    """The result of a function of torch or NumPy that a mod calls on a `Scalar`.

    Args:
        library: "torch", "torch.Tensor" or "numpy", for messages.
        name: the function's name in that library.
        args: the positional arguments: `Scalar`s and plain values.
        kwargs: the keyword arguments, or None; `out=None` is ignored.

    Returns:
        A `Scalar`, or a plain number if the function gives one.

    Raises:
        DefinitionError: the IR has no such operation, or the function does not take these arguments.
    """
    from neptune_lab.operators import array_functions
    from neptune_lab.operators.reach import is_array

    name = name.partition(".")[0]  # torch.ops.aten.tanh.default is called tanh.default
    args = tuple(constant(a, typed=True) if is_array(a) else a for a in args)
    kwargs = {n: v for n, v in (kwargs or {}).items() if n != "out" or v is not None}
    if kwargs.pop("inplace", False) or (name.endswith("_") and not name.endswith("__")):
        return in_place(args[0], call(library, name.strip("_"), args, kwargs), name)
    given, name = name, name.strip("_")
    name = name if name in FUNCTIONS else name.removeprefix("special_")
    name = _ALIASES.get(name, name)
    of_arrays = any(isinstance(a, Array) for a in (*args, *kwargs.values())) or name in array_functions.OF_SCALARS
    if of_arrays:
        return array_functions.call(library, name, args, kwargs)
    if name in _CONVERSIONS or name in SAME:
        return getattr(args[0], name)(*args[1:], **kwargs)
    if name in FUNCTIONS:
        try:
            return FUNCTIONS[name](*args, **kwargs)
        except TypeError as error:
            raise DefinitionError(
                f"{library}.{name} in a mod: {error}", help="call it with the arguments that the library itself takes"
            ) from error
    operation = _operation(name)
    if operation is None or kwargs:
        raise unknown(library, given, kwargs)
    return _apply(operation, *args)


def in_place(target: Any, result: Any, name: str) -> Any:
    """`target` with the result's value, as after `x.add_(1)`.

    Args:
        target: the value that is changed.
        result: its new value.
        name: of the function, for messages.

    Returns:
        `target`.

    Raises:
        DefinitionError: the result is of another kind, which PyTorch refuses too.
    """
    from neptune_lab.operators.scalar import Scalar

    if not isinstance(target, Scalar) or not isinstance(result, Scalar) or target.kind != result.kind:
        what = target.kind if isinstance(target, Scalar) else "tensor"
        raise DefinitionError(
            f"a mod changes a {what} in place by {name}",
            help=f"use the result instead: {_instead(name)}",
        )
    if target.kind == "float" and is_wide(target.value) != is_wide(result.value):
        result = result.to(target.dtype)
    # (A half keeps its dtype, as in PyTorch.)
    target.value, target.short_int = result.value, result.short_int
    target.extent, target.limits = result.extent, result.limits
    return target


def in_place_operator(name: str) -> Callable[[Scalar, Any], Any]:
    """`x += y`, which changes every name of `x`, as in PyTorch; an array beside `x` makes a new array.

    Args:
        name: of Python's operator, such as "add".

    Returns:
        The method `__iadd__`.
    """
    function = getattr(operator, f"__{name}__")

    def changed(self: Scalar, other: Any) -> Any:
        from neptune_lab.operators.scalar import Scalar

        result = function(self, other)
        return in_place(self, result, f"__i{name}__") if isinstance(result, Scalar) else result

    return changed


def _instead(name: str) -> str:
    symbol = _SYMBOLS.get(name)
    return f"y = x {symbol} ..." if symbol else f"y = x.{name.strip('_')}(...)"


def unknown(library: str, name: str, kwargs: Any) -> DefinitionError:
    """The refusal of a function that a mod cannot use.

    Args:
        library, name, kwargs: as for `call`.

    Returns:
        The error, which lists the functions that it can use.
    """
    options = f" with {', '.join(kwargs)}" if kwargs else ""
    return DefinitionError(
        f"{library}.{name}{options} is not one of the functions that a mod can use",
        help="compute a tensor outside of the mod and read its elements, `table[b, h, q, kv]`, or use some of "
        f"{', '.join(known_functions())}",
    )


def is_known(name: str) -> bool:
    """Whether a mod can call a function on single elements.

    Args:
        name: its name in torch or NumPy.

    Returns:
        True if the IR has the operation, or `functions` composes it.
    """
    return name in FUNCTIONS or name in _CONVERSIONS or _operation(name) is not None


def device() -> Any:
    """The device that a mod sees: the CPU, on which the constants that it makes can be read.

    Returns:
        torch's device; "cpu" if torch is not loaded.
    """
    torch = sys.modules.get("torch")
    return "cpu" if torch is None else torch.device("cpu")


def _operation(name: str) -> str | None:
    """The IR's name of the operation that torch or NumPy calls `name`; None if there is none."""
    name = _ALIASES.get(name, name)
    return next((row.name for row in rows("loop") if row.torch and name in (row.name, row.numpy, row.torch)), None)


def known_functions() -> list[str]:
    """The functions of torch or NumPy that a mod can call.

    Returns:
        Names, sorted, without some less usual names such as `clip` and `rsub`.
    """
    hidden = {"clip", "fix", "power", "rsub", "invert", "clamp_min", "clamp_max"}
    return sorted({*(row.torch for row in rows("loop") if row.torch and not row.symbol), *FUNCTIONS} - hidden)


def power(base: Any, exponent: Any) -> Scalar:
    """base ** exponent, in integers if neither is a float, as in PyTorch.

    Args:
        base: a `Scalar` or a plain number.
        exponent: a `Scalar` or a plain number; for an integer base, an int from 0 to 64, unless the base is a plain
            power of two.

    Returns:
        The power; of integers by repeated squaring.

    Raises:
        DefinitionError: an integer base has another exponent.
    """
    base, exponent = constant(base, typed=True), constant(exponent, typed=True)
    if isinstance(base, Array) or isinstance(exponent, Array):
        return elementwise(power, base, exponent)
    values = [getattr(x, "value", x) for x in (base, exponent)]
    if "float" in map(kind_of, values):
        return _apply("pow", base, exponent)
    if isinstance(values[0], int) and values[0] > 0 and values[0].bit_count() == 1 and kind_of(values[1]) == "int":
        return shift(1, _apply("mul", exponent, values[0].bit_length() - 1))  # 2 ** h
    whole = values[1]
    if not isinstance(whole, int) or isinstance(whole, bool) or whole < 0:
        raise DefinitionError(
            "a mod raises a whole number to a power that is not a constant of 0 or more, and PyTorch's result is a "
            "whole number again (0 for 2 ** -1)",
            help="make the base a float, as in `2.0 ** h`",
        )
    if whole > _LARGEST_EXPONENT:
        raise DefinitionError(
            f"a mod raises a whole number to the power of {whole}, which int32 does not hold",
            help="convert to a float before: x.float()",
        )
    result: Any = _apply("add", _apply("mul", base, 0), 1)
    while whole:
        result = _apply("mul", result, base) if whole % 2 else result
        base, whole = _apply("mul", base, base), whole // 2
    return result


def dtype_named(value: Any) -> str | None:
    """The name of a dtype of torch, NumPy or Python.

    Args:
        value: any value, such as `torch.float32`, `np.int64`, `float` or a device.

    Returns:
        The name, such as "float32"; None if `value` is not a dtype.
    """
    text = getattr(value, "__name__", None) or str(value)
    return text.removeprefix("torch.") if text.removeprefix("torch.") in _EVERY_DTYPE else None


_EVERY_DTYPE = {*DTYPES, "int8", "int16", "uint8", "uint16", "uint32", "uint64", "complex64", "complex128"}


def refuse_attribute(name: str) -> None:
    """Raise an error for an attribute of a value that is neither a method of torch's tensors nor a function.

    Args:
        name: the attribute, which a mod reads.

    Raises:
        AttributeError: torch's tensors have none, so hasattr is False; it is a DefinitionError too.
        DefinitionError: it is a number or a condition of a tensor that a mod's values lack, such as `is_cuda`.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    torch = sys.modules.get("torch")
    if torch is None:
        return
    found = getattr(torch.Tensor, name, None)
    if found is None and not hasattr(torch.Tensor, name):
        if name in _CONVERSIONS or is_known(name):  # of NumPy, or a function of torch
            return
        raise UnknownAttribute(
            f"a mod reads the attribute {name}, which torch's tensors do not have",
            help="keep the value in a variable of the mod",
        )
    if not callable(found):
        raise DefinitionError(
            f"a mod reads the attribute {name} of a value, which is known only when the kernel runs",
            help="read it before the call, in a variable of its own; a mod may read dtype, shape and ndim",
        )


class UnknownAttribute(DefinitionError, AttributeError):
    """A mod reads an attribute that torch's tensors do not have."""


def dtype_of(kind: str, wide: bool, own: str = "") -> Any:
    """The dtype that a mod sees for a value.

    Args:
        kind: "bool", "int" or "float".
        wide: whether numbers have 64 bits; else 32.
        own: the name of the dtype, if it has 8 or 16 bits.

    Returns:
        A dtype of torch; of NumPy if torch is not loaded.
    """
    name = own or ("bool" if kind == "bool" else f"{kind}{64 if wide else 32}")
    torch = sys.modules.get("torch")
    if torch is not None:
        return getattr(torch, name)
    import numpy as np

    return np.dtype(name)
