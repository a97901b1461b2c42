"""What the lowering of an ATen operation is given, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Var, children
from neptune_lab.loop_ir.walks import walk
from neptune_lab.torch_to_stages.lines import SourceLine
from neptune_lab.torch_to_stages.refusals import refused_operation
from neptune_lab.torch_to_stages.stages import Stages
from neptune_lab.torch_to_stages.values import (
    HALVES,
    NARROW_INTEGERS,
    Value,
    computed_dtype,
    constant,
    has_loads,
    narrowed,
    rounded_number,
    wrapped,
)

Results: TypeAlias = Value | tuple[Value, ...]
Lowering: TypeAlias = Callable[..., Results]
L = TypeVar("L", bound=Callable[..., Any])

# An element of at most so many parts is computed again where it is needed; a larger one gets a stage.
LARGEST_REPEATED = 12
# A mask may be larger: it is read from indices, and a loop is bounded by it only where it is used.
LARGEST_MASK = 64

# Narrow integers that a wider one holds.
_HELD = {"int16": ("int8", "uint8")}

# An index of no tensor's element, whose sum with a size is an int32.
_OUTSIDE = 2**30

_TABLE: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[L], L]:
    """Registers a function as the lowering of ATen operations.

    Args:
        names: such as "add.Tensor", or "softmax" for all overloads.

    Returns:
        A decorator, which returns the function unchanged.
    """

    def register(lowering: L) -> L:
        for name in names:
            assert name not in _TABLE, f"{name} is lowered by {_TABLE[name].__module__} and {lowering.__module__}"
            _TABLE[name] = lowering
        return lowering

    return register


def lowering_of(name: str) -> Lowering | None:
    """The lowering of an operation.

    Args:
        name: such as "add.Tensor".

    Returns:
        Its function, or that of all its overloads; None if it is not taken.
    """
    return _TABLE.get(name) or _TABLE.get(name.partition(".")[0])


def taken_operations() -> list[str]:
    """The ATen operations that have a lowering, sorted."""
    return sorted(_TABLE)


@dataclass(frozen=True, eq=False)
class Context:
    """One operation of the graph, for its lowering.

    Args:
        stages: where new stages go.
        name: the operation, such as "softmax".
        shapes: of its results.
        dtypes: of its results, torch's without "torch.".
        users: how many operations read its result.
        line: the user's line.
    """

    stages: Stages
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    users: int
    line: SourceLine | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return self.shapes[0]

    @property
    def dtype(self) -> str:
        """The dtype of the first result."""
        return self.dtypes[0]

    def refused(self, why: str) -> DefinitionError:
        """The error for arguments that are not taken, to be raised: `why` follows the operation's name."""
        return refused_operation(self.name, self.line, why)

    def size(self, value: Value) -> int:
        """How many parts an element of `value` has."""
        element = value.at(tuple(Var(f"?{n}") for n in range(value.ndim)))
        return sum(1 for _ in walk(element))

    def staged(self, value: Value, hint: str = "") -> Value:
        """`value`, computed once in a stage of its own unless it is a plain read, or depends on indices alone."""
        if value.plain:
            return value
        if not has_loads(value.at(tuple(Var(f"?{n}") for n in range(value.ndim)))):
            return value
        return self.stages.map(value, hint)

    def reused(self, value: Value, hint: str = "") -> Value:
        """`value` for several reads: in a stage of its own if it is larger than what is computed again."""
        if value.plain:
            return value
        most = LARGEST_MASK if value.dtype == "bool" else LARGEST_REPEATED
        return value if self.size(value) <= most else self.staged(value, hint)

    def index(self, value: Value) -> Value:
        """`value` as an index: in a stage of its own if it is read at indices that are read at indices that are read.

        An index that may be negative is written three times, and so are those inside it.
        """
        element = value.at(tuple(Var(f"?{n}") for n in range(value.ndim)))
        return self.stages.map(value) if _reads_inside(element) > 2 else value

    def tensor(self, operand: Value | float | int | bool, dtype: str) -> Value:
        """An operand as a tensor; a number is a tensor of `dtype` without dimensions."""
        return operand if isinstance(operand, Value) else constant(operand, dtype)

    def element(self, operand: Value | float | int | bool) -> Value:
        """An operand that may become an element of the result; a number is rounded to its dtype.

        A number that an integer of 8 or 16 bits does not hold is refused, as torch refuses it when the function runs.
        """
        if isinstance(operand, int) and self.dtype in NARROW_INTEGERS and wrapped(operand, self.dtype) != operand:
            raise self.refused(f"for {self.dtype} with {operand}, which it does not hold")
        return self.tensor(operand if isinstance(operand, Value) else rounded_number(operand, self.dtype), self.dtype)

    def converted(self, value: Value, dtype: str) -> Value:
        """`value` with elements computed in torch's `dtype`, without rounding a float to 16 bits."""
        if dtype == "int64" and value.dtype in ("int32", *NARROW_INTEGERS):
            return replace(value, dtype=dtype, at=lambda i: self.in_64_bits(self.as_dtype(value.at(i), dtype)))
        if dtype in NARROW_INTEGERS and value.dtype not in ("bool", dtype, *_HELD.get(dtype, ())):
            # A float is an int32 first: its conversion to fewer bits is not the same everywhere if it is out of range.
            return replace(value, dtype=dtype, at=lambda i: narrowed(self.as_dtype(value.at(i), "int32"), dtype))
        return replace(value, dtype=dtype, at=lambda i: self.as_dtype(value.at(i), dtype))

    def floats(self, value: Value) -> Value:
        """`value` in the result's dtype, which must be one of floats."""
        if "float" not in self.dtype:
            raise self.refused(f"for {value.dtype}: convert to floats before, with .float()")
        return self.converted(value, self.dtype)

    def as_dtype(self, expr: Expr, dtype: str) -> Expr:
        """An element in the dtype in which elements of torch's `dtype` are computed.

        Elements of int64 have 32 bits where these hold them, and 64 elsewhere; those of int32 always have 32.
        """
        own, wanted = self.stages.type_of(expr), computed_dtype(dtype)
        if own == wanted or (wanted == "int32" and dtype != "int32" and own == "int64"):
            return expr
        if isinstance(expr, Const):
            return constant(expr.value, dtype).at(())
        if wanted == "bool":
            return Op("ne", (expr, Const(0 if "int" in own else 0.0, own)))
        if own == "bool":
            one, zero = (1, 0) if "int" in wanted else (1.0, 0.0)
            return Op("select", (expr, Const(one, wanted), Const(zero, wanted)))
        return Cast(wanted, expr)

    def rounded(self, expr: Expr, dtype: str) -> Expr:
        """An element rounded to torch's `dtype`, if that has 16 bits, and computed with in float32."""
        if dtype not in HALVES:
            return expr
        match expr:
            case Cast("float32", arg) if self.stages.type_of(arg) == dtype:
                return expr
        return Cast("float32", Cast(dtype, expr))

    def applied(self, operation: str, *args: Expr) -> Expr:
        """An operation on elements; integers of 32 and 64 bits meet in 64."""
        types = [self.stages.type_of(arg) for arg in args]
        if "int64" in types and "int32" in types:
            args = tuple(
                arg if kind != "int32" else Const(arg.value, "int64") if isinstance(arg, Const) else Cast("int64", arg)
                for arg, kind in zip(args, types, strict=True)
            )
        return Op(operation, args)

    def elementwise(
        self, compute: Callable[..., Expr], *operands: Value | float | int | bool, within: str = "", dtype: str = ""
    ) -> Value:
        """A tensor of the result's shape, computed element by element.

        Args:
            compute: from one element per operand to the result's.
            operands: tensors and numbers, which are broadcast.
            within: torch's dtype that operands are converted to; "" for the result's.
            dtype: torch's dtype of the result; "" for that of the operation's first result.

        Returns:
            The tensor.
        """
        own = within or self.dtype
        tensors = [self.converted(self.tensor(x, own), own).expanded(self.shape) for x in operands]
        made = dtype or self.dtype
        return Value(self.shape, made, lambda i: self.wrapped(compute(*(t.at(i) for t in tensors)), made))

    def wrapped(self, expr: Expr, dtype: str) -> Expr:
        """The result of an operation on integers of torch's `dtype`, which wraps around if that has 8 or 16 bits.

        Such integers are computed in 32 bits; other operations than these keep them in range.
        """
        match expr:
            case Op("add" | "sub" | "mul" | "neg" | "abs" | "floordiv" | "select"):
                return narrowed(expr, dtype)
        return expr

    def in_64_bits(self, expr: Expr) -> Expr:
        """An element as an int64; one that depends on indices alone has 32 bits where these hold all such elements."""
        own, wanted = self.stages.type_of(expr), "int64" if has_loads(expr) else computed_dtype("int64")
        return expr if own in (wanted, "int64") else Cast(wanted, expr)

    def position(self, expr: Expr) -> Expr:
        """An integer element as an index."""
        match expr:
            case Cast("int64", inner):
                return inner if self.stages.type_of(inner) == "int32" else Cast("int32", inner)
        return Cast("int32", expr) if self.stages.type_of(expr) == "int64" else expr

    def place(self, index: Expr) -> Expr:
        """As `position`, of an index that reads an element; one that 32 bits do not hold is outside of every tensor, on
        its side of 0.

        By two extrema, since a comparison and a choice write the index again: three times for each read inside a read.
        """
        position = self.position(index)
        if position != Cast("int32", index):
            return position
        least, most = Const(-_OUTSIDE, "int64"), Const(_OUTSIDE, "int64")
        return Cast("int32", Op("max", (Op("min", (index, most)), least)))


def _reads_inside(expr: Expr) -> int:
    """How many reads are inside one another at most."""
    inside = max(map(_reads_inside, children(expr)), default=0)
    return inside + isinstance(expr, Load)


def dims_of(value: Value, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """Dimensions as torch counts them, from 0, sorted; None or none for all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(value.ndim))
    listed = [dim] if isinstance(dim, int) else list(dim)
    return tuple(sorted(d % value.ndim if value.ndim else 0 for d in listed)) if value.ndim else ()


def dtype_name(dtype: torch.dtype) -> str:
    """torch's dtype without "torch."."""
    return str(dtype).removeprefix("torch.")
