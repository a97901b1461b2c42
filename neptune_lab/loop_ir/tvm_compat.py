"""TVM's spelling, all of it: loop-scalar IR to TensorIR and back, TVM's schedule, TVM's LLVM backend.

Nothing outside this module (and the operators' tensor expressions) names a TVM class, so a new TVM changes one file.
`to_tvm` and `from_tvm` are inverse on what the loop-scalar IR can say.  What TVM has no word for (origins, roles,
which buffers carry tags) does not travel: `from_tvm` takes it over by name from the program that went out.
"""

# TVM's own annotations are narrower than what it takes.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize, ScheduleError
from tvm.s_tir import Schedule as TvmSchedule
from tvm.tirx import BufferRegion, BufferStore, For, IterVar, SeqStmt

from neptune_lab.errors import DefinitionError, NeptuneError
from neptune_lab.loop_ir.nodes import (
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    Iter,
    Load,
    Loop,
    Op,
    Previous,
    Program,
    Stmt,
    Store,
    Var,
    add,
    const,
    loads,
)

_BINARY = {
    "add": tirx.Add,
    "sub": tirx.Sub,
    "mul": tirx.Mul,
    "div": tirx.Div,
    "floordiv": tirx.FloorDiv,
    "floormod": tirx.FloorMod,
    "max": tirx.Max,
    "min": tirx.Min,
    "lt": tirx.LT,
    "le": tirx.LE,
    "gt": tirx.GT,
    "ge": tirx.GE,
    "eq": tirx.EQ,
    "ne": tirx.NE,
    "and": tirx.And,
    "or": tirx.Or,
}
_BINARY_NAMES = {cls.__name__: name for name, cls in _BINARY.items()}
_CALLS: dict[str, Callable[..., Any]] = {
    name: getattr(tirx, name)
    for name in [
        "exp",
        "exp2",
        "log",
        "log2",
        "sqrt",
        "rsqrt",
        "tanh",
        "sigmoid",
        "sin",
        "cos",
        "erf",
        "floor",
        "ceil",
        "abs",
        "pow",
    ]
}
_CALL_ALIASES = {"fabs": "abs", "if_then_else": "select"}
_THREAD_BINDING = 1  # IterVar kind of a thread axis


# -- out: loop-scalar IR to TensorIR -----------------------------------------------------------------------


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
            case Op("not", (a,)):
                return tirx.Not(self.expr(a, env))
            case Op("neg", (a,)):
                x = self.expr(a, env)
                return tirx.Mul(x, tirx.const(-1, x.ty.dtype))
            case Op("guard", (a, point, stand_in)):
                x = self.expr(a, env)
                return tirx.if_then_else(tirx.EQ(x, self.expr(point, env)), self.expr(stand_in, env), x)
            case Op("select", (c, a, b)):
                return tirx.if_then_else(self.expr(c, env), self.expr(a, env), self.expr(b, env))
            case Op(name, args):
                build = _BINARY.get(name) or _CALLS[name]
                return build(*(self.expr(a, env) for a in args))
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
        # A scan block's read of its own previous tag stays out of the declared reads: TVM would take it for a
        # loop-carried dependence that forbids every move, and with the tag an index it is none.
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
            thread = IterVar(None, tirx.Var(stmt.kind, "int32"), _THREAD_BINDING, stmt.kind)
        return For(
            var, tirx.const(0, "int32"), tirx.const(stmt.extent, "int32"), kind, body, thread, dict(stmt.annotations)
        )

    def body(self, body: tuple[Stmt, ...], env: dict[str, Any]) -> Any:
        stmts = [self.stmt(s, env) for s in body]
        return stmts[0] if len(stmts) == 1 else SeqStmt(stmts)

    def function(self, *, expose: bool) -> Any:
        """`expose`: every buffer is a parameter, so that none is compacted and all values come back."""
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


# -- in: TensorIR to loop-scalar IR ------------------------------------------------------------------------


def _loop_name(name: str) -> str:
    """TVM's names of made loops, shortened: i_0 is i0, b_h_fused is bh."""
    name = name.removesuffix("_init")
    if name.endswith("_fused"):
        name = name[: -len("_fused")].replace("_", "")
    return re.sub(r"_(\d+)$", r"\1", name)


