"""Loops whose bounds are values that an earlier kernel stored: producer and consumers load them, once per tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Interval, interval

# By variable: the element that it holds, and the end of the loop that it bounds.
DataBounds = Mapping[str, tuple[ir.Access, ir.IndexExpr]]


def with_variables(kernel: ir.Kernel) -> tuple[ir.Kernel, DataBounds]:
    """Before => after, with variables f and l for the two elements:

        for j0 in range(a, b) within first[i0], last[i0]:
        =>
        for j0 in range(max(a, f), min(b, l)):

    Formal statement: both visit the iterations from a on that are below b, not before first[i0], and before last[i0].

    The last part of a loop is left without such bounds if it is an edge, which has few tiles: so its last tile is
    certain to exist, where the order of tiles begins.  Iterations outside of the bounds change nothing that is read
    afterwards (`skip_tiles_by_data`), so visiting more of them is legal.
    """
    bounds: dict[str, tuple[ir.Access, ir.IndexExpr]] = {}
    body: list[ir.Stmt] = []
    last_loop = next((stmt for stmt in reversed(kernel.body) if isinstance(stmt, ir.For)), None)
    for stmt in kernel.body:
        if isinstance(stmt, ir.For) and stmt.within is not None and stmt is last_loop and "edge" in stmt.part:
            stmt = replace(stmt, within=None)
        elif isinstance(stmt, ir.For) and stmt.within is not None:
            # (no identifiers, so no variables of the kernel)
            first, last = (_variable(bounds, access, stmt.stop) for access in stmt.within)
            start, stop = ir.Arith("max", stmt.start, first), ir.Arith("min", stmt.stop, last)
            stmt = replace(stmt, start=start, stop=stop, within=None)
        body.append(stmt)
    same = all(a is b for a, b in zip(body, kernel.body, strict=True))
    return (kernel if same else replace(kernel, body=tuple(body))), bounds


def _variable(bounds: dict[str, tuple[ir.Access, ir.IndexExpr]], access: ir.Access, end: ir.IndexExpr) -> ir.Name:
    for name, (held, of) in bounds.items():
        if (held, of) == (access, end):
            return ir.Name(name)
    name = f"%{access.tensor}{len(bounds)}"
    bounds[name] = access, end
    return ir.Name(name)


def bind(envs: Sequence[dict[str, Interval]], bounds: DataBounds) -> None:
    """Adds the intervals of the variables: of the numbers of a loop's tiles, what is outside makes no difference."""
    for env in envs:
        for name, (_, end) in bounds.items():
            env[name] = Interval(0, max(0, interval(end, env).hi))


__all__ = ["DataBounds", "bind", "with_variables"]
