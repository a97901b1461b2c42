"""The rows of a program shared out among its consumers: every row slice becomes one consumer's part of it."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from neptune_lab.htile.nodes import (
    Access,
    Arith,
    Cast,
    Dot,
    Elementwise,
    Gather,
    Index,
    IndexExpr,
    Int,
    Iota,
    Literal,
    Name,
    NewAxis,
    Permute,
    Reduce,
    Scalar,
    Slice,
    Store,
    TileExpr,
)

# No HTile variable can be called so.
CONSUMER = "%consumer"
ROWS = 64  # of a consumer: what one warp group's product has


def part_of_store(store: Store, rows: int) -> Store:
    """`store` on the rows of consumer number `CONSUMER`.

    Before => after, for 128 rows per program:

        m[i0*128 : i0*128+128] = reduce(max, s[i0*128 : i0*128+128, ...], dim=1)
        =>
        m[i0*128 + 64*c : i0*128 + 64*c + 64] = reduce(max, s[i0*128 + 64*c : i0*128 + 64*c + 64, ...], dim=1)

    Rows are the first dimension of every tile but the right operands of products (match.py sees to it).
    """
    assert store.mask is None
    return replace(store, target=part_of_access(store.target, rows), value=part(store.value, rows))


def part(expr: TileExpr, rows: int) -> TileExpr:
    """`expr` on the rows of one consumer."""
    match expr:
        case Access():
            return part_of_access(expr, rows)
        case Iota(index=index):
            return Iota(_first(index, rows))  # pyright: ignore[reportArgumentType]
        case Scalar() | Literal():
            return expr
        case Gather(indices=indices):
            return replace(expr, indices=tuple(part(index, rows) for index in indices))
        case Elementwise(args=args):
            return replace(expr, args=tuple(part(arg, rows) for arg in args))
        case Cast(arg=arg) | Permute(arg=arg) | Reduce(arg=arg):
            return replace(expr, arg=part(arg, rows))
        case Dot(a=a, b=b, acc=acc):
            return Dot(part(a, rows), b, None if acc is None else part(acc, rows))
        case _:
            assert_never(expr)


def part_of_access(access: Access, rows: int) -> Access:
    """`access` on the rows of one consumer."""
    return replace(access, index=_first(access.index, rows))


def _first(index: tuple[Index, ...], rows: int) -> tuple[Index, ...]:
    for n, entry in enumerate(index):
        match entry:
            case NewAxis():
                return index
            case Slice(start=start, extent=extent, axis=axis):
                if extent != rows:
                    return index
                moved: IndexExpr = start
                if rows > ROWS:
                    moved = Arith("+", start, Arith("*", Name(CONSUMER), Int(ROWS)))
                return (*index[:n], Slice(moved, ROWS, axis), *index[n + 1 :])
            case _:
                pass
    return index
