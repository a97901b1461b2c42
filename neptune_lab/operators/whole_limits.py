"""Limits of whole numbers that a mod computes of conditions and constants, which have 64 bits in PyTorch.

`condition * 2**20` and `torch.where(condition, 3, 0)` are int64 there.  Kernels compute them in 32 bits as long as
these hold the result, whatever the conditions are.  Positions are not among them: what is computed of these has bounds
of its own (`loop_ir/int32_range.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from neptune_lab.operators.operations import is_wide, kind_of
from neptune_lab.scalar_ops import OPERATIONS

Limits: TypeAlias = tuple[int, int]

_OF_ENDS = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "min": min, "max": max}
# Results are no farther from 0 than an operand, or one beyond.
_NOT_LARGER = ("floordiv", "floormod", "shr")
# Results have as many bits as the operands.
_BITS = ("bitand", "bitor", "bitxor")
# Numbers from this on have 64 bits beside positions and captured integers; a factor may be multiplied once more.
_LARGE = {"add": 2**23, "sub": 2**23, "mul": 2**10}

# Whether all of these numbers have 64 bits.
_WIDE: ContextVar[bool] = ContextVar("whole numbers of 64 bits", default=False)


@contextmanager
def whole_numbers(*, wide: bool) -> Iterator[None]:
    """Numbers of conditions and constants have 64 bits, as positions do, if `wide`; else if 32 do not hold them."""
    token = _WIDE.set(wide)
    try:
        yield
    finally:
        _WIDE.reset(token)


def limits_of(x: Any) -> Limits | None:
    """The least and the largest value of an operand that is a whole number of conditions and constants, or a condition.

    Args:
        x: a `Scalar` or a plain number.

    Returns:
        The limits; None for floats, positions and captured integers.
    """
    value = getattr(x, "value", x)
    if kind_of(value) == "bool":
        return 0, 1
    if isinstance(value, int | np.integer) and not getattr(x, "short_int", ""):
        return int(value), int(value)
    return getattr(x, "limits", None)


def limits_after(name: str, args: tuple[Any, ...]) -> Limits | None:
    """The limits of an operation's integer result; of a comparison, those of its operands.

    Args:
        name: the operation in the loop-scalar IR.
        args: its operands.

    Returns:
        The limits; None if the operands are not all such numbers, or are all conditions.
    """
    numbers = args[1:] if name == "select" else args
    found = [limits_of(x) for x in numbers]
    known = [limits for limits in found if limits is not None]
    if len(known) < len(found) or all(kind_of(getattr(x, "value", x)) == "bool" for x in numbers):
        return None
    low, high = min(a for a, _ in known), max(b for _, b in known)
    if name in _OF_ENDS:
        ends = [_OF_ENDS[name](*pair) for pair in product(*known)]
        return min(ends), max(ends)
    if name == "select" or OPERATIONS[name].kind == "comparison":
        return low, high
    if name == "neg":
        return -high, -low
    if name == "abs" or name in _NOT_LARGER:
        return -max(abs(low), abs(high)) - 1, max(abs(low), abs(high)) + 1
    if name in _BITS:
        beyond = 2 ** max(low.bit_length(), high.bit_length())
        return -beyond, beyond - 1
    return None


def in_32_bits(limits: Limits) -> bool:
    """Whether int32 holds all numbers from the one to the other."""
    return -(2**31) <= limits[0] <= limits[1] < 2**31


def _is_large(x: Any, least: int) -> bool:
    limits = getattr(x, "limits", None)
    return limits is not None and max(map(abs, limits)) >= least


def with_width(name: str, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Limits | None]:
    """The operands of an operation in 64 bits, if 32 do not hold them or the result, and the limits of the result.

    Args:
        name: the operation in the loop-scalar IR.
        args: its operands, `Scalar`s and plain numbers.

    Returns:
        The operands, and the limits as by `limits_after`.
    """
    if not any(hasattr(x, "limits") for x in args):
        return args, None
    limits = limits_after(name, args)
    if limits is None and name in _LARGE:
        return tuple(x.long() if _is_large(x, _LARGE[name]) else x for x in args), None
    if limits is None or (not _WIDE.get() and all(map(in_32_bits, (limits, *filter(None, map(limits_of, args)))))):
        return args, limits
    head, numbers = (args[:1], args[1:]) if name == "select" else ((), args)
    numbers = tuple(x.long() if hasattr(x, "limits") else x for x in numbers)
    if head and not any(is_wide(getattr(x, "value", x)) for x in numbers):  # two constants
        from neptune_lab.operators.scalar import apply

        numbers = apply("add", apply("mul", head[0].long(), 0), numbers[0]), *numbers[1:]
    return (*head, *numbers), limits
