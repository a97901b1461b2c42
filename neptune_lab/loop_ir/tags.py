"""Values at every tag: runs a small program in plain Python and records every write with the values that it read.

The *tag* of a write is the iteration of its loops (paper, section 3.1: `xmax` at iteration j is written m⟨j⟩).  Each
read of a computed tensor is recorded with the write that made the value, and with its state:

    final      the element is complete: nothing is accumulated into it afterwards
    carried    the reader is a part of the reduction itself, which continues from its own value
    early      the element is not complete: a broken dependence of naive fusion
    repaired   the element is not complete, but a repair term corrects the reader, or all readers of its result

`tag_table` shows the record as a table, rows of elements by columns of iterations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Previous, Program, Stmt, Store, Var
from neptune_lab.loop_ir.run import initial_arrays
from neptune_lab.loop_ir.tag_events import Index, Number, Read, RepairValue, Tag, Write, classify, origin
from neptune_lab.loop_ir.tree import blocks, stores
from neptune_lab.loop_ir.walks import loads
from neptune_lab.scalar_ops import NUMPY, Functions, python_operator


@dataclass(frozen=True, eq=False)
class TagTrace:
    """A run: all writes in order, and the final values of each buffer."""

    program: Program
    events: tuple[Write, ...]
    values: dict[str, np.ndarray]

    def writes(self, buffer: str, index: Index | None = None) -> tuple[Write, ...]:
        """The writes to a buffer, or to one element of it, in order."""
        return tuple(w for w in self.events if w.buffer == buffer and index in (None, w.index))

    def early(self) -> tuple[tuple[Write, Read], ...]:
        """All early reads, each with the write that uses it."""
        return tuple((w, r) for w in self.events for r in w.reads if r.state == "early")

    def tag(self, read: Read) -> Tag | None:
        """The tag at which the value of `read` was written; None for a start value."""
        return None if read.written_at is None else self.events[read.written_at].loops


def record(program: Program, inputs: dict[str, np.ndarray], *, limit: int = 200_000) -> TagTrace:
    """Runs a small program and records every write.

    Args:
        program: any loop program; thread axes run as plain loops.
        inputs: one array for each input, by name, cast to the input's dtype; shapes must match.
        limit: the largest number of stores; a larger program is refused.

    Raises:
        ScheduleError: the program is too large, an input is missing or has another shape, or an index is outside its
            buffer.
    """
    _check_size(program, limit)
    machine = _Machine(program, inputs)
    with np.errstate(all="ignore"):
        for stmt in program.body:
            machine.run(stmt, {})
    return TagTrace(program, classify(program, machine.events), machine.arrays)


def values_of_part(
    program: Program, inputs: dict[str, np.ndarray], terms: Mapping[str, int], *, limit: int = 200_000
) -> dict[str, np.ndarray]:
    """The final values of a small program's buffers if some of its reductions stop early.

    Args:
        terms: a reduction's block -> how many terms are folded into each element; other reductions fold all.
        program, inputs, limit: as in `record`.
    """
    _check_size(program, limit)
    machine = _Machine(program, inputs, terms)
    with np.errstate(all="ignore"):
        for stmt in program.body:
            machine.run(stmt, {})
    return machine.arrays


def _check_size(program: Program, limit: int) -> None:
    count = stores(program)
    if count > limit:
        raise ScheduleError(
            f"{program.name} runs {count:,} stores, the tag recorder takes at most {limit:,}",
            help="record it on smaller shapes, or raise limit",
        )


# -- running -----------------------------------------------------------------------------------------------


def _on_scalars(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns a scalar of its operand's dtype where NumPy returns an array without axes."""

    def call(*args: Any) -> Any:
        value = function(*args)
        return type(args[0])(value) if isinstance(value, np.ndarray) else value

    return call


# Python's operators keep Python's integers.
_FUNCTIONS = Functions(lambda row: python_operator(row) or _on_scalars(NUMPY[row.name]))


def _number(value: Any, dtype: str) -> Any:
    """A scalar of the dtype; integers and conditions are Python's own."""
    if dtype == "bool":
        return bool(value)
    if dtype.startswith(("int", "uint")):
        return int(value)
    try:
        return np.dtype(dtype).type(value)
    except TypeError as error:
        raise ScheduleError(
            f"the tag recorder does not know the dtype {dtype!r}", help="record tags of the operator in float32"
        ) from error


