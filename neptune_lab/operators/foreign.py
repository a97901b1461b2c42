"""torch's and NumPy's functions and methods on a mod's arguments, as operations of the loop-scalar IR."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.functions import FUNCTIONS
from neptune_lab.operators.operations import is_wide, kind_of
from neptune_lab.scalar_ops import rows

if TYPE_CHECKING:
    from neptune_lab.operators.math import Scalar

# Other names of operations in `scalar_ops`.
_ALIASES = {
    "float_power": "pow", "absolute": "abs", "special_expit": "sigmoid", "special_erf": "erf", "special_exp2": "exp2",
}  # fmt: skip
# The dtype for each name of a dtype or of a method that converts, such as x.half().
DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64",
    **{n: n for n in ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")},
}  # fmt: skip
# Methods of `Scalar` that are called on the elements of arrays.
_CONVERSIONS = {"to", "type", "astype", "type_as", *DTYPES}
_LARGEST_EXPONENT = 64


def _apply(name: str, *args: Any) -> Scalar:
    from neptune_lab.operators.math import apply

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
    from neptune_lab.operators.arrays import Array

    name = name.partition(".")[0]  # torch.ops.aten.tanh.default is called tanh.default
    kwargs = {n: v for n, v in (kwargs or {}).items() if n != "out" or v is not None}
    if kwargs.pop("inplace", False) or (name.endswith("_") and not name.endswith("__")):
        return _in_place(args[0], call(library, name.strip("_"), args, kwargs), name)
    name = name.strip("_")
    of_arrays = any(isinstance(a, Array) for a in (*args, *kwargs.values())) or name in array_functions.OF_SCALARS
    if of_arrays:
        return array_functions.call(library, name, args, kwargs)
    if name in _CONVERSIONS:
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
        raise unknown(library, name, kwargs)
    return _apply(operation, *args)


def _in_place(target: Any, result: Any, name: str) -> Any:
    """`target` with the result's value, as after `x.add_(1)`."""
    from neptune_lab.operators.math import Scalar

    if not isinstance(target, Scalar) or not isinstance(result, Scalar) or target.kind != result.kind:
        what = target.kind if isinstance(target, Scalar) else "tensor"
        raise DefinitionError(
            f"a mod changes a {what} in place by {name}",
            help=f"use the result instead: y = x.{name.strip('_')}(...)",
        )
    if is_wide(target.value) != is_wide(result.value):
        result = result.to(target.dtype)
    target.value, target.narrow = result.value, result.narrow
    return target


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
        help=f"it can use {', '.join(known_functions())}; or compute a tensor outside of the mod and read "
        "its elements, `table[b, h, q, kv]`",
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
        exponent: a `Scalar` or a plain number; for an integer base, an int from 0 to 64.

    Returns:
        The power; of integers by repeated squaring.

    Raises:
        DefinitionError: an integer base has another exponent.
    """
    values = [getattr(x, "value", x) for x in (base, exponent)]
    if "float" in map(kind_of, values):
        return _apply("pow", base, exponent)
    constant = values[1]
    if not isinstance(constant, int) or isinstance(constant, bool) or constant < 0:
        raise DefinitionError(
            "a mod raises a whole number to a power that is not a constant of 0 or more, and PyTorch's result is a "
            "whole number again (0 for 2 ** -1)",
            help="make the base a float, as in `2.0 ** h`",
        )
    if constant > _LARGEST_EXPONENT:
        raise DefinitionError(
            f"a mod raises a whole number to the power of {constant}, which int32 does not hold",
            help="convert to a float before: x.float()",
        )
    result: Any = _apply("add", _apply("mul", base, 0), 1)
    while constant:
        result = _apply("mul", result, base) if constant % 2 else result
        base, constant = _apply("mul", base, base), constant // 2
    return result


def invert(x: Any) -> Scalar:
    """~x: the negation of a condition, or -x - 1 of an integer.

    Args:
        x: a `Scalar`: a condition or an integer.

    Returns:
        A `Scalar` of the same kind.

    Raises:
        DefinitionError: `x` is a float.
    """
    return _apply("sub", -1, x) if kind_of(x.value) == "int" else _apply("not", x)


def shift(x: Any, by: Any, right: bool = False) -> Scalar:
    """x << by as x * 2**by, or x >> by as x // 2**by.

    Args:
        x: an integer `Scalar`.
        by: an int from 0 to 30.
        right: whether to shift right.

    Returns:
        An integer `Scalar`.

    Raises:
        DefinitionError: `x` is not an integer, or `by` is not such a constant.
    """
    if not isinstance(by, int) or isinstance(by, bool) or not 0 <= by < 31 or kind_of(getattr(x, "value", x)) != "int":
        raise DefinitionError(
            f"`{'>>' if right else '<<'}` takes a whole number and a constant from 0 to 30",
            help="multiply, or divide with `//`, by a power of two",
        )
    return _apply("floordiv" if right else "mul", x, 2**by)


def bits(name: str, a: Any, b: Any) -> Scalar:
    """`a & b`, `a | b` or `a ^ b`: of two conditions, or of an integer and a constant.

    Args:
        name: "and", "or" or "xor".
        a, b: two conditions, or an integer `Scalar` and a Python int in either order.

    Returns:
        A condition or an integer, as a `Scalar`.

    Raises:
        DefinitionError: other operands.
    """
    x, y = (getattr(v, "value", v) for v in (a, b))
    kinds = kind_of(x), kind_of(y)
    if kinds == ("bool", "bool"):
        return _apply("ne" if name == "xor" else name, a, b)
    if isinstance(x, int) and not isinstance(x, bool):
        a, b, y, kinds = b, a, x, kinds[::-1]
    if kinds != ("int", "int") or not isinstance(y, int):
        spelled = {"and": "&", "or": "|", "xor": "^"}[name]
        raise DefinitionError(
            f"`{spelled}` takes two conditions, or a whole number and a constant; got {' and '.join(kinds)}",
            help="write `(x > 0) & (y > 0)`, with brackets; for other bits, read them from a tensor made before",
        )
    both = _masked(a, y)
    if name == "and":
        return both
    return _apply("sub", _apply("add", a, y), both if name == "or" else _apply("mul", both, 2))


def _masked(x: Any, mask: int) -> Any:
    """x & mask of an integer x: the sum, over the runs of ones in `mask`, of ((x >> low) % 2**length) << low."""
    if mask < 0:
        return _apply("sub", x, _masked(x, -mask - 1))  # x without the bits that the mask clears
    total: Any = _apply("mul", x, 0)
    low = 0
    while mask >> low:
        length = 0
        while (mask >> low + length) & 1:
            length += 1
        if length:
            run = _apply("floormod", _apply("floordiv", x, 2**low), 2**length)
            total = _apply("add", total, _apply("mul", run, 2**low))
        low += max(length, 1)
    return total


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


def dtype_of(kind: str, wide: bool) -> Any:
    """The dtype that a mod sees for a value.

    Args:
        kind: "bool", "int" or "float".
        wide: whether numbers have 64 bits; else 32.

    Returns:
        A dtype of torch; of NumPy if torch is not loaded.
    """
    name = "bool" if kind == "bool" else f"{kind}{64 if wide else 32}"
    torch = sys.modules.get("torch")
    if torch is not None:
        return getattr(torch, name)
    import numpy as np

    return np.dtype(name)
