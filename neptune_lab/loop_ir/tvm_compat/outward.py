"""Converts loop-scalar IR to TensorIR."""

# TVM's type annotations are narrower than what its functions accept.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import BufferRegion, BufferStore, For, IterVar, SeqStmt

from neptune_lab.loop_ir.nodes import (
    Block,
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Previous,
    Program,
    Stmt,
    Store,
    Var,
    loads,
)
from neptune_lab.loop_ir.tvm_compat.words import THREAD_BINDING, build


class _Out:
    """One conversion; holds the TVM buffer of each name."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers = {
            b.name: tirx.decl_buffer(list(b.shape), b.dtype, name=b.name, scope="" if b.scope == "global" else b.scope)
            for b in program.buffers
        }

    def expr(self, expr: Expr, env: dict[str, Any]) -> Any:
        match expr:
            case Const(value, dtype):
                return tirx.const(value, dtype)
            case Var(name):
                return env[name]
            case Load(buffer, indices):
                return tirx.BufferLoad(self.buffers[buffer], [self.expr(i, env) for i in indices])
            case Previous(buffer, (tag, *rest), initial):
                t = self.expr(tag, env)
                read = tirx.BufferLoad(
                    self.buffers[buffer], [tirx.Sub(t, tirx.const(1, "int32"))] + [self.expr(i, env) for i in rest]
                )
                return tirx.if_then_else(tirx.GT(t, tirx.const(0, "int32")), read, self.expr(initial, env))
            case Op("guard", (a, point, replacement)):
                x = self.expr(a, env)
                return tirx.Select(tirx.EQ(x, self.expr(point, env)), self.expr(replacement, env), x)
            case Op(name, args):
                return build(name, [self.expr(a, env) for a in args])
            case Cast(dtype, arg):
                return tirx.Cast(dtype, self.expr(arg, env))
        raise AssertionError(expr)

    def store(self, store: Store, env: dict[str, Any]) -> Any:
        return BufferStore(
            self.buffers[store.buffer], self.expr(store.value, env), [self.expr(i, env) for i in store.indices]
        )

    def regions(self, indices: list[tuple[str, tuple[Expr, ...]]], env: dict[str, Any]) -> list[Any]:
        return [
            BufferRegion(self.buffers[name], [Range.from_min_extent(self.expr(i, env), 1) for i in index])
            for name, index in dict.fromkeys(indices)
        ]

    def block(self, block: Block, env: dict[str, Any]) -> Any:
        inner = {it.name: tirx.Var(f"v_{it.name}", "int32") for it in block.iters}
        iters = [
            IterVar(
                Range.from_min_extent(0, it.extent),
                inner[it.name],
                IterVar.CommReduce if it.kind == "reduce" else IterVar.DataPar,
                "",
            )
            for it in block.iters
        ]
        # A scan block's read of its own previous tag is not declared: TVM would treat it as a loop-carried dependence
        # that forbids every move, but the tag is an index.
        reads = [
            (r.buffer, r.indices) for r in loads(block.body.value) if isinstance(r, Load) and r.buffer != block.writes
        ]
        body = SBlock(
            iters,
            self.regions(reads, inner),
            self.regions([(block.body.buffer, block.body.indices)], inner),
            block.name,
            self.store(block.body, inner),
            None if block.init is None else self.store(block.init, inner),
        )
        predicate = tirx.const(True, "bool")
        for n, p in enumerate(block.predicates):
            predicate = self.expr(p, env) if n == 0 else tirx.And(predicate, self.expr(p, env))
        return SBlockRealize([self.expr(it.binding, env) for it in block.iters], predicate, body)

    def stmt(self, stmt: Stmt, env: dict[str, Any]) -> Any:
        if isinstance(stmt, Block):
            return self.block(stmt, env)
        var = tirx.Var(stmt.var, "int32")
        body = self.body(stmt.body, {**env, stmt.var: var})
        kind, thread = tirx.ForKind.SERIAL, None
        if stmt.kind == "parallel":
            kind = tirx.ForKind.PARALLEL
        elif stmt.kind != "serial":
            kind = tirx.ForKind.THREAD_BINDING
            thread = IterVar(None, tirx.Var(stmt.kind, "int32"), THREAD_BINDING, stmt.kind)
        return For(
            var, tirx.const(0, "int32"), tirx.const(stmt.extent, "int32"), kind, body, thread, dict(stmt.annotations)
        )

    def body(self, body: tuple[Stmt, ...], env: dict[str, Any]) -> Any:
        stmts = [self.stmt(s, env) for s in body]
        return stmts[0] if len(stmts) == 1 else SeqStmt(stmts)

    def function(self, *, expose: bool) -> Any:
        """`expose`: every buffer is a parameter, so that none is compacted and all values are returned."""
        inside = () if expose else tuple(b.name for b in self.program.buffers if b.name not in self.program.params)
        params = [*self.program.params, *(b.name for b in self.program.buffers if b.name not in self.program.params)]
        if not expose:
            params = list(self.program.params)
        root = SBlock([], [], [], "root", self.body(self.program.body, {}), None, [self.buffers[n] for n in inside])
        func = tirx.PrimFunc([self.buffers[n] for n in params], SBlockRealize([], tirx.const(True, "bool"), root))
        return func.with_attr({"tirx.noalias": True, "global_symbol": "main"})


def to_tvm(program: Program, *, expose: bool = False) -> Any:
    """The program as a TensorIR function; with `expose`, every buffer is a parameter (inputs and outputs first)."""
    return _Out(program).function(expose=expose)


def tvmscript(program: Program) -> str:
    """The program in TVMScript, as TVM itself prints it."""
    return to_tvm(program).script()
