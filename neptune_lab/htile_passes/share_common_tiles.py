"""Computes once what several stores of one body compute, such as the repair term (common subexpressions)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neptune_lab.htile.nodes import (
    Access,
    Elementwise,
    For,
    Gather,
    Int,
    Iota,
    Kernel,
    NewAxis,
    Program,
    Slice,
    Stmt,
    Store,
    Tensor,
    TileExpr,
)
from neptune_lab.htile.shapes import operation
from neptune_lab.htile.walk import accesses, region, rewrite, rewrite_store, subexpressions, unchanged, with_body
from neptune_lab.htile_passes.rewrite import tile_pass


@tile_pass(after="fold_dot_accumulate")
def share_common_tiles(program: Program) -> Program:
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


def bare(expr: TileExpr) -> tuple[TileExpr, tuple[Slice | NewAxis, ...]] | None:
    """The expression without its `NewAxis`es, and where they stood; None where its reads disagree about that."""
    patterns = {
        tuple("slice" if isinstance(i, Slice) else "new" for i in a.index if isinstance(i, Slice | NewAxis))
        for a in accesses(expr)
    } - {()}
    if len(patterns) > 1 or any(isinstance(e, Iota | Gather) for e in subexpressions(expr)):
        return None
    shape = next(
        (tuple(i for i in a.index if isinstance(i, Slice | NewAxis)) for a in accesses(expr) if _rank(a)),
        (),
    )
    return _strip(expr), shape


def _rank(access: Access) -> int:
    return sum(isinstance(i, Slice | NewAxis) for i in access.index)


def _strip(expr: TileExpr) -> TileExpr:
    def visit(e: TileExpr) -> TileExpr:
        if isinstance(e, Access):
            return Access(e.tensor, region(e))
        return e

    return rewrite(expr, visit)


class _State:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.added: list[Tensor] = []

    def kernel(self, kernel: Kernel) -> Kernel:
        return with_body(kernel, self.body(kernel.body))

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        inner = tuple(self.loop(s) if isinstance(s, For) else s for s in body)
        stmts = list(inner)
        while (found := self.find(stmts)) is not None:
            at, last, key, pattern = found
            stmts[at : last + 1] = self.share(stmts[at : last + 1], key, pattern)
        return body if unchanged(stmts, body) else tuple(stmts)

    def loop(self, loop: For) -> For:
        return with_body(loop, self.body(loop.body))

    def candidates(self, store: Store) -> Iterator[tuple[TileExpr, tuple[Slice | NewAxis, ...]]]:
        """Larger expressions first."""
        for expr in subexpressions(store.value):
            if not isinstance(expr, Elementwise) or expr.dtype == "bool" or not _costly(expr):
                continue
            reads = list(accesses(expr))
            if not reads or any(self.tensors[a.tensor].space != "chip" for a in reads):
                continue
            found = bare(expr)
            if found is not None:
                yield found

    def find(self, stmts: list[Stmt]) -> tuple[int, int, TileExpr, tuple[Slice | NewAxis, ...]] | None:
        """First and last statement that can share an expression, the expression, and the pattern of its axes."""
        for n, stmt in enumerate(stmts):
            if not isinstance(stmt, Store):
                continue
            for key, pattern in self.candidates(stmt):
                inputs = {a.tensor for a in accesses(key)}
                uses, last = self.uses(stmt, key), n
                for m in range(n, len(stmts)):
                    later = stmts[m]
                    if not isinstance(later, Store):
                        break
                    if m > n and (more := self.uses(later, key)):
                        uses, last = uses + more, m
                    if later.target.tensor in inputs:
                        break
                if uses > 1:
                    return n, last, key, pattern
        return None

    def uses(self, store: Store, key: TileExpr) -> int:
        return sum(found == key for found, _ in self.candidates(store))

    def share(self, stmts: list[Stmt], key: TileExpr, pattern: tuple[Slice | NewAxis, ...]) -> list[Stmt]:
        first = stmts[0]
        assert isinstance(first, Store)
        assert isinstance(key, Elementwise)
        slices = tuple(Slice(Int(0), s.extent, s.axis) for s in pattern if isinstance(s, Slice))
        name = self.name(key)
        tensor = Tensor(name, tuple(s.extent for s in slices), key.dtype, "chip")
        self.tensors[name] = tensor
        self.added.append(tensor)

        def visit(expr: TileExpr) -> TileExpr:
            found = bare(expr) if isinstance(expr, Elementwise) else None
            if found is None or found[0] != key:
                return expr
            left = iter(slices)
            return Access(name, tuple(next(left) if isinstance(i, Slice) else i for i in found[1]))

        shared = Store(f"{first.node_id}/{name}", Access(name, slices), key, first.origin)
        return [shared, *(rewrite_store(s, visit) if isinstance(s, Store) else s for s in stmts)]

    def name(self, key: Elementwise) -> str:
        """`repair` for an exponential or quotient, `x_finite` for a guard of x, `shared` for the rest."""
        match key:
            case Elementwise("where", (Elementwise("eq", _), _, Access(tensor, _))):
                base = f"{tensor}_finite"
            case Elementwise("exp" | "exp2" | "div" | "mul"):
                base = "repair"
            case _:
                base = "shared"
        name, n = base, 2
        while name in self.tensors:
            name, n = f"{base}_{n}", n + 1
        return name


def _costly(expr: TileExpr) -> bool:
    return any(isinstance(e, Elementwise) and operation(e.op).costly for e in subexpressions(expr))
