"""Computes an operation of the loop-scalar IR by name, in TVM for the definition and in NumPy for the reference.

A value is a TVM expression (int32, int64, float32, float64 or bool), a NumPy array or a plain number.
"""

from __future__ import annotations

import math as _math
from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.scalar_ops import NUMPY, OPERATIONS
from neptune_lab.strict.dtypes import HALVES

# The bits and the signedness of captured integers that kernels hold as int32.  Results computed from these alone wrap
# around as in PyTorch.
NARROW = {"int8": (8, True), "uint8": (8, False), "int16": (16, True), "uint16": (16, False)}
NUMBERS = bool | int | float | np.generic
_FLOAT32 = np.finfo(np.float32)
# What these operations are for two conditions in PyTorch.
_OF_CONDITIONS = {"add": "or", "mul": "and", "max": "or", "min": "and"}
# How a mod writes an operation.
_SPELLED = {"and": "&", "or": "|", "not": "~", "select": "torch.where"}


def kind_of(value: Any) -> str:
    """The kind of a value's dtype.

    Args:
        value: a TVM expression, a NumPy array or a plain number.

    Returns:
        "bool", "int" or "float".
    """
    if isinstance(value, bool | int | float):
        dtype = type(value).__name__
    elif isinstance(value, np.ndarray | np.generic):
        dtype = str(value.dtype)
    else:
        dtype = str(value.ty.dtype)
    return "bool" if dtype == "bool" else "int" if dtype.startswith("int") else "float"


def is_wide(value: Any) -> bool:
    """Whether a value is a TVM expression of 64 bits, as computed from captured tensors of 64 bits.

    Args:
        value: a TVM expression, a NumPy array or a plain number.

    Returns:
        True for expressions of int64 and float64; False for arrays and numbers.
    """
    return not isinstance(value, NUMBERS | np.ndarray) and str(value.ty.dtype) in ("int64", "float64")


def operate(name: str, values: list[Any]) -> Any:
    """The result of the operation called `name`.

    Args:
        name: the operation's name in the loop-scalar IR.
        values: its operands.

    Returns:
        A number if all operands are numbers, a NumPy array if all are arrays or numbers, else a TVM expression.

    Raises:
        DefinitionError: an operand must be a condition and is not, or a constant does not fit the operands' dtype.
    """
    kinds = [kind_of(v) for v in values]
    of_conditions = kinds if OPERATIONS[name].kind == "logic" else kinds[:1] if name == "select" else []
    if any(kind != "bool" for kind in of_conditions):
        raise DefinitionError(
            f"`{_SPELLED[name]}` takes conditions, got {', '.join(kinds)}", help="compare first, as in `(x > 0)`"
        )
    if name in ("floordiv", "floormod") and _is_zero(values[1]):
        raise DefinitionError(
            "the divisor of a `//` or `%` is 0, and the result has no value",
            help="check the number or the tensor's shape that it is computed from; where only some divisors are 0, "
            "put them into a tensor",
        )
    if all(isinstance(v, np.ndarray | NUMBERS) for v in values):
        return _on_numpy(name, values)
    if any(isinstance(v, np.ndarray) for v in values):  # a mod is called with positions of either form
        raise DefinitionError(
            "a mod uses a value that it kept from another call of it, at other positions",
            help="compute the value in each call, and keep only what depends on no argument, outside of the mod",
        )
    return _on_tvm(name, values, kinds)


def _is_zero(value: Any) -> bool:
    """Whether a value is the constant 0, as a number or in TVM."""
    if type(value).__name__ in ("IntImm", "FloatImm"):
        return value.value == 0
    return isinstance(value, NUMBERS) and value == 0


def promoted(first: str, second: str) -> str:
    """The dtype that PyTorch gives an operation on integers of two dtypes.

    Args:
        first, second: dtypes of NARROW.

    Returns:
        A dtype of NARROW; "" if the result is wider.
    """
    if first == second:
        return first
    (first_bits, first_signed), (second_bits, second_signed) = NARROW[first], NARROW[second]
    if first_signed == second_signed:
        return first if first_bits > second_bits else second
    signed, unsigned = (first_bits, second_bits) if first_signed else (second_bits, first_bits)
    return "int16" if max(2 * unsigned, signed) == 16 else ""


def wrapped(value: Any, narrow: str) -> Any:
    """The value modulo 2**bits, in the range of a dtype of NARROW: its overflow in PyTorch.

    Args:
        value: an int32 expression, an array or a number.
        narrow: the dtype.

    Returns:
        An int32 expression or an array.
    """
    bits, signed = NARROW[narrow]
    if not signed:
        return operate("floormod", [value, 2**bits])
    half = 2 ** (bits - 1)
    return operate("sub", [operate("floormod", [operate("add", [value, half]), 2**bits]), half])


def convert(value: Any, dtype: str) -> Any:
    """The value converted to a dtype.

    In TVM, float16 and bfloat16 round the value, and the result is float32.  In NumPy, integers are int64 and floats
    are float64, without rounding.

    Args:
        value: a TVM expression, a NumPy array or a plain number.
        dtype: "bool", "int32", "int64", "float16", "bfloat16", "float32" or "float64".

    Returns:
        A TVM expression or a NumPy array; a number if `value` is one.
    """
    if dtype == "bool":
        return operate("ne", [value, 0])
    if isinstance(value, np.ndarray | NUMBERS):
        with np.errstate(all="ignore"):  # an infinity that a condition hides
            converted = np.asarray(value).astype(np.int64 if dtype.startswith("int") else np.float64)
        return converted[()] if isinstance(value, NUMBERS) else converted
    if dtype in HALVES:
        return to_tvm(to_tvm(to_tvm(value, "float32"), dtype), "float32")
    return to_tvm(value, dtype)


