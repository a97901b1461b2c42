"""The loop-scalar IR: loops, blocks and scalar stores (paper, Figure 6, section 3.1).

It is TensorIR's block form as frozen Python data, so that primitives, the renderer, the tag recorder and the
translator to HTile match on plain nodes.  `tvm_compat` converts a program to TVM and back without loss, so that TVM's
own primitives and its LLVM backend work on the same programs.

A block is one store inside a nest of loops.  It computes in its own *iteration variables*; `Iter.binding` is the value
of each as an expression over the loops.  So a block keeps its meaning while loops are split, moved and fused around
it, and the tag that a read sees follows from the bindings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

from neptune_lab.hashed import Hashed, hash_once, same_constant
from neptune_lab.loop_ir.roles import RepairInfo, Role
from neptune_lab.tensor_spec import signature

# -- expressions --------------------------------------------------------------------------------------------


@hash_once
@dataclass(frozen=True, slots=True)
class Const(Hashed):
    """A constant; infinities are floats."""

    value: float | int | bool
    dtype: str = "int32"

    __eq__ = same_constant


@hash_once
@dataclass(frozen=True, slots=True)
class Var(Hashed):
    """A loop variable (in bindings and predicates) or an iteration variable (inside a block)."""

    name: str


@hash_once
@dataclass(frozen=True, slots=True)
class Load(Hashed):
    """`buffer[indices]`."""

    buffer: str
    indices: tuple[Expr, ...]

    def __eq__(self, other: object) -> bool:
        return _same(self, other)


@hash_once
@dataclass(frozen=True, slots=True)
class Previous(Hashed):
    """A scan buffer's value at the previous tag: `buffer[indices[0] - 1, indices[1:]]`, and `initial` at the first tag.

    `indices[0]` is the *current* tag.  Only a scan buffer (`Buffer.tagged`) can be read like this.
    """

    buffer: str
    indices: tuple[Expr, ...]
    initial: Const

    def __eq__(self, other: object) -> bool:
        return _same(self, other)


@hash_once
@dataclass(frozen=True, slots=True)
class Op(Hashed):
    """An operation on scalars, by its name in `scalar_ops`, such as add, lt, select and exp."""

    name: str
    args: tuple[Expr, ...]

    def __eq__(self, other: object) -> bool:
        return _same(self, other)


@hash_once
@dataclass(frozen=True, slots=True)
class Cast(Hashed):
    """Conversion to `dtype`."""

    dtype: str
    arg: Expr

    def __eq__(self, other: object) -> bool:
        return _same(self, other)


Expr: TypeAlias = Const | Var | Load | Previous | Op | Cast


def _same(one: Load | Previous | Op | Cast, other: object) -> bool:
    """Equality of nodes, in time that grows with the nodes that differ: operands that several nodes share are compared
    once (`walk_once`)."""
    if one is other:
        return True
    if type(other) is not type(one):
        return NotImplemented
    if hash(one) != hash(other):
        return False
    # Caches compare the same two trees again and again.
    kind = getattr(other, "_kind", None)
    if kind is not None and getattr(one, "_kind", None) is kind:
        return True
    compared: set[tuple[int, int]] = set()
    waiting: list[tuple[Expr, Expr]] = [(one, other)]  # type: ignore[list-item]
    while waiting:
        a, b = waiting.pop()
        if _label(a) != _label(b):
            return False
        x, y = children(a), children(b)
        if len(x) != len(y):
            return False
        for own, its in zip(x, y, strict=True):
            if own is its:
                continue
            if type(own) is not type(its):
                return False
            if type(own) is Var or type(own) is Const:  # most operands; nothing is gained by noting them
                if own != its:
                    return False
                continue
            if (id(own), id(its)) in compared:
                continue
            if hash(own) != hash(its):
                return False
            compared.add((id(own), id(its)))
            waiting.append((own, its))
    kind = kind or getattr(one, "_kind", None) or object()
    object.__setattr__(one, "_kind", kind)
    object.__setattr__(other, "_kind", kind)
    return True


def _label(expr: Expr) -> object:
    """What a node holds beside its operands."""
    if type(expr) is Op or type(expr) is Var:
        return expr.name
    if type(expr) is Load:
        return expr.buffer
    if type(expr) is Previous:
        return (expr.buffer, expr.initial)
    return expr.dtype if type(expr) is Cast else expr


# -- statements ---------------------------------------------------------------------------------------------

SCOPES = ("local", "shared", "global")


@hash_once
@dataclass(frozen=True, slots=True)
class Buffer(Hashed):
    """A tensor: its full, static shape; `scope` is one of `SCOPES`.

    `tagged` marks a scan buffer, whose first axis is the tag: `X[t, i]` is the value of X[i] after tag t.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str = "global"
    tagged: bool = False


@hash_once
@dataclass(frozen=True, slots=True)
class Iter(Hashed):
    """An iteration variable over `range(extent)`; `kind` is "spatial" or "reduce"; `binding` is over loop variables."""

    name: str
    extent: int
    kind: Literal["spatial", "reduce"]
    binding: Expr


@hash_once
@dataclass(frozen=True, slots=True)
class Store(Hashed):
    """`buffer[indices] = value`."""

    buffer: str
    indices: tuple[Expr, ...]
    value: Expr


