"""One operation on values of every position, by its name in the loop-scalar IR: in TVM for the definition, in NumPy for
the reference.

A value is an expression of TVM (int32, int64, float32, float64 or bool), a NumPy array or a plain number.
"""

from __future__ import annotations

import math as _math
from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.scalar_ops import NUMPY, OPERATIONS
from neptune_lab.strict.dtypes import HALVES

# Captured integers that kernels hold as int32; what a mod computes with them alone wraps around as in PyTorch.
NARROW = {"int8": (8, True), "uint8": (8, False), "int16": (16, True), "uint16": (16, False)}
NUMBERS = bool | int | float | np.generic
_FLOAT32 = np.finfo(np.float32)
# As PyTorch computes with two conditions.
_OF_CONDITIONS = {"add": "or", "mul": "and", "max": "or", "min": "and"}
_SPELLED = {"and": "&", "or": "|", "not": "~", "select": "math.where"}


def kind_of(value: Any) -> str:
    """ "bool", "int" or "float" of an expression, an array or a plain number."""
    if isinstance(value, bool | int | float):
        dtype = type(value).__name__
    elif isinstance(value, np.ndarray | np.generic):
        dtype = str(value.dtype)
    else:
        dtype = str(value.ty.dtype)
    return "bool" if dtype == "bool" else "int" if dtype.startswith("int") else "float"


def is_wide(value: Any) -> bool:
    """Whether a value is an expression of 64 bits, which captured tensors of 64 bits make, as in PyTorch."""
    return not isinstance(value, NUMBERS | np.ndarray) and str(value.ty.dtype) in ("int64", "float64")


def operate(name: str, values: list[Any]) -> Any:
    """The result of the operation called `name`, an expression or an array.

    Raises:
        DefinitionError: operands of a kind that it does not take.
    """
    kinds = [kind_of(v) for v in values]
    truths = kinds if OPERATIONS[name].kind == "logic" else kinds[:1] if name == "select" else []
    if any(kind != "bool" for kind in truths):
        raise DefinitionError(
            f"`{_SPELLED[name]}` takes conditions, got {', '.join(kinds)}", help="compare first, as in `(x > 0)`"
        )
    if all(isinstance(v, np.ndarray | NUMBERS) for v in values):
        return _on_numpy(name, values, kinds)
    return _on_tvm(name, values, kinds)


def promoted(first: str, second: str) -> str:
    """The dtype of NARROW that PyTorch computes in with two of them; "" if it is a wider one."""
    if first == second:
        return first
    (bits, signed), (other, too) = NARROW[first], NARROW[second]
    if signed == too:
        return first if bits > other else second
    larger = 2 * other if signed else 2 * bits
    return "int16" if max(larger, bits if signed else other) == 16 else ""


def wrapped(value: Any, narrow: str) -> Any:
    """An int32 value brought into the range of a dtype of NARROW, as integers of that size overflow."""
    bits, signed = NARROW[narrow]
    if not signed:
        return operate("floormod", [value, 2**bits])
    half = 2 ** (bits - 1)
    return operate("sub", [operate("floormod", [operate("add", [value, half]), 2**bits]), half])


def convert(value: Any, dtype: str) -> Any:
    """`value` as "bool", "int32", "int64", "float16", "bfloat16", "float32" or "float64".

    A value of 16 bits is rounded to them and goes on in float32; in the reference every float has 64.
    """
    if dtype == "bool":
        return operate("ne", [value, 0])
    if isinstance(value, np.ndarray | NUMBERS):
        return np.asarray(value).astype(np.int64 if dtype.startswith("int") else np.float64)
    if dtype in HALVES:
        return to_tvm(to_tvm(to_tvm(value, "float32"), dtype), "float32")
    return to_tvm(value, dtype)


