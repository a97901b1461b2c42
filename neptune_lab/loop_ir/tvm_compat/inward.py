"""Converts TensorIR and tensor expressions to loop-scalar IR."""

# TVM's type annotations are narrower than what its functions accept.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from tvm import te, tirx
from tvm.tirx import IterVar

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.names import loop_names, unique
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
)
from neptune_lab.loop_ir.reduction import REDUCERS
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.simplify import simplify
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.tvm_compat.as_written import hidden, operator_of
from neptune_lab.loop_ir.tvm_compat.words import call_names, first_line, node_names
from neptune_lab.loop_ir.walks import conjuncts, map_store, transform
from neptune_lab.strict.dtypes import LARGEST_FINITE


def _loop_name(name: str) -> str:
    """A name that TVM made for a loop, shortened: i_0 becomes i0, b_h_fused becomes bh."""
    name = name.removesuffix("_init")
    if name.endswith("_fused"):
        name = name[: -len("_fused")].replace("_", "")
    return re.sub(r"_(\d+)$", r"\1", name)


_NODES = node_names()


# Name, extent and kind of an iteration variable.
_Axis: TypeAlias = tuple[str, int, Literal["reduce", "spatial"]]


@dataclass(frozen=True, slots=True)
class _Inner:
    """A block without its bindings and predicates: the least values that TVM gives to its axes, which count from 0
    here, and the buffers that it accesses, in order."""

    name: str
    axes: tuple[_Axis, ...]
    starts: tuple[int, ...]
    body: Store
    init: Store | None
    buffers: tuple[Buffer, ...]


# Keyed by TVM's object: a step of TVM's schedule leaves most blocks as they are, and `outward` gives each once.
@lru_cache(maxsize=2048)
def _inner(block: Any, tagged: frozenset[str], guards: bool) -> _Inner:
    return _In(None, tagged, guards).inner(block)


