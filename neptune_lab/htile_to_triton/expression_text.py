"""Emitted text of an expression, with its precedence and whether it is a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  (teaches NumPy the names of small floats)
import numpy as np

from neptune_lab.htile.nodes import Literal
from neptune_lab.htile_to_triton.context import ATOM, NEGATE
from neptune_lab.strict.dtypes import EIGHTS, FLOATS, HALVES, INTEGERS, wrapped
from neptune_lab.wrapping import Doc, call, seq

TRITON_NAMES = {"bool": "tl.int1", "float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5"}
_NATIVE_LITERALS = frozenset({"float32", "int32", "bool"})
# The least float32 with all digits: Triton takes a smaller number of Python for a float64.
_LEAST_NORMAL = 2.0**-126


@dataclass(frozen=True, slots=True)
class ExpressionText:
    """Emitted text of one expression.

    Args:
        doc: the text.
        level: precedence of its outermost operator.
        python: whether it may be a plain Python number (an index, a literal), without `.to` and shape.
        literal: the constant that it is, if it is one.
    """

    doc: Doc
    level: int = ATOM
    python: bool = False
    literal: Literal | None = None

    def at(self, level: int) -> Doc:
        """The text, in brackets if needed under an operator of precedence `level`."""
        return self.doc if self.level >= level else seq("(", self.doc, ")")


def triton_dtype(dtype: str) -> str:
    """Triton's name of a dtype."""
    return TRITON_NAMES.get(dtype, f"tl.{dtype}")


def literal_text(value: float | int | bool, dtype: str) -> str:
    """A constant in Triton."""
    if dtype == "bool":
        return str(bool(value))
    if dtype in FLOATS:
        number = float(value)
        return repr(number) if math.isfinite(number) else f'float("{number}")'
    return str(int(value))


def literal_expression(value: float | int | bool, dtype: str) -> ExpressionText:
    """The text of a constant."""
    text = literal_text(value, dtype)
    return ExpressionText(text, NEGATE if text.startswith("-") else ATOM, True, Literal(value, dtype))


def converted_number(value: float | int | bool, dtype: str) -> float | int | bool:
    """A constant as its conversion to `dtype` gives it: rounded to floats of 8 and 16 bits; integers wrap around.

    >>> converted_number(0.1, "float16"), converted_number(0.1, "bfloat16"), converted_number(0.1, "float32")
    (0.0999755859375, 0.10009765625, 0.1)
    """
    if dtype in INTEGERS and math.isfinite(value):
        return wrapped(int(value), dtype)
    if dtype not in (*EIGHTS, *HALVES):
        return value
    with np.errstate(over="ignore"):
        return float(np.dtype(dtype).type(value))


def with_dtype(emitted: ExpressionText, dtype: str) -> Doc:
    """`emitted` as an argument of a function that would promote a Python number: literals get their dtype."""
    if emitted.literal is None:
        return emitted.doc
    if dtype not in _NATIVE_LITERALS:
        return full((), emitted.literal.value, dtype)
    if dtype == "float32" and 0 < abs(emitted.literal.value) < _LEAST_NORMAL:
        return call("tl.cast", emitted.doc, triton_dtype(dtype))
    return emitted.doc


def full(shape: tuple[int, ...], value: float | int | bool, dtype: str) -> Doc:
    """A tile of one value."""
    if dtype == "bfloat16" and value != 0:  # the interpreter supports no other constant of bfloat16
        return seq(full(shape, value, "float32"), ".to(tl.bfloat16)")
    extents = f"[{', '.join(map(str, shape))}]"
    return call("tl.full", extents, literal_text(value, dtype), triton_dtype(dtype))


def cast(emitted: ExpressionText, dtype: str) -> ExpressionText:
    """`emitted` converted to `dtype`."""
    if emitted.literal is not None:
        return ExpressionText(full((), emitted.literal.value, dtype))
    if emitted.python:
        return ExpressionText(call("tl.cast", emitted.doc, triton_dtype(dtype)))
    return ExpressionText(seq(emitted.at(ATOM), f".to({triton_dtype(dtype)})"))