def _on_numpy(name: str, values: list[Any], kinds: list[str]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(NUMPY[name](*values))


def _on_tvm(name: str, values: list[Any], kinds: list[str]) -> Any:
    from tvm import tirx

    from neptune_lab.loop_ir.tvm_compat.words import build

    if set(kinds) == {"bool"}:
        name = _OF_CONDITIONS.get(name, name)
    row = OPERATIONS[name]
    if row.kind == "logic":
        return build(name, [to_tvm(v, "bool") for v in values])
    head = [to_tvm(values[0], "bool")] if name == "select" else []
    values, kinds = values[len(head) :], kinds[len(head) :]
    floats = "float" in kinds or (row.kind == "float" and not row.exact)
    if not floats and row.kind == "float":
        return values[0]
    conditions = name == "select" and set(kinds) == {"bool"}
    wide = any(is_wide(v) and kind_of(v) == ("float" if floats else "int") for v in values)
    dtype = "bool" if conditions else f"{'float' if floats else 'int'}{64 if wide else 32}"
    operands = head + [to_tvm(v, dtype) for v in values]
    if floats and name in ("floordiv", "floormod"):
        return to_tvm(_floored(name, *map(_widened, operands)), dtype)
    match name:
        case "add":
            return operands[0] + operands[1]
        case "sub":
            return operands[0] - operands[1]
        case "mul":
            return product(*operands)
        case "neg":
            return tirx.const(0, dtype) - operands[0]
        case "round":
            return tirx.nearbyint(*operands)
    return build(name, operands)


def _widened(value: Any) -> Any:
    """A float32 expression in float64; a constant is rounded to float32 first."""
    from tvm import tirx

    single = str(value.ty.dtype) == "float32"
    if single and isinstance(value, tirx.FloatImm):
        return tirx.const(float(np.float32(value.value)), "float64")
    return to_tvm(value, "float64")


def _floored(name: str, a: Any, b: Any) -> Any:
    """a // b or a % b of two float64 expressions that hold float32 values.

    PyTorch has these from an exact remainder.  In float64 neither the quotient of two float32 numbers rounds up to a
    whole number, nor that number times b, as long as it is below 2**24.  So 0.3 // 0.1 is 2; in float32 the quotient
    is 3.
    """
    from tvm import tirx

    whole = tirx.floor(a / b)
    if name == "floormod":
        return a - whole * b
    infinite = tirx.EQ(tirx.abs(a), tirx.const(_math.inf, "float64"))
    return tirx.if_then_else(infinite, tirx.const(_math.nan, "float64"), whole)


def product(a: Any, b: Any) -> Any:
    """a * b of two expressions of one dtype.

    TVM takes 0 * x for 0.  It is NaN where x is NaN or infinite, which is written out: x < inf is false for NaN.
    """
    from tvm import tirx

    for zero, x in ((a, b), (b, a)):
        if isinstance(zero, tirx.FloatImm) and zero.value == 0 and not isinstance(x, tirx.FloatImm):
            dtype = str(x.ty.dtype)
            finite = tirx.LT(tirx.abs(x), tirx.const(_math.inf, dtype))
            return tirx.if_then_else(finite, tirx.const(0.0, dtype), tirx.const(_math.nan, dtype))
    return a * b


def to_tvm(value: Any, dtype: str) -> Any:
    """A number or an expression as an expression of `dtype`."""
    from tvm import tirx

    if isinstance(value, NUMBERS):
        number = value.item() if isinstance(value, np.generic) else value
        if dtype in ("int32", "int64") and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
            raise DefinitionError(
                f"a mod combines an {dtype} with {number}, which {dtype} does not hold", help="make it a float: 1e10"
            )
        return tirx.const(_rounded(number) if dtype == "float32" else number, dtype)
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def _rounded(number: float) -> float:
    """A constant of float32: infinite or a denormal where float32 has no closer number, else as it was written."""
    try:
        value = float(number)
    except OverflowError:
        raise DefinitionError(
            "a mod combines a float with a whole number beyond every float", help="write the number as a float"
        ) from None
    ordinary = _FLOAT32.tiny <= abs(value) <= _FLOAT32.max or value == 0
    with np.errstate(over="ignore"):
        return value if ordinary else float(np.float32(value))
