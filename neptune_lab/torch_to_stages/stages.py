"""Collects the stages of a traced function, and makes a loop-scalar program of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from neptune_lab.loop_ir.dimensions import Dimension, Dimensions, dimensions
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Block, Buffer, Cast, Const, Expr, Iter, Load, Loop, Op, Program, Stmt, Store, Var
from neptune_lab.loop_ir.reduction import OPERATORS, identity
from neptune_lab.loop_ir.simplify import bounds, simplify
from neptune_lab.loop_ir.walks import loads, substitute, transform, variables
from neptune_lab.operators.ties import HALVES_TIES, OF_EXTREMA, without_indices
from neptune_lab.torch_to_stages.lines import SourceLine
from neptune_lab.torch_to_stages.masks import decided
from neptune_lab.torch_to_stages.values import (
    HALVES,
    NARROW_INTEGERS,
    Index,
    Value,
    computed_dtype,
    folded,
    has_loads,
    narrowed,
    type_of,
)

Reducer = Literal["sum", "max", "min", "prod", "any", "all"]

_RING = frozenset({"add", "sub", "mul", "neg", "abs"})  # what 64 bits cut to 32 give as 32 bits that wrap do
_LEADING = "bhg"  # names of the axes before the last two
_LETTERS = "ijdecflmnoprtuwxyzakqsv"


@dataclass(slots=True)
class Stages:
    """The stages made so far; each is one block in its own loops.

    Args:
        line: the user's line that the next stages come from.
        callers: the user's lines whose calls led to that one.
        reserved: names of results, which no other stage gets.
        hint: the name that the next stage gets, if it is free.
        lines: the line of each stage, by its name.
        within: the lines of all that each stage computes, and their callers, by its name.
        ties: derivatives at points where a stage's expression has none (`operators.ties`), by the stage's name.
    """

    line: SourceLine | None = None
    callers: tuple[SourceLine, ...] = ()
    hint: str = "t"
    reserved: frozenset[str] = frozenset()
    lines: dict[str, SourceLine] = field(default_factory=dict)
    within: dict[str, tuple[SourceLine, ...]] = field(default_factory=dict)
    ties: dict[str, dict[Expr, float]] = field(default_factory=dict)
    _buffers: dict[str, Buffer] = field(default_factory=dict)
    _inputs: list[str] = field(default_factory=list)
    _nests: list[Stmt] = field(default_factory=list)
    _extents: dict[str, int] = field(default_factory=dict)
    _read: dict[SourceLine, None] = field(default_factory=dict)
    _ties: dict[Expr, float] = field(default_factory=dict)
    _elements: set[Callable[[Index], Expr]] = field(default_factory=set)
    _results: frozenset[str] = frozenset()
    _same: dict[tuple[object, ...], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._results = self.reserved

    def input(self, name: str, shape: tuple[int, ...], dtype: str) -> Value:
        """A new input.

        Args:
            name: its name, if it is free.
            shape: its sizes.
            dtype: torch's dtype without "torch.".

        Returns:
            The tensor.
        """
        name = unique(name, self._buffers.keys(), "_")
        self._inputs.append(name)
        return self._stored(Buffer(name, shape, dtype), dtype)

    def with_tie(self, extreme: Expr, part: float) -> Expr:
        """A maximum, minimum or root, noted as one whose first operand gets this part of the cotangent where it has no
        derivative (`operators.ties`).  It is called as the element of a stage is made.

        If functions that differ in this compute the same expression in one stage, both get one half.
        """
        key = without_indices(extreme)
        self._ties[key] = part if self._ties.get(key, part) == part else HALVES_TIES
        return extreme

    def noted(self, value: Value) -> Value:
        """`value`, so that each stage whose expression contains it knows that it computes something of
        the line.

        Args:
            value: what the line computes.  A stage or an input stays as it is: readers compute nothing of it.

        Returns:
            The same elements.
        """
        lines = (*self.callers, *([] if self.line is None else [self.line]))
        if not lines or value.at in self._elements:
            return value
        element = value.at

        def at(index: Index) -> Expr:
            self._read.update(dict.fromkeys(lines))
            return element(index)

        return replace(value, at=at)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs, the stages and the results."""
        return (*self._buffers, *self.reserved)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(self._inputs)

    def type_of(self, expr: Expr) -> str:
        """The dtype of an expression of stages and inputs."""
        return type_of(expr, lambda name: self._buffers[name].dtype)

    def simplified(self, index: Expr) -> Expr:
        """An index in its shortest form."""
        return simplify(index, self._extents)

    def map(self, value: Value, hint: str = "", dtype: str | None = None) -> Value:
        """A stage that computes each element of `value`.

        Args:
            value: what to compute.
            hint: a name; "" for the value's own, or that of the user's line.
            dtype: the buffer's dtype; None: that of the computation.

        Returns:
            The stage as a tensor.
        """
        spatial = self._iters(value.shape)
        at = tuple(Var(it.name) for it in spatial)
        self._read.clear()
        self._ties.clear()
        element = self._with_simple_indices(value.at(at))
        stored = dtype or self.type_of(element)
        if stored != self.type_of(element):
            element = Cast(stored, element)
        # A result is a stage of its own: it is stored under its name.
        key = None if hint in self._results else ("", *_positional(spatial, element), stored, *self._told())
        if key in self._same:
            return self._again(self._same[key], value.dtype)
        name = self._name(hint or value.hint)
        self._add(name, spatial, Store(name, at, element), None, value.line)
        if key is not None:
            self._same[key] = name
        return self._stored(Buffer(name, value.shape, stored), value.dtype)

    def reduce(
        self,
        reducer: Reducer,
        shape: Sequence[int],
        folded: Sequence[int],
        term: Callable[[Index, Index], Expr],
        dtype: str,
        hint: str = "",
        marks: Collection[Expr] = (),
    ) -> Value:
        """A stage that folds `term` along new axes.

        Args:
            reducer: how terms are combined.
            shape: of the result.
            folded: sizes of the axes to fold along.
            term: from the indices of the result and of the folded axes to a term.
            dtype: torch's dtype of the result.
            hint: a name; "" for the hint of the user's line.
            marks: which of several equal extrema get the cotangent (`operators.ties`).

        Returns:
            The stage as a tensor.
        """
        spatial, reduced = self._iters(tuple(shape)), self._iters(tuple(folded), "reduce")
        at = tuple(Var(it.name) for it in spatial)
        self._read.clear()
        self._ties.clear()
        value = self._with_simple_indices(term(at, tuple(Var(it.name) for it in reduced)))
        stored = self.type_of(value)
        if 0 in folded:
            return Value(tuple(shape), dtype, lambda _: identity(reducer, stored), plain=True)
        self._ties.update(dict.fromkeys(marks, 1.0))
        reduced, value = _without_unused(reducer, reduced, value, stored)
        if not reduced:
            once = Value(tuple(shape), dtype, lambda i: substitute(value, _named(spatial, i)), line=self.line)
            return _wrapping(reducer, self.map(once))
        key = (reducer, *_positional((*spatial, *reduced), value), stored, *self._told())
        if key in self._same:
            return _wrapping(reducer, self._again(self._same[key], dtype))
        name = self._same[key] = self._name(hint)
        body = Store(name, at, Op(OPERATORS[reducer], (Load(name, at), value)))
        self._add(name, (*spatial, *reduced), body, Store(name, at, identity(reducer, stored)))
        return _wrapping(reducer, self._stored(Buffer(name, tuple(shape), stored), dtype))

    def _again(self, name: str, dtype: str) -> Value:
        """The stage that computes what was just asked for: a softmax and a log-softmax of a tensor share their sums."""
        self.within[name] = tuple(dict.fromkeys((*self.within[name], *self._read, *self.callers)))
        return self._stored(self._buffers[name], dtype)

    def program(self, name: str, outputs: Sequence[str], arguments: Collection[str] = ()) -> Program:
        """The stages as a program.

        Args:
            name: of the program.
            outputs: names of the stages that are results.
            arguments: inputs that stay although no output needs them.

        Returns:
            The program, with only those other stages and inputs that the outputs need.
        """
        needed, nests = set(outputs), []
        for nest in reversed(self._nests):
            block = _block(nest)
            if block.name in needed:
                needed |= {read.buffer for read in loads(block.body.value)}
                nests.append(nest)
        inner = [b for n, b in self._buffers.items() if n in needed and n not in self._inputs and n not in outputs]
        inputs = tuple(n for n in self._inputs if n in needed or n in arguments)
        ordered = (*(self._buffers[n] for n in (*inputs, *outputs)), *inner)
        program = Program(name, (*inputs, *outputs), tuple(outputs), ordered, tuple(reversed(nests)))
        return _with_axis_names(program)

    def _iters(self, shape: tuple[int, ...], kind: Literal["spatial", "reduce"] = "spatial") -> tuple[Iter, ...]:
        made = []
        for extent in shape:
            name = f"_{len(self._extents)}"
            self._extents[name] = extent
            made.append(Iter(name, extent, kind, Var(name)))
        return tuple(made)

    def _with_simple_indices(self, element: Expr) -> Expr:
        def simple(part: Expr) -> Expr:
            match part:
                case Load(buffer, indices):
                    return Load(buffer, tuple(self.simplified(i) for i in indices))
                case Op("select", (condition, a, b)) if self.type_of(a) != self.type_of(b):
                    # Integers of 32 and of 64 bits.
                    wide = self.type_of(part)
                    part = Op("select", (condition, self._as(a, wide), self._as(b, wide)))
                case Op() if self._wraps(part):
                    wide = folded(Op(part.name, tuple(self._as(arg, "int64") for arg in part.args)))
                    return folded(Cast("int32", wide))
            return decided(folded(part), self._extents)

        return transform(element, simple)

    def _wraps(self, part: Op) -> bool:
        """Whether arithmetic of int32 positions may leave int32, where all that PyTorch has in 64 bits has 64.

        It is computed in 64 bits and cut: a kernel's own positions and constants may be Python's integers.
        """
        if computed_dtype("int64") != "int64" or part.name not in _RING or self.type_of(part) != "int32":
            return False
        limits = None if has_loads(part) else bounds(part, self._extents)
        return not has_loads(part) and (limits is None or not -(2**31) <= limits[0] <= limits[1] < 2**31)

    def _as(self, expr: Expr, dtype: str) -> Expr:
        if self.type_of(expr) == dtype:
            return expr
        return Const(expr.value, dtype) if isinstance(expr, Const) else Cast(dtype, expr)

    def _name(self, hint: str) -> str:
        name = hint or self.hint
        return unique(name, {*self._buffers, *self.reserved}, "_")

    def _add(
        self, name: str, iters: tuple[Iter, ...], body: Store, init: Store | None, line: SourceLine | None = None
    ) -> None:
        nest: Stmt = Block(name, iters, body, init, origin=name)
        for it in reversed(iters):
            nest = Loop(it.name, it.extent, (nest,))
        self._nests.append(nest)
        line = line or self.line
        if line is not None:
            self.lines[name] = line
        self.within[name] = tuple(dict.fromkeys((*self._read, *self.callers)))
        if self._ties:
            self.ties[name] = dict(self._ties)

    def _told(self) -> list[object]:
        """What tells a stage from others of the same expression: its ties, in the order in which they were noted."""
        return [key if key in OF_EXTREMA else part for key, part in self._ties.items()]

    def _stored(self, buffer: Buffer, dtype: str) -> Value:
        self._buffers[buffer.name] = buffer
        computed = computed_dtype(dtype)
        convert = buffer.dtype in HALVES or (computed in ("int32", "int64") and buffer.dtype not in ("int32", "int64"))

        def at(index: Index) -> Expr:
            element = Load(buffer.name, index)
            return Cast(computed, element) if convert else element

        self._elements.add(at)
        return Value(buffer.shape, dtype, at, plain=True)


