"""Converts loop-scalar IR to TensorIR."""

# TVM's type annotations are narrower than what its functions accept.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import BufferRegion, BufferStore, For, IterVar, SeqStmt

from neptune_lab.loop_ir.nodes import Block, Buffer, Cast, Const, Expr, Load, Op, Previous, Program, Stmt, Store, Var
from neptune_lab.loop_ir.tvm_compat.words import THREAD_BINDING, build, build_as_written
from neptune_lab.loop_ir.walks import loads

# Name, extent and kind of an iteration variable.
_Axis: TypeAlias = tuple[str, int, str]


# TVM's nodes never change, so functions can share buffers and blocks. A step of a schedule changes few of them.
@lru_cache(maxsize=4096)
def _buffer(b: Buffer) -> Any:
    scope = "" if b.scope == "global" else b.scope
    return tirx.decl_buffer(list(b.shape), b.dtype, name=b.name, scope=scope)


@lru_cache(maxsize=2048)
def _block(
    name: str,
    axes: tuple[_Axis, ...],
    body: Store,
    init: Store | None,
    buffers: tuple[tuple[Buffer, Any], ...],
    native: bool,
) -> Any:
    """A block without its bindings and predicates; `buffers`: those that it accesses, with TVM's.

    TVM's are in the key, since a buffer may be converted again: by another thread, or after it has left its cache.
    """
    return _Out(dict(buffers), native).block(name, axes, body, init)


def _accessed(block: Block) -> dict[str, None]:
    """Names of the buffers that a block accesses, in order."""
    names: dict[str, None] = {}
    for store in (block.body, block.init):
        if store is not None:
            names[store.buffer] = None
            names |= dict.fromkeys(r.buffer for e in (*store.indices, store.value) for r in loads(e))
    return names


class _Out:
    """One conversion, of a program with these buffers; holds the TVM buffer of each name.

    Args:
        native: to run it, so that floats are computed as written.
    """

    def __init__(self, buffers: Mapping[Buffer, Any], native: bool) -> None:
        self.native = native
        self.build = build_as_written if native else build
        self.known = {b.name: b for b in buffers}
        self.buffers = {b.name: converted for b, converted in buffers.items()}

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
                return tirx.Select(self.build("eq", [x, self.expr(point, env)]), self.expr(replacement, env), x)
            case Op(name, args):
                return self.build(name, [self.expr(a, env) for a in args])
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

    def block(self, name: str, axes: tuple[_Axis, ...], body: Store, init: Store | None) -> Any:
        inner = {axis: tirx.Var(f"v_{axis}", "int32") for axis, _, _ in axes}
        iters = [
            IterVar(
                Range.from_min_extent(0, extent),
                inner[axis],
                IterVar.CommReduce if kind == "reduce" else IterVar.DataPar,
                "",
            )
            for axis, extent, kind in axes
        ]
        # A scan block's read of its own previous tag is not declared: TVM would treat it as a loop-carried dependence
        # that forbids every move, but the tag is an index.
        reads = [(r.buffer, r.indices) for r in loads(body.value) if isinstance(r, Load) and r.buffer != body.buffer]
        return SBlock(
            iters,
            self.regions(reads, inner),
            self.regions([(body.buffer, body.indices)], inner),
            name,
            self.store(body, inner),
            None if init is None else self.store(init, inner),
        )

    def realize(self, block: Block, env: dict[str, Any]) -> Any:
        axes = tuple([(it.name, it.extent, it.kind) for it in block.iters])
        accessed = tuple([(self.known[name], self.buffers[name]) for name in _accessed(block)])
        inner = _block(block.name, axes, block.body, block.init, accessed, self.native)
        predicate = tirx.const(True, "bool")
        for n, p in enumerate(block.predicates):
            predicate = self.expr(p, env) if n == 0 else tirx.And(predicate, self.expr(p, env))
        return SBlockRealize([self.expr(it.binding, env) for it in block.iters], predicate, inner)

    def stmt(self, stmt: Stmt, env: dict[str, Any]) -> Any:
        if isinstance(stmt, Block):
            return self.realize(stmt, env)
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

    def function(self, program: Program) -> Any:
        inside = tuple(b.name for b in program.buffers if b.name not in program.params)
        params, allocated = ([*program.params, *inside], ()) if self.native else (list(program.params), inside)
        body = self.body(program.body, {})
        root = SBlock([], [], [], "root", body, None, [self.buffers[n] for n in allocated])
        func = tirx.PrimFunc([self.buffers[n] for n in params], SBlockRealize([], tirx.const(True, "bool"), root))
        return func.with_attr({"tirx.noalias": True, "global_symbol": "main"})


def to_tvm(program: Program, *, native: bool = False) -> Any:
    """The program as a TensorIR function.

    Args:
        native: to run it.  Every buffer is a parameter (inputs and outputs first), so that none is compacted and all
            values are returned; and floats are computed as written.
    """
    return _Out({b: _buffer(b) for b in program.buffers}, native).function(program)


def tvmscript(program: Program) -> str:
    """The program in TVMScript, as TVM itself prints it."""
    return to_tvm(program).script()
