"""Computes once what several stores of one body compute, such as the repair term (common subexpressions)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import operation
from neptune_lab.htile.walk import accesses, region, rewrite, rewrite_store, subexpressions, unchanged, with_body
from neptune_lab.htile_passes.rewrite import tile_pass


@tile_pass(after="fold_dot_accumulate")
def share_common_tiles(program: ir.Program) -> ir.Program:
    """Before => after:

        s[i0*8:i0*8+8] = exp(a[...] - b[...]) * s[...] + t[...]
        o[i0*8:i0*8+8, 0:5] = exp(a[..., NewAxis] - b[..., NewAxis]) * o[...] + u[...]
        =>
        repair[0:8] = exp(a[...] - b[...])
        s[i0*8:i0*8+8] = repair[0:8] * s[...] + t[...]
        o[i0*8:i0*8+8, 0:5] = repair[0:8, NewAxis] * o[...] + u[...]

    Only tiles on chip are read, and none of them is written between the uses.  Tiles that differ only in
    `NewAxis` are the same.
    """
    state = _State({t.name: t for t in program.tensors})
    kernels = tuple(state.kernel(k) for k in program.kernels)
    if not state.added:
        return program
    return replace(program, tensors=program.tensors + tuple(state.added), kernels=kernels)


def bare(expr: ir.TileExpr) -> tuple[ir.TileExpr, tuple[ir.Slice | ir.NewAxis, ...]] | None:
    """The expression without its `NewAxis`es, and where they stood; None where its reads disagree about that."""
    patterns = {
        tuple("slice" if isinstance(i, ir.Slice) else "new" for i in a.index if isinstance(i, ir.Slice | ir.NewAxis))
        for a in accesses(expr)
    } - {()}
    if len(patterns) > 1 or any(isinstance(e, ir.Iota | ir.Gather) for e in subexpressions(expr)):
        return None
    shape = next(
        (tuple(i for i in a.index if isinstance(i, ir.Slice | ir.NewAxis)) for a in accesses(expr) if _rank(a)),
        (),
    )
    return _strip(expr), shape


def _rank(access: ir.Access) -> int:
    return sum(isinstance(i, ir.Slice | ir.NewAxis) for i in access.index)


def _strip(expr: ir.TileExpr) -> ir.TileExpr:
    def visit(e: ir.TileExpr) -> ir.TileExpr:
        if isinstance(e, ir.Access):
            return ir.Access(e.tensor, region(e))
        return e

    return rewrite(expr, visit)


class _State:
    def __init__(self, tensors: dict[str, ir.Tensor]) -> None:
        self.tensors = tensors
        self.added: list[ir.Tensor] = []

    def kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        return with_body(kernel, self.body(kernel.body))

    def body(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        inner = tuple(self.loop(s) if isinstance(s, ir.For) else s for s in body)
        stmts = list(inner)
        while (found := self.find(stmts)) is not None:
            at, last, key, pattern = found
            stmts[at : last + 1] = self.share(stmts[at : last + 1], key, pattern)
        return body if unchanged(stmts, body) else tuple(stmts)

    def loop(self, loop: ir.For) -> ir.For:
        return with_body(loop, self.body(loop.body))

    def candidates(self, store: ir.Store) -> Iterator[tuple[ir.TileExpr, tuple[ir.Slice | ir.NewAxis, ...]]]:
        """Larger expressions first."""
        for expr in subexpressions(store.value):
            if not isinstance(expr, ir.Elementwise) or expr.dtype == "bool" or not _costly(expr):
                continue
            reads = list(accesses(expr))
            if not reads or any(self.tensors[a.tensor].space != "chip" for a in reads):
                continue
            found = bare(expr)
            if found is not None:
                yield found

    def find(self, stmts: list[ir.Stmt]) -> tuple[int, int, ir.TileExpr, tuple[ir.Slice | ir.NewAxis, ...]] | None:
        """First and last statement that can share an expression, the expression, and the pattern of its axes."""
        for n, stmt in enumerate(stmts):
            if not isinstance(stmt, ir.Store):
                continue
            for key, pattern in self.candidates(stmt):
                inputs = {a.tensor for a in accesses(key)}
                uses, last = self.uses(stmt, key), n
                for m in range(n, len(stmts)):
                    later = stmts[m]
                    if not isinstance(later, ir.Store):
                        break
                    if m > n and (more := self.uses(later, key)):
                        uses, last = uses + more, m
                    if later.target.tensor in inputs:
                        break
                if uses > 1:
                    return n, last, key, pattern
        return None

    def uses(self, store: ir.Store, key: ir.TileExpr) -> int:
        return sum(found == key for found, _ in self.candidates(store))

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
            found = bare(expr) if isinstance(expr, ir.Elementwise) else None
            if found is None or found[0] != key:
                return expr
            left = iter(slices)
            return ir.Access(name, tuple(next(left) if isinstance(i, ir.Slice) else i for i in found[1]))

        shared = ir.Store(f"{first.node_id}/{name}", ir.Access(name, slices), key, first.origin)
        return [shared, *(rewrite_store(s, visit) if isinstance(s, ir.Store) else s for s in stmts)]

    def name(self, key: ir.Elementwise) -> str:
        """`repair` for an exponential or quotient, `x_finite` for a guard of x, `shared` for the rest."""
        match key:
            case ir.Elementwise("where", (ir.Elementwise("eq", _), _, ir.Access(tensor, _))):
                base = f"{tensor}_finite"
            case ir.Elementwise("exp" | "exp2" | "div" | "mul"):
                base = "repair"
            case _:
                base = "shared"
        name, n = base, 2
        while name in self.tensors:
            name, n = f"{base}_{n}", n + 1
        return name


def _costly(expr: ir.TileExpr) -> bool:
    return any(isinstance(e, ir.Elementwise) and operation(e.op).costly for e in subexpressions(expr))