def _wrapping(reducer: Reducer, value: Value) -> Value:
    """A folded tensor; sums and products of integers of 8 and 16 bits wrap around."""
    if reducer not in ("sum", "prod") or value.dtype not in NARROW_INTEGERS:
        return value
    return replace(value, at=lambda i: narrowed(value.at(i), value.dtype))


def _positional(iters: tuple[Iter, ...], value: Expr) -> tuple[object, ...]:
    """Iterations and a value over them, without the names of their variables: the same for equal stages."""
    names: dict[str, Expr] = {it.name: Var(f"?{n}") for n, it in enumerate(iters)}
    return tuple((it.extent, it.kind) for it in iters), substitute(value, names)


def _named(iters: tuple[Iter, ...], index: Index) -> dict[str, Expr]:
    return {it.name: e for it, e in zip(iters, index, strict=True)}


def _without_unused(reducer: Reducer, iters: tuple[Iter, ...], term: Expr, dtype: str) -> tuple[tuple[Iter, ...], Expr]:
    """The folded axes that `term` depends on, and the term with the others folded: equal terms n times.

    Tiles fold the axes that a tile has, and a term without one of them has no such tile.
    """
    used = variables(term)
    others = [it.extent for it in iters if it.name not in used]
    if not others or (reducer == "prod" and "float" not in dtype):
        return iters, term
    count: Expr = Const(float(prod(others)) if "float" in dtype else prod(others), dtype)
    if reducer in ("sum", "prod"):
        term = Op("mul" if reducer == "sum" else "pow", (term, count))
    return tuple(it for it in iters if it.name in used), term


