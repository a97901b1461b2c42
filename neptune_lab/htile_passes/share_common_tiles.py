"""Computes once what several stores of one body compute, such as the repair term (common subexpressions)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import operation
from neptune_lab.htile.walk import (
    accesses,
    region,
    rewrite,
    rewrite_store,
    subexpressions,
    tile_dims,
    unchanged,
    with_body,
)
from neptune_lab.htile_passes.rewrite import fresh_name, tile_pass


@tile_pass(after="fold_dot_accumulate")
def share_common_tiles(program: ir.Program) -> ir.Program:
    """Before => after:

        s[i0*8:i0*8+8] = exp(a[...] - b[...]) * s[...] + t[...]
        o[i0*8:i0*8+8, 0:5] = exp(a[..., NewAxis] - b[..., NewAxis]) * o[...] + u[...]
        =>
        repair[0:8] = exp(a[...] - b[...])
        s[i0*8:i0*8+8] = repair[0:8] * s[...] + t[...]
        o[i0*8:i0*8+8, 0:5] = repair[0:8, NewAxis] * o[...] + u[...]

    The shared expression reads on-chip tiles only, and none of them is stored between the uses.  Expressions that
    differ only in `NewAxis` are the same.
    """
    sharer = _Sharer({t.name: t for t in program.tensors})
    kernels = tuple(sharer.kernel(k) for k in program.kernels)
    if not sharer.added:
        return program
    return replace(program, tensors=program.tensors + tuple(sharer.added), kernels=kernels)


def without_new_axes(expr: ir.TileExpr) -> tuple[ir.TileExpr, tuple[ir.Slice | ir.NewAxis, ...]] | None:
    """The expression without `NewAxis`, and the dimensions of its tiles; None if its tiles have them elsewhere."""
    dims = [dims for access in accesses(expr) if (dims := tile_dims(access.index))]
    patterns = {tuple(isinstance(dim, ir.Slice) for dim in of_tile) for of_tile in dims}
    if len(patterns) > 1 or any(isinstance(e, ir.Iota | ir.Gather) for e in subexpressions(expr)):
        return None
    stripped = rewrite(expr, lambda e: ir.Access(e.tensor, region(e)) if isinstance(e, ir.Access) else e)
    return stripped, dims[0] if dims else ()


class _Sharer:
    def __init__(self, tensors: dict[str, ir.Tensor]) -> None:
        self.tensors = tensors
        self.added: list[ir.Tensor] = []

    def kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        return with_body(kernel, self.body(kernel.body))

    def body(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        inner = tuple(self.loop(s) if isinstance(s, ir.For) else s for s in body)
        stmts = list(inner)
        while (shared := self.find(stmts)) is not None:
            at, last, key, pattern = shared
            stmts[at : last + 1] = self.share(stmts[at : last + 1], key, pattern)
        return body if unchanged(stmts, body) else tuple(stmts)

    def loop(self, loop: ir.For) -> ir.For:
        return with_body(loop, self.body(loop.body))

    def candidates(self, store: ir.Store) -> Iterator[tuple[ir.TileExpr, tuple[ir.Slice | ir.NewAxis, ...]]]:
        """The expressions of `store` that may be shared, larger ones first."""
        for expr in subexpressions(store.value):
            if not isinstance(expr, ir.Elementwise) or expr.dtype == "bool" or not _costly(expr):
                continue
            reads = list(accesses(expr))
            if not reads or any(self.tensors[a.tensor].space != "chip" for a in reads):
                continue
            stripped = without_new_axes(expr)
            if stripped is not None:
                yield stripped

    def find(self, stmts: list[ir.Stmt]) -> tuple[int, int, ir.TileExpr, tuple[ir.Slice | ir.NewAxis, ...]] | None:
        """First and last statement that can share an expression, the expression, and its dimensions."""
        known: dict[int, list[tuple[ir.TileExpr, tuple[ir.Slice | ir.NewAxis, ...]]]] = {}

        def candidates(m: int, store: ir.Store) -> list[tuple[ir.TileExpr, tuple[ir.Slice | ir.NewAxis, ...]]]:
            if m not in known:  # once per statement: long formulas have thousands
                known[m] = list(self.candidates(store))
            return known[m]

        def uses_in(m: int, store: ir.Store, key: ir.TileExpr) -> int:
            return sum(candidate == key for candidate, _ in candidates(m, store))

        for n, stmt in enumerate(stmts):
            if not isinstance(stmt, ir.Store):
                continue
            for key, pattern in candidates(n, stmt):
                inputs = {a.tensor for a in accesses(key)}
                uses, last = uses_in(n, stmt, key), n
                for m in range(n, len(stmts)):
                    later = stmts[m]
                    if not isinstance(later, ir.Store):
                        break
                    if m > n and (more := uses_in(m, later, key)):
                        uses, last = uses + more, m
                    if later.target.tensor in inputs:
                        break
                if uses > 1:
                    return n, last, key, pattern
        return None

    def share(
        self, stmts: list[ir.Stmt], key: ir.TileExpr, pattern: tuple[ir.Slice | ir.NewAxis, ...]
    ) -> list[ir.Stmt]:
        first = stmts[0]
        assert isinstance(first, ir.Store)
        assert isinstance(key, ir.Elementwise)
        slices = tuple(ir.Slice(ir.Int(0), s.extent, s.axis) for s in pattern if isinstance(s, ir.Slice))
        name = self.name(key)
        tensor = ir.Tensor(name, tuple(s.extent for s in slices), key.dtype, "chip")
        self.tensors[name] = tensor
        self.added.append(tensor)

        def visit(expr: ir.TileExpr) -> ir.TileExpr:
            stripped = without_new_axes(expr) if isinstance(expr, ir.Elementwise) else None
            if stripped is None or stripped[0] != key:
                return expr
            left = iter(slices)
            return ir.Access(name, tuple(next(left) if isinstance(dim, ir.Slice) else dim for dim in stripped[1]))

        shared = ir.Store(f"{first.node_id}/{name}", ir.Access(name, slices), key, first.origin)
        return [shared, *(rewrite_store(s, visit) if isinstance(s, ir.Store) else s for s in stmts)]

    def name(self, key: ir.Elementwise) -> str:
        """`repair` for an exponential, quotient or product, `x_finite` for a guard of x, otherwise `shared`."""
        match key:
            case ir.Elementwise("where", (ir.Elementwise("eq", _), _, ir.Access(tensor, _))):
                base = f"{tensor}_finite"
            case ir.Elementwise("exp" | "exp2" | "div" | "mul"):
                base = "repair"
            case _:
                base = "shared"
        return fresh_name(base, self.tensors, "_")


def _costly(expr: ir.TileExpr) -> bool:
    return any(isinstance(e, ir.Elementwise) and operation(e.op).costly for e in subexpressions(expr))
