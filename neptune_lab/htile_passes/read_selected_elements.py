"""Reads the one element that a sum selects by its position, instead of comparing every position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import (
    conjuncts,
    map_stores,
    region,
    rewrite_store,
    same_index,
    tile_dims,
    with_body,
    written_tensors,
)
from neptune_lab.htile_passes.rewrite import map_kernels, tile_pass
from neptune_lab.htile_passes.unroll_small_reductions import element
from neptune_lab.strict.dtypes import FLOATS


@tile_pass(before="unroll_small_reductions")
def read_selected_elements(program: ir.Program) -> ir.Program:
    """Before => after, for the logit of a row's label in a cross-entropy:

        target[i] = reduce(sum, where(label[i] == iota[j0*64:j0*64+64], x[i, j0*64:j0*64+64], 0.0), dim=0)
        =>
        target[i] = where(label[i] >= j0*64 and label[i] < j0*64+64, x[i, label[i]], 0.0) + 0.0

    The comparison, the selection and the sum take three instructions per element, and the new form one load per row and
    tile.  The sum `+ 0.0` turns -0.0 into 0.0, as adding zeros does, so no bit of a result changes.
    """

    def change(kernel: ir.Kernel) -> ir.Kernel:
        written = written_tensors(kernel)

        def visit(expr: ir.TileExpr) -> ir.TileExpr:
            return _selected(expr, program, written) or expr

        return with_body(kernel, map_stores(kernel.body, lambda store: rewrite_store(store, visit)))

    return map_kernels(program, change)


def _selected(expr: ir.TileExpr, program: ir.Program, written: frozenset[str]) -> ir.TileExpr | None:
    """The element that a sum selects; None if it is another expression, or the element cannot be read by itself."""
    if not isinstance(expr, ir.Reduce) or expr.op != "sum":
        return None
    conditions, value = _conditions(expr.arg)
    for n, condition in enumerate(conditions):
        for position, wanted in _comparisons(condition, expr.dim, program):
            # Formal statement: one element of the dimension at most has this position, since `wanted` is one number
            # there; all others add 0.
            at = _At(program, written, expr.dim, position, wanted)
            found = at.inside(), *(at.read(other) for other in (*conditions[:n], *conditions[n + 1 :]))
            read = at.read(value)
            if read is None or any(c is None for c in found):
                continue
            dtype = dtype_of(value, program)
            mask = _conjunction(tuple(c for c in found if c is not None))
            zero = ir.Literal(0.0 if dtype in FLOATS else 0, dtype)
            chosen = ir.Elementwise("where", (mask, read, zero), dtype)
            made = ir.Elementwise("add", (chosen, zero), dtype) if dtype in FLOATS else chosen
            return made if shape_of(made, program) == shape_of(expr, program) else None
    return None


def _conditions(expr: ir.TileExpr) -> tuple[list[ir.TileExpr], ir.TileExpr]:
    """`where(c, where(d, value, 0), 0)` as ([c, d], value); a conjunction is several conditions."""
    found: list[ir.TileExpr] = []
    while isinstance(expr, ir.Elementwise) and expr.op == "where" and _is_zero(expr.args[2]):
        found += conjuncts(expr.args[0])
        expr = expr.args[1]
    return found, expr


def _is_zero(expr: ir.TileExpr) -> bool:
    """Whether a value is the constant 0, and not -0.0, which a sum would keep if all its elements were."""
    return isinstance(expr, ir.Literal) and expr.value == 0 and math.copysign(1.0, expr.value) > 0


def _comparisons(condition: ir.TileExpr, dim: int, program: ir.Program) -> Iterator[tuple[ir.Slice, ir.TileExpr]]:
    """The slice whose positions a condition compares with one number per row, and that number, without dimension
    `dim`."""
    if not isinstance(condition, ir.Elementwise) or condition.op != "eq":
        return
    for positions, wanted in (condition.args, condition.args[::-1]):
        while isinstance(positions, ir.Cast) and positions.dtype in ("int32", "int64"):
            positions = positions.arg
        if not isinstance(positions, ir.Iota) or dtype_of(wanted, program) not in ("int32", "int64"):
            continue
        chosen, shape = positions.index[dim], shape_of(wanted, program)
        if isinstance(chosen, ir.Slice) and (not shape or shape[dim] == 1):
            number = element(wanted, dim, 0, program)
            if number is not None:
                yield chosen, number


@dataclass(frozen=True, slots=True)
class _At:
    """Tiles at the position `wanted` of dimension `dim`, which runs over `chosen`; the dimension is dropped."""

    program: ir.Program
    written: frozenset[str]
    dim: int
    chosen: ir.Slice
    wanted: ir.TileExpr

    def inside(self) -> ir.TileExpr:
        """Whether the dimension has the position."""
        start = ir.Scalar(self.chosen.start)
        end = ir.Scalar(ir.Arith("+", self.chosen.start, ir.Int(self.chosen.extent)))
        bounds = (("ge", start), ("lt", end))
        return _conjunction(tuple(ir.Elementwise(op, (self.wanted, self._as_wanted(x)), "bool") for op, x in bounds))

    def _as_wanted(self, position: ir.TileExpr) -> ir.TileExpr:
        dtype = dtype_of(self.wanted, self.program)
        return position if dtype == "int32" else ir.Cast(position, dtype)

    def index(self) -> ir.TileExpr:
        """The position as an index, which `inside` says is no other number in 32 bits."""
        return self.wanted if dtype_of(self.wanted, self.program) == "int32" else ir.Cast(self.wanted, "int32")

    def read(self, expr: ir.TileExpr) -> ir.TileExpr | None:
        """`expr` there; None if it cannot be written."""
        shape = shape_of(expr, self.program)
        if not shape or shape[self.dim] == 1:
            return element(expr, self.dim, 0, self.program)
        match expr:
            case ir.Iota(index=index):
                return self.index() if self._is_chosen(index[self.dim]) else None
            case ir.Access():
                return self._gathered(expr)
            case ir.Elementwise(args=args):
                found = tuple(read for arg in args if (read := self.read(arg)) is not None)
                return replace(expr, args=found) if len(found) == len(args) else None
            case ir.Cast(arg=arg):
                read = self.read(arg)
                return None if read is None else replace(expr, arg=read)
            case _:  # permuted tiles, reductions and products
                return None

    def _is_chosen(self, part: ir.Slice | ir.NewAxis) -> bool:
        return isinstance(part, ir.Slice) and same_index(part, self.chosen)

    def _gathered(self, access: ir.Access) -> ir.TileExpr | None:
        """The elements of a tensor in global memory, which the kernel does not store to."""
        dims = tile_dims(access.index)
        tensor = self.program.tensor(access.tensor)
        if tensor.space == "chip" or tensor.name in self.written or not self._is_chosen(dims[self.dim]):
            return None
        indices: list[ir.TileExpr] = []
        for part in region(access):
            if not isinstance(part, ir.Slice):
                indices.append(ir.Scalar(part))
            elif part is dims[self.dim]:
                indices.append(self.index())
            else:
                at = next(n for n, other in enumerate(dims) if other is part)
                axes = tuple(part if n == at else ir.NewAxis() for n in range(len(dims)) if n != self.dim)
                indices.append(ir.Iota(axes))
        return ir.Gather(access.tensor, tuple(indices))


def _conjunction(conditions: tuple[ir.TileExpr, ...]) -> ir.TileExpr:
    """All of them."""
    first, *others = conditions
    for other in others:
        first = ir.Elementwise("and", (first, other), "bool")
    return first
