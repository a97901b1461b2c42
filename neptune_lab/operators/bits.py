"""Bits of whole numbers in a mod: `& | ^ ~ << >>`, with PyTorch's results for every operand."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.arrays import Array, constant, elementwise
from neptune_lab.operators.operations import NARROW, NUMBERS, convert, is_wide, kind_of, narrow_of

if TYPE_CHECKING:
    from neptune_lab.operators.scalar import Scalar

_OPERANDS = ("a", "b", "value", "condition", "true_value", "false_value")
_SPELLED = {"and": "&", "or": "|", "xor": "^"}
# Masks up to here are remainders in 32 bits; products with powers of two up to here stay in 64 bits.
_LARGEST_REMAINDER, _LARGEST_PRODUCT = 30, 62


def _apply(name: str, *args: Any) -> Any:
    from neptune_lab.operators.scalar import apply

    return apply(name, *args)


def _value(x: Any) -> Any:
    return getattr(x, "value", x)


def invert(x: Any) -> Scalar:
    """~x: the negation of a condition, or -x - 1 of an integer.

    Args:
        x: a `Scalar`: a condition or an integer.

    Returns:
        A `Scalar` of the same kind.

    Raises:
        DefinitionError: `x` is a float.
    """
    return _apply("sub", -1, x) if kind_of(_value(x)) == "int" else _apply("not", x)


def bits(name: str, a: Any, b: Any) -> Scalar:
    """`a & b`, `a | b` or `a ^ b` of conditions and whole numbers; a condition counts as 0 or 1 beside a number.

    Args:
        name: "and", "or" or "xor".
        a, b: `Scalar`s or plain numbers.

    Returns:
        A condition if both are conditions, else an integer.

    Raises:
        DefinitionError: an operand is a float.
    """
    a, b = constant(a, typed=True), constant(b, typed=True)
    if isinstance(a, Array) or isinstance(b, Array):
        return elementwise(partial(bits, name), a, b)
    kinds = kind_of(_value(a)), kind_of(_value(b))
    if kinds == ("bool", "bool"):
        return _apply("ne" if name == "xor" else name, a, b)
    a, b = (_as_integer(x, f"`{_SPELLED[name]}`", kinds) for x in (a, b))
    if isinstance(_value(a), NUMBERS):
        a, b = b, a
    mask = _value(b)
    if name == "and" and isinstance(mask, NUMBERS):
        largest = _largest_power(a)
        for kept, cleared in ((int(mask), False), (-int(mask) - 1, True)):
            if _is_run(kept, largest):
                return _apply("sub", a, _run(a, kept)) if cleared else _run(a, kept)
    return _apply(f"bit{name}", a, b)


def _as_integer(x: Any, operation: str, kinds: tuple[str, ...]) -> Any:
    """A whole number as it is, a condition as 0 or 1."""
    from neptune_lab.operators.scalar import Scalar

    kind = kind_of(_value(x))
    if kind == "float":
        raise DefinitionError(
            f"{operation} takes whole numbers or conditions; got {' and '.join(kinds)}",
            help="write `(x > 0) & (y > 0)`, with brackets, for conditions; convert a float by x.long() or `//`",
        )
    if kind == "int":
        return x
    return Scalar(convert(x.value, "int32")) if isinstance(x, Scalar) else int(x)


def _largest_power(x: Any) -> int:
    """The largest n of the divisors 2**n that the dtype of x holds, which a number beside x has."""
    narrow = narrow_of((x,))
    if not narrow:
        return _LARGEST_REMAINDER
    width, signed = NARROW[narrow]
    return width - 2 if signed else width - 1


def _is_run(mask: int, bits: int) -> bool:
    """Whether the ones of a mask are side by side, so that it is a remainder of a quotient, which has known bounds; and
    it has at most so many bits."""
    lowest = mask & -mask
    return mask == 0 or (0 < mask < 2**bits and (mask + lowest) & mask == 0)


def _run(x: Any, mask: int) -> Any:
    """x & mask for ones that are side by side: ((x >> low) % 2**length) << low."""
    if not mask:
        return _apply("mul", x, 0)
    low = (mask & -mask).bit_length() - 1
    part = _apply("floordiv", x, 2**low) if low else x
    part = _apply("floormod", part, 2 ** (mask.bit_length() - low))
    return _apply("mul", part, 2**low) if low else part


def shift(x: Any, by: Any, right: bool = False) -> Scalar:
    """x << by or x >> by.

    Args:
        x: a whole number or a condition, as a `Scalar` or a plain number.
        by: as `x`. As in PyTorch, if it is negative or not less than the width of the dtype, `<<` gives 0, and `>>`
            what a shift by all bits leaves: 0, or -1 for a negative number.
        right: whether to shift right.

    Returns:
        An integer.

    Raises:
        DefinitionError: an operand is a float.
    """
    x, by = constant(x, typed=True), constant(by, typed=True)
    if isinstance(x, Array) or isinstance(by, Array):
        return elementwise(lambda e, count: shift(e, count, right), x, by)
    kinds = kind_of(_value(x)), kind_of(_value(by))
    x, by = (_as_integer(v, "`>>`" if right else "`<<`", kinds) for v in (x, by))
    x = x.long() if getattr(x, "limits", None) is not None and not right else x  # int64 in PyTorch
    count = _value(by)
    if isinstance(count, NUMBERS):
        return _shifted(x, int(count), right)
    if not right and len(origins(x) | origins(by)) > 1:
        by = by.long()  # PyTorch's positions have 64 bits, and nothing bounds the captured number
    width = 32 if _is_narrow(x) and _is_narrow(by) else 64
    inside = _is_inside(count, width)
    if right:
        last = by if inside else _apply("select", _apply("lt", by, 0), width - 1, _apply("min", by, width - 1))
        return _apply("shr", x, last)
    kept = by if inside else _apply("min", _apply("max", by, 0), width - 1)
    result = _apply("shl", x, kept)
    if inside:
        return result
    return _apply("select", _apply("and", _apply("ge", by, 0), _apply("lt", by, width)), result, 0)


def _shifted(x: Any, by: int, right: bool) -> Scalar:
    """A shift by a constant: a quotient or a product, whose bounds are known, where a power of two fits."""
    if right:
        if 0 <= by <= _largest_power(x):
            return _apply("floordiv", x, 2**by)
        width = 32 if _is_narrow(x) else 64
        return _apply("shr", x, by if 0 <= by < width else width - 1)
    if by > _LARGEST_REMAINDER and _is_narrow(x) and hasattr(_value(x), "ty") and not x.short_int:
        if origins(x) == {"read"}:  # int32 in PyTorch too
            return _apply("shl", x, by) if by < 32 else _apply("mul", x, 0)
        x = x.long()
    if 0 <= by <= _LARGEST_PRODUCT:
        return _apply("mul", x, 2**by)
    return _apply("shl", x.long(), by) if 0 <= by < 64 else _apply("mul", x, 0)


def _is_narrow(x: Any) -> bool:
    """Whether it is an expression of 32 bits, or a number beside one."""
    value = _value(x)
    return isinstance(value, NUMBERS) or (hasattr(value, "ty") and not is_wide(value))


def _is_inside(count: Any, width: int) -> bool:
    """Whether an expression is a remainder of a division by at most a width."""
    divisor: Any = count.b if type(count).__name__ == "FloorMod" else None
    return type(divisor).__name__ == "IntImm" and 0 < int(divisor.value) <= width


def origins(x: Any) -> set[str]:
    """Of what an expression is computed.

    Args:
        x: a `Scalar` or an expression.

    Returns:
        Of "position" and "read", of a captured tensor.
    """
    found: set[str] = set()
    waiting = [_value(x)]
    while waiting:
        node = waiting.pop()
        kind = type(node).__name__
        if kind == "TensorLoad" or (kind == "Call" and str(node.op.name) == "te.tensor_load"):
            found.add("read")
        elif kind == "Var":
            found.add("position")
        else:
            parts = [getattr(node, name, None) for name in _OPERANDS]
            waiting += [part for part in (*parts, *getattr(node, "args", ())) if hasattr(part, "ty")]
    return found
