"""Padding of tiles to extents that Triton supports, and the values of the lanes that it adds.

`tl.arange` needs a power of two and `tl.dot` at least 16 rows, columns and products; so an extent of 80 becomes 128,
and an extent of 4 that takes part in a dot becomes 16.  The padded extent is a function of the extent alone within a
kernel, hence tiles that broadcast against each other stay compatible.

On Hopper the operands of a dot are in shared memory in rows of 32, 64 or 128 bytes, and each width has its own layout.
ptxas 12.8, which comes with Triton, miscompiles kernels in which tiles of different widths reuse the same memory:
attention with q and k of 64 columns and v of 16 read wrong rows of v.  So all rows have one width there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import assert_never

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, operation, shape_of
from neptune_lab.htile.walk import expressions, stores, tile_dims
from neptune_lab.power_of_two import power_of_two
from neptune_lab.strict.dtypes import HALVES

DOT_MINIMUM = 16
# Hopper multiplies tiles of this many rows out of shared memory, in rows of at most 128 bytes: 64 such elements.
_FROM_SHARED = 64
_WIDEST = 64


class Padding:
    """The padded extents of one kernel.

    Args:
        one_width: whether the operands of all dots get rows of one width; not if the emitter itself places tiles in
            shared memory.
    """

    def __init__(self, program: ir.Program, kernel: ir.Kernel, *, one_width: bool = True) -> None:
        self._program = program
        self._stores = tuple(stores(kernel.body))
        dots = [
            expr
            for store in self._stores
            for expr in expressions(store)
            if isinstance(expr, ir.Dot) and 1 not in self.dot_extents(expr)
        ]
        self._in_dot = frozenset(extent for dot in dots for extent in self.dot_extents(dot))
        self._least: Mapping[int, int] = {}  # `extent` reads it
        if one_width:
            self._least = self._of_one_width(dots)

    def _of_one_width(self, dots: Sequence[ir.Dot]) -> Mapping[int, int]:
        """The least padded size of each contiguous extent of the dots' operands, so that all rows have one width."""
        widths: dict[int, int] = {}
        for dot in dots:
            if self.extent(self.dot_extents(dot)[0]) < _FROM_SHARED:
                continue
            for operand in (dot.a, dot.b):
                inner = self._contiguous(operand, computed=operand is dot.b)
                if inner is not None and dtype_of(operand, self._program) in HALVES:
                    widths[inner] = min(_WIDEST, self.extent(inner))
        widest = max(widths.values(), default=0)
        return {extent: widest for extent, width in widths.items() if width < widest}

    def _contiguous(self, operand: ir.TileExpr, *, computed: bool) -> int | None:
        """The extent of a dot's operand that is contiguous in memory; None for one that stays in registers.

        Args:
            computed: whether an operand that is not a load is in shared memory too, with its last extent contiguous.
        """
        match operand:
            case ir.Permute(arg=arg) | ir.Cast(arg=arg):
                return self._contiguous(arg, computed=computed)
            case ir.Access(tensor=name) if self._program.tensor(name).space == "chip":
                values = [store.value for store in self._stores if store.target.tensor == name]
                if len(values) == 1 and isinstance(values[0], ir.Access | ir.Permute):
                    return self._contiguous(values[0], computed=computed)
                return shape_of(operand, self._program)[-1] if computed else None
            case ir.Access():
                return shape_of(operand, self._program)[-1]
            case _:
                return shape_of(operand, self._program)[-1] if computed else None

    def dot_extents(self, dot: ir.Dot) -> tuple[int, int, int]:
        """m, k and n of a dot, unpadded."""
        a, b = shape_of(dot.a, self._program), shape_of(dot.b, self._program)
        return a[-2], a[-1], b[-1]

    def extent(self, extent: int) -> int:
        """The padded extent of a dimension of extent `extent`."""
        padded = max(power_of_two(extent), self._least.get(extent, 0))
        return max(padded, DOT_MINIMUM) if extent in self._in_dot else padded

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The padded shape of a tile of shape `shape`."""
        return tuple(self.extent(extent) for extent in shape)

    def is_padded(self, extent: int) -> bool:
        """Whether a dimension of that extent has padded lanes."""
        return self.extent(extent) != extent

    def zero_filled(self, expr: ir.TileExpr, dim: int) -> bool:
        """Whether the padded lanes of dimension `dim` of `expr` are proven to hold 0."""
        return self._zero(expr, dim, frozenset())

    def _zero(self, expr: ir.TileExpr, dim: int, assumed: frozenset[tuple[str, int]]) -> bool:
        # `assumed` are tile dimensions under proof: zero at every step if zero before it, so an induction over steps.
        match expr:
            case ir.Literal(value=value):
                return value == 0
            case ir.Iota() | ir.Scalar() | ir.Gather():
                return False
            case ir.Access(tensor=name):
                return self._zero_access(expr, name, dim, assumed)
            case ir.Cast(arg=arg):
                return self._zero(arg, dim, assumed)
            case ir.Permute(arg=arg, order=order):
                return self._zero(arg, order[dim], assumed)
            case ir.Grouped():
                return False
            case ir.Reduce(op=op, arg=arg, dim=folded):
                return op in ("sum", "max", "min") and self._zero(arg, dim if dim < folded else dim + 1, assumed)
            case ir.Elementwise(op="where", args=(_, a, b)):
                return all(self._zero_operand("where", arg, dim, assumed) for arg in (a, b))
            case ir.Elementwise(op=op, args=args):
                return operation(op).zero and all(self._zero_operand(op, arg, dim, assumed) for arg in args)
            case ir.Dot():
                return False
            case _:
                assert_never(expr)

    def _zero_operand(self, op: str, arg: ir.TileExpr, dim: int, assumed: frozenset[tuple[str, int]]) -> bool:
        if shape_of(arg, self._program):
            return self._zero(arg, dim, assumed)
        return isinstance(arg, ir.Literal) and (arg.value == 0 or (op == "mul" and math.isfinite(arg.value)))

    def _zero_access(self, access: ir.Access, name: str, dim: int, assumed: frozenset[tuple[str, int]]) -> bool:
        dims = tile_dims(access.index)
        if isinstance(dims[dim], ir.NewAxis) or not self.is_padded(shape_of(access, self._program)[dim]):
            return False
        if self._program.tensor(name).space != "chip":
            return True  # a load fills them with `other=0`
        own = dim - sum(isinstance(index, ir.NewAxis) for index in dims[:dim])
        if (name, own) in assumed:
            return True
        assumed |= {(name, own)}
        values = [store.value for store in self._stores if store.target.tensor == name]
        return all(self._zero_operand("store", value, own, assumed) for value in values)