def _block(nest: Stmt) -> Block:
    """The only block of a stage's loops."""
    while isinstance(nest, Loop):
        (nest,) = nest.body
    return nest


def _with_axis_names(program: Program) -> Program:
    """The program with one letter per dimension, the same in all its stages."""
    dims = dimensions(program)
    own = [_block(nest) for nest in program.body]
    most = max((sum(it.kind == "spatial" for it in b.iters) for b in own), default=0)
    letters = [*_LEADING[: max(0, most - 2)], *_LETTERS, *(f"axis_{n}" for n in range(1000))]
    free = iter([letter for letter in letters if letter not in {b.name for b in program.buffers}])
    names: dict[Dimension, str] = {}
    return replace(program, body=tuple(_renamed(block, dims, names, free) for block in own))


def _renamed(block: Block, dims: Dimensions, names: dict[Dimension, str], free: Iterator[str]) -> Stmt:
    """The block in its loops, with the names of its dimensions; `names` gets those that it needs first."""
    env: dict[str, Var] = {}
    for it in block.iters:
        dimension = dims.of(block, it.name)
        if dimension not in names or Var(names[dimension]) in env.values():
            names[dimension] = next(free)
        env[it.name] = Var(names[dimension])

    def store(s: Store) -> Store:
        return Store(s.buffer, tuple(substitute(i, env) for i in s.indices), substitute(s.value, env))

    iters = tuple(Iter(env[it.name].name, it.extent, it.kind, env[it.name]) for it in block.iters)
    init = None if block.init is None else store(block.init)
    nest: Stmt = replace(block, iters=iters, body=store(block.body), init=init)
    for it in reversed(iters):
        nest = Loop(it.name, it.extent, (nest,))
    return nest