class _Machine:
    """One run; the states of its reads are not yet known. `terms`: as in `values_of_part`."""

    def __init__(self, program: Program, inputs: dict[str, np.ndarray], terms: Mapping[str, int] | None = None) -> None:
        self.terms = terms or {}
        self.taken: dict[tuple[str, Index], int] = defaultdict(int)
        self.inputs = set(program.inputs)
        self.arrays = initial_arrays(program, inputs)
        self.events: list[Write] = []
        self.last: dict[tuple[str, Index], int] = {}
        self.reads: list[Read] = []
        origins: dict[str, set[str]] = defaultdict(set)
        for block in blocks(program):
            origins[block.writes].add(origin(block))
        self.repairs = {b.name: repair_term(b, origins) for b in blocks(program)}

    def run(self, stmt: Stmt, env: dict[str, int]) -> None:
        if isinstance(stmt, Block):
            self.block(stmt, env)
            return
        for value in range(stmt.extent):
            inner = {**env, stmt.var: value}
            for child in stmt.body:
                self.run(child, inner)

    def block(self, block: Block, env: dict[str, int]) -> None:
        if not all(self.expr(p, env) for p in block.predicates):
            return
        values = {it.name: int(self.expr(it.binding, env)) for it in block.iters}
        reduces = tuple((it.name, values[it.name]) for it in block.iters if it.kind == "reduce")
        loops = tuple(env.items())
        if block.name in self.terms:
            element = (block.name, self.index(block.writes, block.body.indices, values))
            if self.taken[element] >= self.terms[block.name]:
                return
            self.taken[element] += 1
        if block.init is not None and all(value == 0 for _, value in reduces):
            self.store(block.name, block.init, values, loops, reduces, init=True)
        term = self.repairs[block.name]
        repair = None
        if term is not None:
            self.reads = []
            value = _as_python_number(self.expr(term, values))
            repair = RepairValue(value, tuple(self.reads))
        self.store(block.name, block.body, values, loops, reduces, repair=repair)

    def store(
        self,
        block: str,
        store: Store,
        env: dict[str, int],
        loops: Tag,
        reduces: Tag,
        *,
        init: bool = False,
        repair: RepairValue | None = None,
    ) -> None:
        self.reads = []
        value = self.expr(store.value, env)
        reads = tuple(self.reads)
        index = self.index(store.buffer, store.indices, env)
        array = self.arrays[store.buffer]
        array[index] = value
        step = len(self.events)
        self.last[store.buffer, index] = step
        stored = _as_python_number(array[index])
        self.events.append(Write(step, block, store.buffer, index, stored, init, loops, reduces, reads, repair))

    def index(self, buffer: str, indices: tuple[Expr, ...], env: dict[str, int], back: int = 0) -> Index:
        index = tuple(int(self.expr(i, env)) for i in indices)
        if back:
            index = (index[0] - back, *index[1:])
        shape = self.arrays[buffer].shape
        if len(index) != len(shape) or not all(0 <= i < n for i, n in zip(index, shape, strict=True)):
            raise ScheduleError(
                f"{buffer}{list(index)} is outside {buffer}, whose shape is {list(shape)}",
                help="an index that is read from an input must name an element of the tensor: check the input's values",
            )
        return index

    def expr(self, expr: Expr, env: dict[str, int]) -> Any:
        match expr:
            case Var(name):
                return env[name]
            case Const(value, dtype):
                return _number(value, dtype)
            case Load(buffer, indices):
                return self.load(buffer, self.index(buffer, indices, env), previous=False)
            case Previous(buffer, (tag, *rest), initial):
                if int(self.expr(tag, env)) > 0:
                    return self.load(buffer, self.index(buffer, expr.indices, env, back=1), previous=True)
                start = self.expr(initial, env)
                place = (-1, *(int(self.expr(i, env)) for i in rest))
                self.reads.append(Read(buffer, place, _as_python_number(start), None, True, "carried"))
                return start
            case Op("select", (condition, yes, no)):
                return self.expr(yes if self.expr(condition, env) else no, env)
            case Op("and", (a, b)):
                return bool(self.expr(a, env)) and bool(self.expr(b, env))
            case Op("or", (a, b)):
                return bool(self.expr(a, env)) or bool(self.expr(b, env))
            case Op(name, args):
                return _FUNCTIONS[name](*[self.expr(a, env) for a in args])
            case Cast(dtype, arg):
                return _number(self.expr(arg, env), dtype)
        raise AssertionError(expr)

    def load(self, buffer: str, index: Index, *, previous: bool) -> Any:
        value = self.arrays[buffer][index]
        if buffer not in self.inputs:
            read = Read(buffer, index, _as_python_number(value), self.last.get((buffer, index)), previous, "final")
            self.reads.append(read)
        return value if isinstance(value, np.floating) else value.item()


def _as_python_number(value: Any) -> Number:
    """A scalar as a Python number; exact, since float64 holds all narrower floats."""
    return value.item() if isinstance(value, np.generic) else value


def repair_term(block: Block, origins: dict[str, set[str]]) -> Expr | None:
    """The factor by which a repaired block multiplies a partial value of its own stage; all of h if it is no product.

    Rolling update repairs the carried value, `X = h(X, …) (f) term`; split-k the local one, `X = X (f) h(X_local, …)`.

    Args:
        block: any block.
        origins: for each buffer, the stages of the blocks that write it.

    Returns:
        None if the block has no repair.
    """
    if block.repair is None:
        return None

    def own(e: Expr) -> bool:
        return isinstance(e, Load | Previous) and origin(block) in origins[e.buffer]

    match block.body.value:
        case Op(_, (left, right)):
            h = right if own(left) else left
            match h:
                case Op("mul", (factor, value)) if own(value):
                    return factor
            if not own(h) and any(own(read) for read in loads(h)):
                return h
    return Const(1.0, "float32")


__all__ = ["Read", "RepairValue", "TagTrace", "Write", "record"]
