"""Replaces an index variable by an expression."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import rewrite_store, simplify


def substitute_index(index: ir.IndexExpr, var: str, value: ir.IndexExpr) -> ir.IndexExpr:
    """`index` with the index variable `var` replaced by `value`."""
    match index:
        case ir.Name(name=name):
            return value if name == var else index
        case ir.Arith(op=op, a=a, b=b):
            return simplify(ir.Arith(op, substitute_index(a, var, value), substitute_index(b, var, value)))
        case ir.Int():
            return index


def substitute(body: tuple[ir.Stmt, ...], var: str, value: ir.IndexExpr) -> tuple[ir.Stmt, ...]:
    """`body` with the index variable `var` replaced by `value` in every index, loop bound and expression."""

    def at(index: ir.IndexExpr) -> ir.IndexExpr:
        return substitute_index(index, var, value)

    def place(index: ir.Index) -> ir.Index:
        match index:
            case ir.Slice(start=start):
                return replace(index, start=at(start))
            case ir.NewAxis():
                return index
            case _:
                return at(index)

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        match expr:
            case ir.Access():
                return _placed(expr)
            case ir.Iota(index=index):
                return ir.Iota(tuple(place(i) for i in index))  # pyright: ignore[reportArgumentType]
            case ir.Scalar(value=scalar):
                return ir.Scalar(at(scalar))
            case _:
                return expr

    def _placed(access: ir.Access) -> ir.Access:
        return ir.Access(access.tensor, tuple(place(i) for i in access.index))

    out: list[ir.Stmt] = []
    for stmt in body:
        if isinstance(stmt, ir.Store):
            out.append(replace(rewrite_store(stmt, visit), target=_placed(stmt.target)))
        else:
            inner = substitute(stmt.body, var, value)
            elements = {
                name: (_placed(two[0]), _placed(two[1]))
                for name, two in (("within", stmt.within), ("without", stmt.without), ("listed", stmt.listed))
                if two is not None
            }
            out.append(replace(stmt, start=at(stmt.start), stop=at(stmt.stop), body=inner, **elements))
    return tuple(out)