class _In:
    """One conversion. `guards`: a choice in the form that `outward` gives to a guard is one."""

    def __init__(self, like: Program | None, tagged: frozenset[str], guards: bool) -> None:
        self.like = {} if like is None else {b.name: b for b in blocks(like)}
        self.loops = None if like is None else loop_names(*like.body)
        self.tagged, self.guards = tagged, guards
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
        if kind in _NODES:
            operands = (e.a,) if kind == "Not" else (e.a, e.b)
            return _operator(_NODES[kind], *(self.expr(x, env) for x in operands))
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
        if kind == "Select":
            return self.select(e.condition, e.true_value, e.false_value, env, eager=True)
        if kind == "Call":
            if (operator := operator_of(e)) is not None:
                return _operator(operator, *(self.expr(a, env) for a in e.args[1:]))
            name = str(e.op.name).rsplit(".", 1)[-1]
            known = call_names()
            if known.get(name) == "select":
                return self.select(*e.args, env)
            if name in known:
                return Op(known[name], tuple(self.expr(a, env) for a in e.args))
            raise DefinitionError(f"the call {e} is not supported", help=f"it takes {', '.join(known)}")
        raise DefinitionError(
            f"the expression {e} ({kind}) is not supported",
            help="write it with arithmetic, comparisons, casts, te.if_then_else, and functions such as te.exp",
        )

    def select(self, cond: Any, yes: Any, no: Any, env: dict[Any, Expr], eager: bool = False) -> Expr:
        """A select; `eager`: TVM evaluates both sides, as in the form that `outward` gives to a guard."""
        c, a, b = (self.expr(x, env) for x in (cond, yes, no))
        match a, b:
            case Load(buffer, (Op("sub", (tag, Const(1))) | Op("add", (tag, Const(-1))), *rest)), Const() if (
                buffer in self.tagged
            ):
                return Previous(buffer, (tag, *rest), b)
        match c, a:
            case Op("eq", (x, Const() as point)), _ if eager and self.guards and x == b and _is_guarded(x):
                return Op("guard", (x, point, a))
        if eager and _says_not_negative(c, a) and _is_negative_of(b, a):
            return Op("abs", (a,))  # TVM writes the absolute value of an integer as this choice
        return Op("select", (c, a, b))

    def store(self, s: Any, env: dict[Any, Expr]) -> Store:
        store = Store(self.buffer(s.buffer), tuple(self.expr(i, env) for i in s.indices), self.expr(s.value, env))
        shifted = any(isinstance(variable, Op) for variable in env.values())
        return map_store(store, lambda e: transform(e, _with_offsets_folded)) if shifted else store

    def inner(self, b: Any) -> _Inner:
        name = str(b.name_hint)
        if type(b.body).__name__ != "BufferStore":
            raise DefinitionError(
                f"block {name} holds more than one store; every stage needs to be one expression",
                help="give a reducer of several values a stage for each of them",
            )
        env: dict[Any, Expr] = {}
        axes: list[_Axis] = []
        starts: list[int] = []
        taken: set[str] = set()
        for iv in b.iter_vars:
            iter_name = unique(str(iv.var.name).removeprefix("v_"), taken, "_")
            taken.add(iter_name)
            starts.append(int(iv.dom.min))  # here every iteration variable counts from 0
            env[iv.var] = add(Var(iter_name), const(starts[-1]))
            kind: Literal["reduce", "spatial"] = "reduce" if int(iv.iter_type) == IterVar.CommReduce else "spatial"
            axes.append((iter_name, int(iv.dom.extent), kind))
        init = None if b.init is None else self.store(b.init, env)
        if init is not None and isinstance(init.value, Const):
            init = replace(init, value=_infinite(init.value))
        body = self.store(b.body, env)
        if any(kind == "reduce" for _, _, kind in axes):
            body = _carried_first(body)
        return _Inner(name, tuple(axes), tuple(starts), body, init, tuple(self.buffers.values()))

    def block(self, realize: Any, env: dict[Any, Expr]) -> Block:
        inner = _inner(realize.block, self.tagged, self.guards)
        values = [self.expr(value, env) for value in realize.iter_values]
        iters = [
            Iter(*axis, simplify(_with_offsets_folded(Op("sub", (value, const(start)))) if start else value, {}))
            for axis, start, value in zip(inner.axes, inner.starts, values, strict=True)
        ]
        predicate = self.expr(realize.predicate, env)
        for buffer in inner.buffers:
            self.buffers.setdefault(buffer.name, buffer)
        known = self.like.get(inner.name)
        return Block(
            inner.name,
            tuple(iters),
            inner.body,
            inner.init,
            tuple(c for c in conjuncts(predicate) if not (isinstance(c, Const) and c.value)),
            origin=known.origin if known else "",
            role=known.role if known else Role.DEFINED,
            repair=known.repair if known else None,
            companion_of=known.companion_of if known else "",
            estimates=known.estimates if known else (),
        )

    def stmt(self, s: Any, env: dict[Any, Expr], taken: set[str]) -> tuple[Stmt, ...]:
        kind = type(s).__name__
        if kind == "SeqStmt":
            return tuple(x for part in s.seq for x in self.stmt(part, env, taken))
        if kind == "SBlockRealize":
            return (self.block(s, env),)
        if kind == "For":
            name = str(s.loop_var.name)
            # Loops of the definition keep their names; the names of loops that a step made are shortened.
            if self.loops is not None and name not in self.loops:
                name = unique(_loop_name(name), taken | self.loops, "_")
            name = unique(name, taken, "_")
            extent = int(s.extent)
            body = self.stmt(s.body, {**env, s.loop_var: add(Var(name), const(int(s.min)))}, taken | {name})
            loop = Loop(name, extent, body, _kind(s), _notes(s))
            return (loop,)
        raise DefinitionError(
            f"the statement {kind} is not supported",
            help="write each stage as one te.compute, elementwise or a reduction",
        )


def _operator(name: str, *args: Expr) -> Expr:
    """An operator's expression; TVM represents the negative of a float as a product with -1."""
    match name, args:
        case "mul", (x, Const(-1, dtype)) if "float" in dtype:
            return Op("neg", (x,))
    return Op(name, args)


def _with_offsets_folded(expr: Expr) -> Expr:
    """(x + 2) - 2 as x: reads of an axis that starts at 2 have the form that they have for an axis that starts at 0."""
    match expr:
        case Op("add" | "sub" as sign, (Op("add", (x, Const(p, "int32"))), Const(q, "int32"))):
            return add(x, const(p + q if sign == "add" else p - q))
    return expr


def _carried_first(store: Store) -> Store:
    """A fold whose reducer has the carried value as its first operand; te.comm_reducer takes functions of either order.

    Formal statement: each f of `REDUCERS` is commutative, so f(e, x) is f(x, e).
    """
    match store.value:
        case Op(op, (term, carried)) if op in REDUCERS and carried == Load(store.buffer, store.indices) != term:
            return replace(store, value=Op(op, (carried, term)))
    return store


