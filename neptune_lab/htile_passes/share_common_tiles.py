"""Computes once what several stores of one body compute, such as the repair term (common subexpressions)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    differ only in `NewAxis` are the same.  Parts of a loop, which have the same statements, share by the same names.
    """
    return _shared(program, _costly)


@tile_pass(before="divide_by_multiplying")
def share_common_quotients(program: ir.Program) -> ir.Program:
    """Before => after, for what `exponentials_to_base_two` made:

        p[...] = exp2(x[...] * max(1.6e7 / max(abs(m[..., NewAxis]), 1.6e7), 5e-32)
                      - m[..., NewAxis] * max(1.6e7 / max(abs(m[..., NewAxis]), 1.6e7), 5e-32))
        =>
        factor[0:8] = max(1.6e7 / max(abs(m[...]), 1.6e7), 5e-32)
        p[...] = exp2(x[...] * factor[0:8, NewAxis] - m[..., NewAxis] * factor[0:8, NewAxis])

    A compiler computes it once in either form, after it has read all of it.
    """
    return _shared(program, _divides)


def _shared(program: ir.Program, worth: Callable[[ir.TileExpr], bool]) -> ir.Program:
    """The program in which expressions that are `worth` it are shared."""
    sharer = _Sharer({t.name: t for t in program.tensors}, worth)
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


# The tiles of shared expressions, by the expression and its dimensions.
_Named = dict[tuple[ir.TileExpr, tuple[ir.Slice, ...]], str]


class _Sharer:
    def __init__(self, tensors: dict[str, ir.Tensor], worth: Callable[[ir.TileExpr], bool]) -> None:
        self.tensors, self.worth = tensors, worth
        self.added: list[ir.Tensor] = []
        # What parts of one loop share; None outside of these.
        self.named: _Named | None = None

    def kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        return with_body(kernel, self.body(kernel.body))

    def body(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        stmts: list[ir.Stmt] = []
        named: _Named = {}
        for stmt in body:
            stmts.append(self.loop(stmt, named if stmt.part else None) if isinstance(stmt, ir.For) else stmt)
        while (shared := self.find(stmts)) is not None:
            at, last, key, pattern = shared
            stmts[at : last + 1] = self.share(stmts[at : last + 1], key, pattern)
        return body if unchanged(stmts, body) else tuple(stmts)

    def loop(self, loop: ir.For, named: _Named | None) -> ir.For:
        around, self.named = self.named, named
        body = self.body(loop.body)
        self.named = around
        return with_body(loop, body)

    def candidates(self, store: ir.Store) -> Iterator[tuple[ir.TileExpr, tuple[ir.Slice | ir.NewAxis, ...]]]:
        """The expressions of `store` that may be shared, larger ones first."""
        for expr in subexpressions(store.value):
            if not isinstance(expr, ir.Elementwise) or expr.dtype == "bool" or not self.worth(expr):
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
        name = None if self.named is None else self.named.get((key, slices))
        if name is None:
            name = self.name(key)
            if self.named is not None:
                self.named[key, slices] = name
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
        """`repair` for an exponential, quotient or product, `factor` for a quotient with a bound, `x_finite` for a
        guard of x, otherwise `shared`."""
        match key:
            case ir.Elementwise("where", (ir.Elementwise("eq", _), _, ir.Access(tensor, _))):
                base = f"{tensor}_finite"
            case ir.Elementwise("exp" | "exp2" | "div" | "mul"):
                base = "repair"
            case ir.Elementwise("max", (ir.Elementwise("div"), ir.Literal())):
                base = "factor"
            case _:
                base = "shared"
        return fresh_name(base, self.tensors, "_")


def _costly(expr: ir.TileExpr) -> bool:
    return any(isinstance(e, ir.Elementwise) and operation(e.op).costly for e in subexpressions(expr))


def _divides(expr: ir.TileExpr) -> bool:
    return any(isinstance(e, ir.Elementwise) and e.op == "div" for e in subexpressions(expr))
