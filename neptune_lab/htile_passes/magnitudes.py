"""Bounds on the magnitude of a tile's finite values, from dtypes and operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import operation, shape_of
from neptune_lab.htile.walk import (
    accesses,
    children,
    evaluate,
    names_of_index,
    stores,
    subexpressions,
    values_by_tensor,
)
from neptune_lab.scalar_ops import NUMPY
from neptune_lab.strict.dtypes import EIGHTS, LARGEST_FINITE

_INF = math.inf
# Of wider floats, no bound would stay finite in a product.
_LARGEST: Mapping[str, float] = {
    **{dtype: LARGEST_FINITE[dtype] for dtype in (*EIGHTS, "float16")},
    "bool": 1.0,
    "int8": 128.0,
    "uint8": 255.0,
    "int16": 32768.0,
}
_WHOLE = 2.0**63
_TRIED = 4096


class Magnitudes:
    """A bound on the finite absolute values of a tile expression of a program; inf if none is known.

    >>> from neptune_lab.htile.nodes import Tensor
    >>> q = Tensor("q", (4,), "float16", "input")
    >>> of = Magnitudes(ir.Program("p", (q,), ("q",), (), ()))
    >>> read = ir.Access("q", ())
    >>> of(ir.Elementwise("mul", (ir.Cast(read, "float32"), ir.Literal(0.5, "float32")), "float32"))
    32752.0
    >>> of(ir.Elementwise("exp", (read,), "float32"))
    inf
    """

    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.values = values_by_tensor(store for kernel in program.kernels for store in stores(kernel.body))
        self.known: dict[str, float] = {}
        self.grid: dict[str, int] = {}
        for kernel in program.kernels:
            for axis in kernel.grid:
                self.grid[axis.var] = max(axis.extent, self.grid.get(axis.var, 0))
        self.open: set[str] = set()

    def __call__(self, expr: ir.TileExpr) -> float:
        match expr:
            case ir.Literal(value=value):
                return abs(float(value)) if math.isfinite(value) else 0.0
            case ir.Iota() | ir.Scalar():
                return 2.0**31
            case ir.Access(tensor=name) | ir.Gather(tensor=name):  # (outside of the tensor, a gather reads 0)
                return self._tensor(name)
            case ir.Cast(arg=arg, dtype=dtype):
                return min(self(arg), _largest(dtype))
            case ir.Permute(arg=arg) | ir.Grouped(arg=arg) | ir.Reduce(op="max" | "min", arg=arg):
                return self(arg)
            case ir.Reduce(op="sum", arg=arg, dim=dim):
                return self._growing(self(arg) * shape_of(arg, self.program)[dim], expr)
            case ir.Dot(a=a, b=b, acc=acc):
                start = 0.0 if acc is None else self(acc)
                return self._growing(start + self(a) * self(b) * shape_of(a, self.program)[-1], expr)
            case ir.Elementwise(op=op, args=args):
                return self._elementwise(op, args, expr)
        return _INF

    def _elementwise(self, op: str, args: tuple[ir.TileExpr, ...], expr: ir.TileExpr) -> float:
        row = operation(op)
        if row.bounded:
            return max(map(abs, row.within))
        if op in ("max", "min", "neg", "abs"):
            return max(self(arg) for arg in args)
        if op == "where":
            return max(self(arg) for arg in args[1:])
        if op in ("add", "sub"):
            return self._growing(sum(self(arg) for arg in args), expr)
        if op == "mul":
            a, b = (self(arg) for arg in args)
            return self._growing(0.0 if a == 0 or b == 0 else a * b, expr)
        if op in ("div", "div_rn") and isinstance(args[1], ir.Literal) and args[1].value:
            return self._growing(self(args[0]) / abs(float(args[1].value)), expr)
        return self._of_grid(expr)

    def _of_grid(self, expr: ir.TileExpr) -> float:
        """The largest absolute value of an expression of grid variables alone (a head's slope), by trying all."""
        leaves = [e for e in subexpressions(expr) if not children(e)]
        if not all(isinstance(e, ir.Scalar | ir.Literal) for e in leaves):
            return _INF
        names = sorted(set().union(*(names_of_index(e.value) for e in leaves if isinstance(e, ir.Scalar))))
        if not set(names) <= set(self.grid) or math.prod(self.grid[name] for name in names) > _TRIED:
            return _INF
        points = itertools.product(*(range(self.grid[name]) for name in names))
        values = (_value(expr, dict(zip(names, point, strict=True))) for point in points)
        return max((_INF if value is None else abs(value)) for value in values)

    def _growing(self, value: float, expr: ir.TileExpr) -> float:
        """The bound for an operator that can grow from one iteration to the next: unknown if it reads itself."""
        return _INF if any(access.tensor in self.open for access in accesses(expr)) else value

    def _tensor(self, name: str) -> float:
        if name in self.known:
            return self.known[name]
        if name in self.open:
            return 0.0  # its previous value: an extremum is one of the values seen so far
        tensor = self.program.tensor(name)
        limit = _largest(tensor.dtype)
        if name not in self.values:
            return limit
        self.open.add(name)
        bound = min(limit, max(self(value) for value in self.values[name]))
        self.open.discard(name)
        if not self.open:  # otherwise it may depend on a tile whose bound is not known yet
            self.known[name] = bound
        return bound


def _value(expr: ir.TileExpr, at: Mapping[str, int]) -> float | None:
    """An expression of scalars at one point of the grid; None if any part of it is not a finite number."""
    match expr:
        case ir.Literal(value=value):
            magnitude = float(value)
        case ir.Scalar(value=index):
            magnitude = float(evaluate(index, at))
        case ir.Cast(arg=arg, dtype=dtype) if dtype.startswith("float"):
            return _value(arg, at)
        case ir.Elementwise(op=op, args=args):
            values = [_value(arg, at) for arg in args]
            if None in values:
                return None
            operands = map(int, values) if operation(op).kind == "bits" else values  # pyright: ignore[reportArgumentType]
            with np.errstate(all="ignore"):
                magnitude = float(NUMPY[op](*operands))
        case _:
            return None
    return magnitude if math.isfinite(magnitude) else None


def _largest(dtype: str) -> float:
    return _LARGEST.get(dtype, _WHOLE if dtype.startswith(("int", "uint")) else _INF)