def _is_guarded(x: Expr) -> bool:
    return isinstance(x, Load | Previous) or (isinstance(x, Op) and x.name == "guard")


def _kind(loop: Any) -> str:
    if loop.thread_binding is not None:
        return str(loop.thread_binding.thread_tag)
    return "parallel" if int(loop.kind) == int(tirx.ForKind.PARALLEL) else "serial"


def _notes(loop: Any) -> tuple[tuple[str, str | int], ...]:
    return tuple((str(k), str(v) if isinstance(v, str) else int(v)) for k, v in loop.annotations.items())


def _infinite(value: Const) -> Const:
    """The constant, with the largest finite number replaced by infinity: TVM starts max from the lowest finite number
    (of a bfloat16 from that of a float32), but a fully masked row needs -inf."""
    if "float" not in value.dtype:
        return value
    if abs(float(value.value)) >= LARGEST_FINITE[value.dtype]:
        return Const(float("inf") if value.value > 0 else float("-inf"), value.dtype)
    return value


def from_tvm(func: Any, *, name: str, outputs: tuple[str, ...], like: Program | None = None) -> Program:
    """Converts a TensorIR function to a loop-scalar program.

    Args:
        func: a PrimFunc of loops and blocks.
        name: of the program.
        outputs: which of its parameters are outputs.
        like: the program from which origins, roles and tags are copied, by name.

    Raises:
        DefinitionError: the function has something that the loop-scalar IR lacks.
    """
    tagged = frozenset() if like is None else frozenset(b.name for b in like.buffers if b.tagged)
    reader = _In(like, tagged, guards=bool(like and blocks(like)))
    params = tuple(reader.buffer(p) for p in func.params)
    root = func.body
    if type(root).__name__ == "SBlockRealize" and str(root.block.name_hint) == "root":
        for buf in root.block.alloc_buffers:
            reader.buffer(buf)
        root = root.block.body
    body = reader.stmt(root, {}, set())
    masked = () if like is None else like.masked
    return Program(name, params, outputs, tuple(reader.buffers.values()), body, masked)


def from_te(name: str, inputs: list[Any], outputs: list[Any]) -> Program:
    """Converts tensor expressions to a loop-scalar program: one block per stage, which is its own origin.

    Args:
        name: of the operator.
        inputs: placeholders.
        outputs: the tensors to compute.

    Raises:
        DefinitionError: there is no output, or TVM or the loop-scalar IR does not support a stage.
    """
    if not outputs:
        raise DefinitionError(f"operator {name} has no output", help="name one tensor at least that it computes")
    try:
        func = te.create_prim_func([*inputs, *hidden(inputs, outputs)])
    except (RuntimeError, TypeError, ValueError) as error:
        if "exceeds range of int32" in str(error):
            raise DefinitionError(
                f"{name} combines constants to a whole number that int32 does not hold",
                help="convert a factor to 64 bits before, x.long(), or to a float, x.float()",
            ) from error
        if "Divide by zero" in str(error):
            raise DefinitionError(
                f"a stage of {name} divides by 0: the divisor of a `//` or `%` is 0 at every position",
                help="check the numbers and sizes that the divisor is computed from",
            ) from error
        raise DefinitionError(
            f"TVM does not take the definition of {name}: {first_line(error)}",
            help="each stage is one te.compute over placeholders and earlier stages, with names of its own",
        ) from error
    program = from_tvm(func, name=name, outputs=tuple(str(t.op.name) for t in outputs))

    def own(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            return replace(stmt, origin=stmt.name)
        return replace(stmt, body=tuple(own(s) for s in stmt.body))

    return replace(program, body=tuple(own(s) for s in program.body))


def _says_not_negative(condition: Expr, x: Expr) -> bool:
    """Whether `condition` is x >= 0, or q >= p where x is q - p."""
    match condition:
        case Op("le", (low, high)) | Op("ge", (high, low)):
            return (low == Const(0) and high == x) or x == Op("sub", (high, low))
    return False


def _is_negative_of(expr: Expr, x: Expr) -> bool:
    """Whether `expr` is -x in TVM's form: the negative of a - b is b - a."""
    match expr:
        case Op("sub", (Const(0), a)) | Op("neg", (a,)) | Op("mul", (a, Const(-1))) if a == x:
            return True
        case Op("sub", (a, b)):
            return x == Op("sub", (b, a))
    return False
