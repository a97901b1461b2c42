"""A tensor of a traced function, as an expression of its indices."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from math import copysign, inf, isfinite
from typing import TypeAlias

import torch

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Var
from neptune_lab.loop_ir.walks import walk
from neptune_lab.scalar_ops import NEGATION, OPERATIONS
from neptune_lab.strict.dtypes import HALVES, wrapped
from neptune_lab.torch_to_stages.lines import SourceLine

Index: TypeAlias = tuple[Expr, ...]

WIDE = ("int64", "float64")
NARROW_INTEGERS = ("int8", "int16", "uint8")


# Whether all elements of int64 tensors are computed in 64 bits.
_wide: ContextVar[bool] = ContextVar("_wide", default=False)


@contextmanager
def in_64_bits() -> Iterator[None]:
    """Inside, elements of int64 tensors are computed in 64 bits.  Elsewhere positions and small numbers have 32, in
    which masks can be read; `exceeds_int32` tells of programs for which these are too few."""
    token = _wide.set(True)
    try:
        yield
    finally:
        _wide.reset(token)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor whose elements are expressions of their indices.

    An element of a float16 or bfloat16 tensor is an expression of float32: it is rounded where it is stored as an
    output, where a matrix product reads it, and where the user converts it.

    Args:
        shape: its sizes.
        dtype: torch's dtype without "torch.".
        at: from one index per dimension to the element.
        plain: the element is a load, a constant or an index, perhaps converted: computing it twice costs nothing.
        hint: a name for its stage, if it gets one.
        line: the user's line that it comes from.
    """

    shape: tuple[int, ...]
    dtype: str
    at: Callable[[Index], Expr] = field(repr=False)
    plain: bool = False
    hint: str = ""
    line: SourceLine | None = None

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def viewed(self, shape: Sequence[int], index: Callable[[Index], Index]) -> Value:
        """The tensor of `shape` whose element at `i` is this one's at `index(i)`."""
        return replace(self, shape=tuple(shape), at=lambda i: self.at(index(i)))

    def expanded(self, shape: Sequence[int]) -> Value:
        """This tensor broadcast to `shape`, as torch broadcasts."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        own, skipped = self.shape, len(shape) - self.ndim

        def index(i: Index) -> Index:
            return tuple(
                Const(0) if n == 1 and shape[skipped + axis] != 1 else i[skipped + axis] for axis, n in enumerate(own)
            )

        return self.viewed(shape, index)


@dataclass(frozen=True, eq=False)
class Complex:
    """A complex tensor: its real and its imaginary part, in the same shape and dtype."""

    re: Value
    im: Value


def computed_dtype(dtype: str) -> str:
    """The dtype in which elements of a tensor of torch's `dtype` are computed; of integers, see `as_dtype`."""
    if dtype in HALVES:
        return "float32"
    if dtype == "int64" and _wide.get():
        return dtype
    return "int32" if dtype in ("int64", *NARROW_INTEGERS) else dtype


def constant(value: float | int | bool, dtype: str, shape: Sequence[int] = ()) -> Value:
    """A tensor of one repeated number, in torch's `dtype`: an integer wraps around, and a float that is too large is
    infinite.

    >>> numbers = (2**31, "int32"), (300, "uint8"), (2**31, "int64"), (-1e40, "float32")
    >>> [constant(n, dtype).at(()).value for n, dtype in numbers]
    [-2147483648, 44, 2147483648, -inf]
    """
    kind = computed_dtype(dtype)
    number: float | int | bool
    if kind == "bool":
        number = bool(value)
    elif "int" in kind:
        least = -(2**63) if dtype == "int64" else -(2**31)  # as x86 converts infinities and NaN
        number = wrapped(int(value) if isinstance(value, int) or isfinite(value) else least, dtype)
        kind = "int32" if kind == "int32" and -(2**31) <= number < 2**31 else "int64"
    else:
        number = float(value)
        if kind == "float32" and isfinite(number) and abs(number) >= _INFINITE:
            number = copysign(inf, number)
    return Value(tuple(shape), dtype, lambda _: Const(number, kind), plain=True)


def rounded_number(value: float | int | bool, dtype: str) -> float | int | bool:
    """The number as an element of torch's `dtype`, if that has 16 bits; else the number.

    >>> rounded_number(0.1, "float16"), rounded_number(0.1, "float32")
    (0.0999755859375, 0.1)
    """
    return torch.tensor(value, dtype=getattr(torch, dtype)).item() if dtype in HALVES else value


# The least number that float32 rounds to infinity.
_INFINITE = (2 - 2**-24) * 2.0**127


def folded(expr: Expr) -> Expr:
    """A sum or product of constants of 64 bits, one that is cut to 32, or a quotient or remainder of integers, as a
    constant; else the same object."""
    match expr:
        case Op("add" | "sub" | "mul" as name, (Const(a, "int64"), Const(b, "int64"))):
            return Const(wrapped(getattr(operator, name)(a, b), "int64"), "int64")
        case Op("floordiv" | "floormod" as name, (Const(int(a), kind), Const(int(b), other))) if kind == other and b:
            whole = a // b if name == "floordiv" else a % b
            return Const(wrapped(whole, kind), kind)
        case Cast("int32", Const(value, "int64")):
            return Const(wrapped(int(value), "int32"))
    return expr


def narrowed(expr: Expr, dtype: str) -> Expr:
    """An integer element as torch's `dtype` holds it: one of 8 or 16 bits, which is computed in 32, wraps around."""
    return Cast("int32", Cast(dtype, expr)) if dtype in NARROW_INTEGERS else expr


def has_loads(expr: Expr) -> bool:
    """Whether an expression reads a tensor; otherwise it depends on indices alone."""
    return any(isinstance(part, Load) for part in walk(expr))


def negated(condition: Expr) -> Expr:
    """The negation of a condition, as a comparison where it compares indices, so that a loop can be bounded by it."""
    match condition:
        case Op("not", (inner,)):
            return inner
        case Const(value, "bool"):
            return Const(not value, "bool")
        case Op(name, args) if name in NEGATION and not has_loads(condition):
            return Op(NEGATION[name], args)
        case Op("and", (a, b)) if not has_loads(condition):
            return Op("or", (negated(a), negated(b)))
        case Op("or", (a, b)) if not has_loads(condition):
            return Op("and", (negated(a), negated(b)))
    return Op("not", (condition,))


def type_of(expr: Expr, loaded: Callable[[str], str]) -> str:
    """The dtype of an expression; `loaded` gives the dtype of a buffer by its name."""
    match expr:
        case Const(_, dtype) | Cast(dtype, _):
            return dtype
        case Var():
            return "int32"
        case Load(buffer, _):
            return loaded(buffer)
        case Op(name, _) if OPERATIONS[name].kind in ("comparison", "logic"):
            return "bool"
        case Op("select", (_, a, b)):
            own, other = type_of(a, loaded), type_of(b, loaded)
            return "int64" if {own, other} == {"int32", "int64"} else own
        case Op(_, args):
            return type_of(args[0], loaded)
    raise AssertionError(f"no dtype: {expr}")