def _unique(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    n = 2
    while f"{name}_{n}" in taken:
        n += 1
    return f"{name}_{n}"


class _In:
    def __init__(self, like: Program | None, tagged: set[str]) -> None:
        self.like = {} if like is None else {b.name: b for b in all_blocks(like)}
        self.tagged = tagged
        self.buffers: dict[str, Buffer] = {}

    def buffer(self, buf: Any) -> str:
        name = str(buf.name)
        if name not in self.buffers:
            scope = str(buf.scope()) or "global"
            self.buffers[name] = Buffer(
                name, tuple(int(e) for e in buf.shape), str(buf.dtype), scope, name in self.tagged
            )
        return name

    def expr(self, e: Any, env: dict[Any, Expr]) -> Expr:
        kind = type(e).__name__
        if kind == "Mul" and type(e.b).__name__ == "FloatImm" and float(e.b.value) == -1:
            return Op("neg", (self.expr(e.a, env),))
        if kind in _BINARY_NAMES:
            return Op(_BINARY_NAMES[kind], (self.expr(e.a, env), self.expr(e.b, env)))
        if kind == "IntImm":
            dtype = str(e.ty.dtype)
            return Const(bool(e.value) if dtype == "bool" else int(e.value), dtype)
        if kind == "FloatImm":
            return Const(float(e.value), str(e.ty.dtype))
        if kind == "Var":
            return env[e]
        if kind in ("TensorLoad", "BufferLoad"):
            return Load(self.buffer(e.source), tuple(self.expr(i, env) for i in e.indices))
        if kind == "Cast":
            return Cast(str(e.ty.dtype), self.expr(e.value, env))
        if kind == "Not":
            return Op("not", (self.expr(e.a, env),))
        if kind == "Select":
            return self.select(e.condition, e.true_value, e.false_value, env)
        if kind == "Call":
            name = str(e.op.name).rsplit(".", 1)[-1]
            name = _CALL_ALIASES.get(name, name)
            if name == "select":
                return self.select(*e.args, env)
            if name in _CALLS:
                return Op(name, tuple(self.expr(a, env) for a in e.args))
            raise DefinitionError(f"the call {e} is not one the compiler takes", help=f"it takes {', '.join(_CALLS)}")
        raise DefinitionError(f"the expression {e} ({kind}) is not one the compiler takes")

    def select(self, cond: Any, yes: Any, no: Any, env: dict[Any, Expr]) -> Expr:
        c, a, b = (self.expr(x, env) for x in (cond, yes, no))
        match a, b:
            case Load(buffer, (Op("sub", (tag, Const(1))) | Op("add", (tag, Const(-1))), *rest)), Const() if (
                buffer in self.tagged
            ):
                return Previous(buffer, (tag, *rest), b)
        match c, a:
            case Op("eq", (x, Const() as point)), Const() if x == b and _is_guarded(x):
                return Op("guard", (x, point, a))
        return Op("select", (c, a, b))

    def store(self, s: Any, env: dict[Any, Expr]) -> Store:
        return Store(self.buffer(s.buffer), tuple(self.expr(i, env) for i in s.indices), self.expr(s.value, env))

    def block(self, realize: Any, env: dict[Any, Expr]) -> Block:
        b = realize.block
        name = str(b.name_hint)
        if type(b.body).__name__ != "BufferStore":
            raise DefinitionError(f"block {name} holds more than one store; every stage needs to be one expression")
        inner: dict[Any, Expr] = {}
        iters = []
        taken: set[str] = set()
        for iv, value in zip(b.iter_vars, realize.iter_values, strict=True):
            iter_name = _unique(str(iv.var.name).removeprefix("v_"), taken)
            taken.add(iter_name)
            inner[iv.var] = Var(iter_name)
            kind = "reduce" if int(iv.iter_type) == IterVar.CommReduce else "spatial"
            iters.append(Iter(iter_name, int(iv.dom.extent), kind, fold(self.expr(value, env))))
        init = None if b.init is None else self.store(b.init, inner)
        if init is not None and isinstance(init.value, Const):
            init = replace(init, value=_infinite(init.value))
        predicate = self.expr(realize.predicate, env)
        known = self.like.get(name)
        return Block(
            name,
            tuple(iters),
            self.store(b.body, inner),
            init,
            _conjuncts(predicate),
            origin=known.origin if known else "",
            role=known.role if known else "",
            annotations=known.annotations if known else (),
        )

    def stmt(self, s: Any, env: dict[Any, Expr], taken: set[str]) -> tuple[Stmt, ...]:
        kind = type(s).__name__
        if kind == "SeqStmt":
            return tuple(x for part in s.seq for x in self.stmt(part, env, taken))
        if kind == "SBlockRealize":
            return (self.block(s, env),)
        if kind == "For":
            name = _unique(_loop_name(str(s.loop_var.name)), taken)
            extent = int(s.extent)
            body = self.stmt(s.body, {**env, s.loop_var: Var(name)}, taken | {name})
            loop = Loop(name, extent, body, _kind(s), _notes(s))
            return (loop,)
        raise DefinitionError(f"the statement {kind} is not one the compiler takes")


def _is_guarded(x: Expr) -> bool:
    return isinstance(x, Load | Previous) or (isinstance(x, Op) and x.name == "guard")


def _kind(loop: Any) -> str:
    if loop.thread_binding is not None:
        return str(loop.thread_binding.thread_tag)
    return "parallel" if int(loop.kind) == int(tirx.ForKind.PARALLEL) else "serial"


def _notes(loop: Any) -> tuple[tuple[str, str | int], ...]:
    return tuple((str(k), str(v) if isinstance(v, str) else int(v)) for k, v in loop.annotations.items())


def _conjuncts(predicate: Expr) -> tuple[Expr, ...]:
    match predicate:
        case Const(value):
            return () if value else (predicate,)
        case Op("and", (a, b)):
            return _conjuncts(a) + _conjuncts(b)
    return (predicate,)


def _infinite(value: Const) -> Const:
    """TVM spells the identity of max as the lowest finite number; a fully masked row needs the true one."""
    if value.dtype.startswith("float") and abs(float(value.value)) == float(np.finfo(value.dtype).max):
        return Const(float("inf") if value.value > 0 else float("-inf"), value.dtype)
    return value


def fold(expr: Expr) -> Expr:
    """Index arithmetic with zero terms and unit factors dropped (TVM leaves them after a split of extent 1)."""
    match expr:
        case Op("add", (a, b)):
            return add(fold(a), fold(b))
        case Op("mul", (a, Const(1))) | Op("mul", (Const(1), a)):
            return fold(a)
        case Op("mul", (Const(0), _)) | Op("mul", (_, Const(0))):
            return const(0)
        case Op(name, args):
            return Op(name, tuple(fold(a) for a in args))
    return expr


def all_blocks(program: Program) -> list[Block]:
    """Every block, in program order."""

    def visit(body: tuple[Stmt, ...]) -> list[Block]:
        found: list[Block] = []
        for stmt in body:
            found += [stmt] if isinstance(stmt, Block) else visit(stmt.body)
        return found

    return visit(program.body)


def from_tvm(func: Any, *, name: str, outputs: tuple[str, ...], like: Program | None = None) -> Program:
    """A TensorIR function as a loop-scalar program; `like` lends origins, roles and tags by name."""
    tagged = set() if like is None else {b.name for b in like.buffers if b.tagged}
    reader = _In(like, tagged)
    params = tuple(reader.buffer(p) for p in func.params)
    root = func.body
    if type(root).__name__ == "SBlockRealize" and str(root.block.name_hint) == "root":
        for buf in root.block.alloc_buffers:
            reader.buffer(buf)
        root = root.block.body
    body = reader.stmt(root, {}, set())
    return Program(name, params, outputs, tuple(reader.buffers.values()), body)


def from_te(name: str, inputs: list[Any], outputs: list[Any]) -> Program:
    """Tensor expressions as a loop-scalar program: every stage a block, its own origin."""
    if not outputs:
        raise DefinitionError(f"operator {name} has no output")
    try:
        func = te.create_prim_func([*inputs, *outputs])
    except (RuntimeError, TypeError, ValueError) as error:
        raise DefinitionError(f"TVM does not take the definition of {name}: {_first_line(error)}") from error
    program = from_tvm(func, name=name, outputs=tuple(str(t.op.name) for t in outputs))

    def own(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            return replace(stmt, origin=stmt.name)
        return replace(stmt, body=tuple(own(s) for s in stmt.body))

    return replace(program, body=tuple(own(s) for s in program.body))


# -- TVM's schedule and backend ----------------------------------------------------------------------------


class TvmRefusal(NeptuneError):
    """TVM's schedule refused a primitive; the message is TVM's reason, shortened."""


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if line.startswith("Error message:"):
            return line.removeprefix("Error message:").strip()
    for line in lines:
        if line.startswith("ScheduleError:"):
            return (
                line.removeprefix("ScheduleError:").strip().removeprefix("An error occurred in the schedule primitive ")
            )
    return lines[-1] if lines else type(error).__name__


def apply(program: Program, action: Callable[[Any], None]) -> Program:
    """The program after `action` on a TVM schedule of it; TvmRefusal carries TVM's reason."""
    schedule = TvmSchedule(tvm.IRModule({"main": to_tvm(program)}), debug_mask=0, error_render_level="detail")
    try:
        action(schedule)
    except (ScheduleError, RuntimeError, TypeError, ValueError) as error:
        raise TvmRefusal(_first_line(error)) from error
    return from_tvm(schedule.mod["main"], name=program.name, outputs=program.outputs, like=program)


@lru_cache(maxsize=64)
def _compiled(program: Program) -> Any:
    unbound = replace(program, body=tuple(_unbind(s) for s in program.body))
    module = tvm.IRModule({"main": to_tvm(unbound, expose=True)})
    return tvm.compile(module, target=tvm.target.Target("llvm"))["main"]


def _unbind(stmt: Stmt) -> Stmt:
    """Thread axes run as plain loops on a CPU, and notes on loops say nothing there."""
    if isinstance(stmt, Block):
        return stmt
    return replace(stmt, kind="serial", annotations=(), body=tuple(_unbind(s) for s in stmt.body))


def run_native(program: Program, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compiles with LLVM and runs; `arrays` has one array a buffer, in the buffer's dtype; all come back."""
    order = [*program.params, *(b.name for b in program.buffers if b.name not in program.params)]
    values = [tvm.runtime.tensor(np.ascontiguousarray(arrays[n])) for n in order]
    _compiled(program)(*values)
    return {n: v.numpy() for n, v in zip(order, values, strict=True)}
