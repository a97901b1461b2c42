"""Converts positions to floats before they are combined: one conversion per row and column, none per element."""

from __future__ import annotations

from neptune_lab.errors import TileError
from neptune_lab.htile.bounds import Env, grid_env, interval, loop_interval
from neptune_lab.htile.nodes import Cast, Elementwise, Iota, Literal, Program, Scalar, Slice, Stmt, Store, TileExpr
from neptune_lab.htile.walk import rewrite_store, unchanged, with_body
from neptune_lab.htile_passes.rewrite import map_kernels, tile_pass

# Every integer up to this magnitude is exact in float32.
EXACT = 2**24


@tile_pass(after="partition_masked_loops")
def convert_positions_as_vectors(program: Program) -> Program:
    """Before => after:

        float32(iota[j0*64:j0*64+64] - iota[i0*64:i0*64+64])
        =>
        float32(iota[j0*64:j0*64+64]) - float32(iota[i0*64:i0*64+64])

    An ALiBi bias is such a term.  The two sides are equal if all numbers involved are below 2**24 in magnitude,
    which is proven from the bounds of the positions; otherwise the term is unchanged.
    """
    return map_kernels(program, lambda kernel: with_body(kernel, _body(kernel.body, grid_env(kernel))))


def _body(body: tuple[Stmt, ...], env: Env) -> tuple[Stmt, ...]:
    def visit(expr: TileExpr) -> TileExpr:
        match expr:
            case Cast(arg=Elementwise(op="add" | "sub"), dtype="float32") if _magnitude(expr.arg, env) < EXACT:
                return _converted(expr.arg)
            case _:
                return expr

    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Store):
            out.append(rewrite_store(stmt, visit))
        else:
            out.append(with_body(stmt, _body(stmt.body, {**env, stmt.var: loop_interval(stmt, env)})))
    return body if unchanged(out, body) else tuple(out)


def _converted(expr: TileExpr) -> TileExpr:
    if isinstance(expr, Elementwise):
        return Elementwise(expr.op, tuple(_converted(arg) for arg in expr.args), "float32")
    return Literal(float(expr.value), "float32") if isinstance(expr, Literal) else Cast(expr, "float32")


def _magnitude(expr: TileExpr, env: Env) -> float:
    """A bound on |expr| and on all its parts; inf if there is none, or if `expr` is not a sum of positions."""
    try:
        match expr:
            case Elementwise(op="add" | "sub", args=(a, b)):
                return _magnitude(a, env) + _magnitude(b, env)
            case Iota(index=index):
                part = next(p for p in index if isinstance(p, Slice))
                at = interval(part.start, env)
                return max(abs(at.lo), abs(at.hi + part.extent - 1))
            case Scalar(value=value):
                at = interval(value, env)
                return max(abs(at.lo), abs(at.hi))
            case Literal(value=value):
                return abs(float(value))
            case _:
                return float("inf")
    except TileError:
        return float("inf")