def _on_numpy(name: str, values: list[Any]) -> np.ndarray | np.generic:
    """The operation on arrays; on numbers alone it is a number, which an expression of TVM may meet next."""
    with np.errstate(all="ignore"):
        result = np.asarray(NUMPY[name](*values))
    return result[()] if all(isinstance(v, NUMBERS) for v in values) else result


def _on_tvm(name: str, values: list[Any], kinds: list[str]) -> Any:
    """The operation as a TVM expression, with the operands converted to the dtype in which PyTorch computes."""
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
    if name in ("floordiv", "floormod") and isinstance(values[1], int) and values[1] < 0 and _of_positions(values[0]):
        # x // -n = -x // n and x % -n = -(-x % n), whose bounds are known; of positions, whose negation is in range.
        zero, divisor = tirx.const(0, dtype), tirx.const(-values[1], dtype)
        found = build(name, [zero - operands[0], divisor])
        return found if name == "floordiv" else zero - found
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


def _of_positions(value: Any) -> bool:
    """Whether an expression is computed of positions and constants alone."""
    from neptune_lab.operators.bits import origins

    return not isinstance(value, NUMBERS) and origins(value) <= {"position"}


def _widened(value: Any) -> Any:
    """A float32 expression in float64; a constant is rounded to float32 first."""
    from tvm import tirx

    single = str(value.ty.dtype) == "float32"
    if single and isinstance(value, tirx.FloatImm):
        return tirx.const(float(np.float32(value.value)), "float64")
    return to_tvm(value, "float64")


def _floored(name: str, a: Any, b: Any) -> Any:
    """a // b or a % b of two float64 expressions, as PyTorch computes them from an exact remainder.

    If a and b hold float32 values and the quotient is below 2**24, float64 does not round a / b up to an integer, and
    floor(a / b) * b is exact.  So 0.3 // 0.1 is 2; in float32 the quotient would be 3.
    """
    from tvm import tirx

    infinite = tirx.EQ(tirx.abs(a), tirx.const(_math.inf, "float64"))
    # By an infinite divisor: a itself, or the divisor if the signs differ.
    beyond = tirx.And(tirx.EQ(tirx.abs(b), tirx.const(_math.inf, "float64")), tirx.Not(infinite))
    differs = tirx.And(beyond, a * b < tirx.const(0.0, "float64"))
    whole = tirx.if_then_else(differs, tirx.const(-1.0, "float64"), tirx.floor(a / b))
    if name == "floormod":
        return tirx.if_then_else(beyond, tirx.if_then_else(differs, b, a), a - whole * b)
    unknown = tirx.And(infinite, tirx.NE(b, tirx.const(0.0, "float64")))
    return tirx.if_then_else(unknown, tirx.const(_math.nan, "float64"), whole)


def product(a: Any, b: Any) -> Any:
    """The product of two values, with 0 * x = NaN if x is NaN or infinite.

    TVM folds 0 * x to 0, so a constant 0 becomes a select: |x| < inf is false for infinities and for NaN.

    Args:
        a, b: TVM expressions of one dtype.

    Returns:
        A TVM expression of that dtype.
    """
    from tvm import tirx

    for zero, x in ((a, b), (b, a)):
        if isinstance(zero, tirx.FloatImm) and zero.value == 0 and not isinstance(x, tirx.FloatImm):
            dtype = str(x.ty.dtype)
            finite = tirx.LT(tirx.abs(x), tirx.const(_math.inf, dtype))
            return tirx.if_then_else(finite, tirx.const(0.0, dtype), tirx.const(_math.nan, dtype))
    return a * b


def to_tvm(value: Any, dtype: str) -> Any:
    """A value as a TVM expression of a dtype.

    Args:
        value: a TVM expression or a plain number.
        dtype: the dtype in TVM, such as "float32".

    Returns:
        A constant, a cast, or `value` itself if it has the dtype.

    Raises:
        DefinitionError: `dtype` is int32 or int64 and does not hold the number, or an int is too large for any float.
    """
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
    """A constant for float32: as written, but rounded to infinity, a denormal or 0 outside float32's normal range."""
    try:
        value = float(number)
    except OverflowError:
        raise DefinitionError(
            "a mod combines a float with a whole number beyond every float", help="write the number as a float"
        ) from None
    ordinary = _FLOAT32.tiny <= abs(value) <= _FLOAT32.max or value == 0
    with np.errstate(over="ignore"):
        return value if ordinary else float(np.float32(value))


def half_of(args: tuple[Any, ...]) -> str:
    """The dtype of 16 bits that PyTorch has for a float; plain numbers, integers and conditions do not widen it.

    Args:
        args: the operands: `Scalar`s and plain numbers.

    Returns:
        The dtype's name, else "".
    """
    dtypes = {a.short_float for a in args if hasattr(a, "short_float") and kind_of(a.value) == "float"}
    return dtypes.pop() if len(dtypes) == 1 else ""


def narrow_of(args: tuple[Any, ...]) -> str:
    """The dtype of NARROW that PyTorch has for a result; plain numbers and conditions do not widen it.

    Args:
        args: the operands: `Scalar`s and plain numbers.

    Returns:
        The dtype's name, else "".
    """
    narrow = ""
    for arg in args:
        own = getattr(arg, "short_int", None)
        if own is not None and kind_of(arg.value) == "int":
            narrow = promoted(narrow or own, own) if own else ""
            if not narrow:
                return ""
    return narrow
