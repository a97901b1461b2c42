"""An index variable replaced by an expression, all through a body."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile.nodes import (
    Access,
    Arith,
    Index,
    IndexExpr,
    Int,
    Iota,
    Name,
    NewAxis,
    Scalar,
    Slice,
    Stmt,
    Store,
    TileExpr,
)
from neptune_lab.htile.walk import rewrite_store, simplify


def substitute_index(index: IndexExpr, var: str, value: IndexExpr) -> IndexExpr:
    """An index expression with the index variable `var` replaced by `value`."""
    match index:
        case Name(name=name):
            return value if name == var else index
        case Arith(op=op, a=a, b=b):
            return simplify(Arith(op, substitute_index(a, var, value), substitute_index(b, var, value)))
        case Int():
            return index


def substitute(body: tuple[Stmt, ...], var: str, value: IndexExpr) -> tuple[Stmt, ...]:
    """`body` with the index variable `var` replaced by `value`."""

    def at(index: IndexExpr) -> IndexExpr:
        return substitute_index(index, var, value)

    def place(index: Index) -> Index:
        match index:
            case Slice(start=start):
                return replace(index, start=at(start))
            case NewAxis():
                return index
            case _:
                return at(index)

    def visit(expr: TileExpr) -> TileExpr:
        match expr:
            case Access(tensor=name, index=index):
                return Access(name, tuple(place(i) for i in index))
            case Iota(index=index):
                return Iota(tuple(place(i) for i in index))  # pyright: ignore[reportArgumentType]
            case Scalar(value=scalar):
                return Scalar(at(scalar))
            case _:
                return expr

    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Store):
            target = visit(stmt.target)
            assert isinstance(target, Access)
            out.append(replace(rewrite_store(stmt, visit), target=target))
        else:
            inner = substitute(stmt.body, var, value)
            out.append(replace(stmt, start=at(stmt.start), stop=at(stmt.stop), body=inner))
    return tuple(out)
