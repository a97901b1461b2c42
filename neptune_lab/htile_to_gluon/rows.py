"""Splits the rows of a program among its consumers: every slice of rows becomes one consumer's part of it."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from neptune_lab.htile import nodes as ir

# Not an identifier, so no HTile variable has this name.
CONSUMER = "%consumer"
ROWS = 64  # rows of a warp group's product, and of a consumer unless one computes all


def part_of_store(store: ir.Store, rows: int, each: int = ROWS) -> ir.Store:
    """`store` on the rows of consumer number `CONSUMER`.

    Before => after, for 128 rows per program:

        m[i0*128 : i0*128+128] = reduce(max, s[i0*128 : i0*128+128, ...], dim=1)
        =>
        m[i0*128 + 64*c : i0*128 + 64*c + 64] = reduce(max, s[i0*128 + 64*c : i0*128 + 64*c + 64, ...], dim=1)

    Rows are the first dimension of every tile except right operands of products (match.py checks this).

    Args:
        rows: of a program.
        each: rows of a consumer.
    """
    assert store.mask is None
    return replace(store, target=part_of_access(store.target, rows, each), value=part(store.value, rows, each))


def part(expr: ir.TileExpr, rows: int, each: int = ROWS) -> ir.TileExpr:
    """`expr` on the rows of one consumer."""
    match expr:
        case ir.Access():
            return part_of_access(expr, rows, each)
        case ir.Iota(index=index):
            return ir.Iota(_first(index, rows, each))  # pyright: ignore[reportArgumentType]
        case ir.Scalar() | ir.Literal():
            return expr
        case ir.Gather(indices=indices):
            return replace(expr, indices=tuple(part(index, rows, each) for index in indices))
        case ir.Elementwise(args=args):
            return replace(expr, args=tuple(part(arg, rows, each) for arg in args))
        case ir.Cast(arg=arg) | ir.Permute(arg=arg) | ir.Grouped(arg=arg) | ir.Reduce(arg=arg):
            return replace(expr, arg=part(arg, rows, each))
        case ir.Dot(a=a, b=b, acc=acc):
            return ir.Dot(part(a, rows, each), b, None if acc is None else part(acc, rows, each))
        case _:
            assert_never(expr)


def part_of_access(access: ir.Access, rows: int, each: int = ROWS) -> ir.Access:
    """`access` on the rows of one consumer."""
    return replace(access, index=_first(access.index, rows, each))


def _first(index: tuple[ir.Index, ...], rows: int, each: int) -> tuple[ir.Index, ...]:
    for n, entry in enumerate(index):
        match entry:
            case ir.NewAxis():
                return index
            case ir.Slice(start=start, extent=extent, axis=axis):
                if extent != rows:
                    return index
                moved: ir.IndexExpr = start
                if rows > each:
                    moved = ir.Arith("+", start, ir.Arith("*", ir.Name(CONSUMER), ir.Int(each)))
                return (*index[:n], ir.Slice(moved, each, axis), *index[n + 1 :])
            case _:
                pass
    return index