@hash_once
@dataclass(frozen=True, slots=True)
class Block(Hashed):
    """One store, executed for every value of the loops around it for which all of `predicates` hold.

    Args:
        name: unique in the program.
        iters: its iteration variables.
        body: the store.
        init: runs before `body` at the first value of the reduce iterations; None: the block does not start a
            reduction.
        predicates: conditions over the loops.
        origin: the stage of the definition that the block came from (its own name, for a block of the definition).
        role: what the block does in a scheduled program.
        repair: the repair that it applies, if any.
        companion_of: the block with whose sum a vector repair updates this one; "" if it was not added for that.
        estimates: the buffers that it reads through running estimates (`loop_schedule.estimate`).
    """

    name: str
    iters: tuple[Iter, ...]
    body: Store
    init: Store | None = None
    predicates: tuple[Expr, ...] = ()
    origin: str = ""
    role: Role = Role.DEFINED
    repair: RepairInfo | None = None
    companion_of: str = ""
    estimates: tuple[str, ...] = ()

    @property
    def is_reduction(self) -> bool:
        """Whether any iteration variable is a reduce one."""
        return any(it.kind == "reduce" for it in self.iters)

    @property
    def writes(self) -> str:
        """Name of the buffer that the block writes."""
        return self.body.buffer

    @property
    def unproved(self) -> str | None:
        """The user's repair, if it is not proved; None if it is, or if there is none."""
        return None if self.repair is None else self.repair.unproved

    def iter(self, name: str) -> Iter:
        """The iteration variable called `name`; KeyError if there is none."""
        for it in self.iters:
            if it.name == name:
                return it
        raise KeyError(name)


@hash_once
@dataclass(frozen=True, slots=True)
class Loop(Hashed):
    """`for var in range(extent)`; `kind` is "serial", "parallel" or a thread axis such as "blockIdx.x"."""

    var: str
    extent: int
    body: tuple[Stmt, ...]
    kind: str = "serial"
    annotations: tuple[tuple[str, str | int], ...] = ()


Stmt: TypeAlias = Loop | Block


@hash_once
@dataclass(frozen=True, slots=True)
class Program(Hashed):
    """A function: parameters (inputs, then outputs) and internal buffers, and a body of loops and blocks.

    `masked` names the inputs in which -inf marks an absent element.  No analysis relies on it, since any float may be
    -inf; it is part of a definition's digest (`records.workload_key`).
    """

    name: str
    params: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    masked: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the parameters that are not outputs."""
        return _inputs(self.params, self.outputs)

    def buffer(self, name: str) -> Buffer:
        """The buffer called `name`; KeyError if there is none."""
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise KeyError(name)

    def __repr__(self) -> str:
        """Its signature alone; `hashed.full_text` has all of it, for digests."""
        shown = signature(self.name, self.buffers, self.inputs, self.outputs)
        return f"<Loop program {shown}; print it to see its loops>"

    def __str__(self) -> str:
        """Its loops in the style of the paper's figures."""
        from neptune_lab.loop_ir.render import as_figure

        return as_figure(self).rstrip("\n")


@lru_cache(maxsize=256)
def _inputs(params: tuple[str, ...], outputs: tuple[str, ...]) -> tuple[str, ...]:
    """Checks of reads need the inputs once per read, so a program of 1,500 blocks needs them thousands of times."""
    made = frozenset(outputs)
    return tuple(p for p in params if p not in made)


# -- small builders ----------------------------------------------------------------------------------------


def const(value: int) -> Const:
    """An index constant."""
    return Const(value, "int32")


def add(a: Expr, b: Expr) -> Expr:
    """a + b on indices, with zeros dropped and integer constants folded."""
    x, y = _integer(a), _integer(b)
    if x is not None and y is not None:
        return const(x + y)
    if x == 0:
        return b
    if y == 0:
        return a
    return Op("add", (a, b))


def mul(a: Expr, factor: int) -> Expr:
    """a * factor on indices; constants are folded."""
    value = _integer(a)
    if value is not None:
        return const(value * factor)
    if factor == 0:
        return const(0)
    return a if factor == 1 else Op("mul", (a, const(factor)))


def _integer(expr: Expr) -> int | None:
    return expr.value if isinstance(expr, Const) and isinstance(expr.value, int) else None


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of an expression."""
    # By type, most frequent first: class patterns take three times as long, and every traversal calls this per node.
    if type(expr) is Op:
        return expr.args
    if type(expr) is Var or type(expr) is Const:
        return ()
    if type(expr) is Load or type(expr) is Previous:
        return expr.indices
    return (expr.arg,) if type(expr) is Cast else ()


def rebuild(expr: Expr, args: tuple[Expr, ...]) -> Expr:
    """`expr` with new operands; the same object if they are its own."""
    for a, b in zip(args, children(expr), strict=True):
        if a is not b:
            break
    else:
        return expr
    match expr:
        case Const() | Var():
            return expr
        case Load(buffer, _):
            return Load(buffer, args)
        case Previous(buffer, _, initial):
            return Previous(buffer, args, initial)
        case Op(name, _):
            return Op(name, args)
        case Cast(dtype, _):
            return Cast(dtype, args[0])


def with_buffers(program: Program, *buffers: Buffer) -> Program:
    """The program with buffers added; a buffer of the same name is replaced."""
    new = {b.name: b for b in buffers}
    kept = tuple(new.pop(b.name, b) for b in program.buffers)
    return replace(program, buffers=kept + tuple(new.values()))
