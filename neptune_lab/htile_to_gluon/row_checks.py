"""Checks that a consumer can compute a kernel's tiles, whose rows are split among groups of warps."""

from __future__ import annotations

from collections.abc import Iterator

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import subexpressions, tile_dims
from neptune_lab.htile_to_gluon.gather import is_along_diagonals
from neptune_lab.htile_to_gluon.structure import Product, Structure, UnsupportedKernel
from neptune_lab.strict.dtypes import EIGHTS

WIDEST = 256  # columns of a warp group's product
PLAIN_DTYPES = ("float16", "bfloat16", "float32", "int32", "bool")


def check_rows(program: ir.Program, structure: Structure) -> None:
    """Checks that every tile has the program's rows in its first dimension, and that no operation combines rows."""
    for store in _row_work(structure):
        if store.mask is not None:
            raise UnsupportedKernel(f"the store to {store.target.tensor} has a mask")
        for expr in (store.target, *subexpressions(store.value)):
            _check_tile(program, structure.rows, expr, store.target.tensor, PLAIN_DTYPES)
    for part in structure.parts:
        for product in (*part.leading, *part.trailing):
            factors = (*PLAIN_DTYPES, *EIGHTS) if structure.eights else PLAIN_DTYPES
            for expr in (product.store.target, *_operands(product)):
                _check_tile(program, structure.rows, expr, product.target, factors)
            if (columns := shape_of(product.store.target, program)[-1]) > WIDEST or columns % 16:
                raise UnsupportedKernel(
                    f"{product.target} has {columns} columns; expected a multiple of 16, at most {WIDEST}"
                )


def _row_work(structure: Structure) -> Iterator[ir.Store]:
    yield from structure.before
    for part in structure.parts:
        yield from part.middle
        yield from part.after
        yield from (product.promotion for product in part.trailing if product.promotion is not None)
    yield from structure.after


def _operands(product: Product) -> Iterator[ir.TileExpr]:
    for operand in (product.a, product.acc):
        if operand is not None:
            yield from subexpressions(operand)


def _check_tile(program: ir.Program, rows: int, expr: ir.TileExpr, name: str, dtypes: tuple[str, ...]) -> None:
    """Raises UnsupportedKernel unless an expression is one that consumers compute: rows split among warp groups, in one
    of these dtypes."""
    shape = shape_of(expr, program)
    if dtype_of(expr, program) not in dtypes and not isinstance(expr, ir.Literal):
        raise UnsupportedKernel(f"{name} computes in {dtype_of(expr, program)}; expected one of {', '.join(dtypes)}")
    if len(shape) > 2:
        raise UnsupportedKernel(f"{name} has a tile of {len(shape)} dimensions; expected rows and columns")
    if any(extent & (extent - 1) for extent in shape[1:]):
        raise UnsupportedKernel(f"{name} has a tile of shape {shape}; expected powers of two")
    if shape and shape[0] not in ((rows,) if len(shape) == 1 else (1, rows)):
        raise UnsupportedKernel(f"{name} has a tile of shape {shape}; expected {rows} rows")
    match expr:
        case ir.Reduce(dim=0):
            raise UnsupportedKernel(f"{name} reduces rows, which are split among warp groups")
        case ir.Reduce(op="prod"):
            raise UnsupportedKernel(f"{name} reduces with prod; expected sum, max or min")
        case ir.Gather() if not is_along_diagonals(program, expr):
            raise UnsupportedKernel(f"{name} is gathered element by element; expected reads of tiles, or of diagonals")
        case ir.Permute():
            raise UnsupportedKernel(f"{name} permutes a tile that is not the right operand of a product")
        case ir.Dot():
            raise UnsupportedKernel(f"{name} has a product outside the loop, or inside an expression")
        case ir.Access(index=index) if len(shape) == 2 and shape[1] == 1:
            if isinstance(tile_dims(index)[-1], ir.Slice):
                raise UnsupportedKernel(f"{name} has a tile of one column")
        case (
            ir.Access()
            | ir.Gather()
            | ir.Iota()
            | ir.Scalar()
            | ir.Literal()
            | ir.Elementwise()
            | ir.Cast()
            | ir.Reduce()
        ):
            pass


__all__ = ["check_rows"]
