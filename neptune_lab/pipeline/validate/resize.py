"""A scheduled program at small sizes: the same loops and blocks, with every size in it replaced.

The loops keep their order, the blocks their stores, conditions and places; only numbers change: extents of loops,
factors in the bindings of iterations, ends in predicates, shapes of tensors, and constants of masks, which change as in
the small definition.  So the program that is run is the kernel's own, and not one that the steps make of a small
definition.  The position of a number gives its meaning (the extent of a loop that an iteration of a known dimension is
bound to, the factor of a loop in a binding); a number whose position does not give one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.annotations import HINTS
from neptune_lab.loop_ir.nodes import (
    Block,
    Buffer,
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
    children,
    rebuild,
)
from neptune_lab.loop_ir.verify import verify
from neptune_lab.loop_ir.walks import loads, substitute, variables
from neptune_lab.loop_schedule.schedule import Applied, Schedule
from neptune_lab.operators import Operator
from neptune_lab.pipeline.validate.affine import Term, factors, products, strides_of, unclear, with_strides
from neptune_lab.pipeline.validate.replay import small_operator
from neptune_lab.pipeline.validate.sizes import Plan
from neptune_lab.pipeline.validate.small_program import new_constant, new_factor


class ResizedSchedule(Schedule):
    """A schedule whose program was resized, and not made by steps; its history is that of the large program."""

    def __init__(self, operator: Operator, program: Program, history: Iterable[Applied] = ()) -> None:
        super().__init__(operator)
        self._applied = list(history)
        self._program = program

    @property
    def program(self) -> Program:
        return self._program


def resized_schedule(scheduled: Schedule, planned: Plan) -> ResizedSchedule:
    """The schedule's program at the sizes of `planned`, legal for its small definition.

    Raises:
        ScheduleError: a number's position does not give its meaning, or the program is not legal at small sizes.
    """
    program = resized(scheduled.program, scheduled.base, planned)
    verify(program, planned.base)
    return ResizedSchedule(small_operator(scheduled.operator, planned.definition), program, scheduled.history)


def resized(program: Program, definition: Program, planned: Plan) -> Program:
    """`program` at small sizes.

    Args:
        program: scheduled, at the sizes of `definition`.
        definition: what it computes, after the normalisations (`Schedule.base`).

    Raises:
        ScheduleError: a number's position does not give its meaning.
    """
    return _Resizer(program, definition, planned).program()


# A loop: its path in the tree. Loops of one name may differ.
_Loops = dict[tree.Path, int]


class _Resizer:
    def __init__(self, program: Program, definition: Program, planned: Plan) -> None:
        self.old, self.sizes, self.small = program, planned.sizes, planned.base
        self.large = {b.name: b for b in definition.buffers}
        self.paths = {s.name: path for path, s, _ in tree.statements(program) if isinstance(s, Block)}
        self.loops = {s.name: loops for _, s, loops in tree.statements(program) if isinstance(s, Block)}
        self.extents: _Loops = {}
        self.iters: dict[tuple[str, str], int] = {}
        # The elements of a dimension in terms of loops, as factors, by block; with the old extent and the small one.
        self.ends: dict[tuple[str, frozenset[tuple[str, int]]], dict[int, int]] = {}
        self.buffers: dict[str, Buffer] = {}

    def program(self) -> Program:
        blocks = tree.blocks(self.old)
        for block in blocks:
            for it in block.iters:
                size = self.dimension(block, it)
                if size is not None:
                    self.iters[block.name, it.name] = size
                    self.bind(block, it.binding, it.extent, size)
            self.bind_parts(block)
        for block in blocks:
            for it in block.iters:
                if (block.name, it.name) not in self.iters:
                    self.iters[block.name, it.name] = self.made(block, it)
            self.shape(block)
        body = tuple(self.statement(s, (n,)) for n, s in enumerate(self.old.body))
        return replace(self.old, buffers=tuple(self.buffer(b) for b in self.old.buffers), body=body)

    # -- extents ------------------------------------------------------------------------------------------------

    def dimension(self, block: Block, it: Iter) -> int | None:
        """The small extent of an iteration along a dimension of the definition; None if it is not one."""
        small = set()
        for key in self.keys(block, it):
            if key in self.sizes.classes.parents:
                c = self.sizes.of(key)
                if self.sizes.extents[c] == it.extent:
                    small.add(self.sizes.new[c])
        if len(small) > 1:
            unclear(block, f"iteration {it.name!r} runs along dimensions of sizes {sorted(small)}")
        return small.pop() if small else None

    def keys(self, block: Block, it: Iter) -> Iterator[tuple[str, str, str | int]]:
        """The keys of an iteration in the definition: of an iteration of its stage, and of axes that it indexes."""
        yield "iter", block.origin or block.name, it.name
        accesses = [(block.writes, block.body.indices), *((r.buffer, r.indices) for r in loads(block.body.value))]
        for name, indices in accesses:
            if name in self.large and len(indices) == len(self.large[name].shape):
                for axis, index in enumerate(indices):
                    if index == Var(it.name):
                        yield "axis", name, axis

    def bind_parts(self, block: Block) -> None:
        """Small extents of loops that run along a dimension together, as iterations for the tile and in the tile."""
        bindings = {it.name: it.binding for it in block.iters}
        for read in loads(block.body.value):
            if read.buffer in self.large and len(read.indices) == len(self.large[read.buffer].shape):
                for axis, index in enumerate(read.indices):
                    if isinstance(index, Op) and index.name == "add" and not isinstance(index.args[1], Const):
                        c = self.sizes.of(("axis", read.buffer, axis))
                        self.bind(block, substitute(index, bindings), self.sizes.extents[c], self.sizes.new[c])

    def terms(self, block: Block, e: Expr, extents: Mapping[str, int] | None = None) -> list[Term]:
        """The variables of a sum, the one with the smallest stride first: each stride is the product of the extents
        before it.

        Args:
            extents: of the variables; default: the loops around the block.
        """
        if extents is None:
            extents = {x.var: x.extent for x in self.loops[block.name]}
        ordered = sorted((Term(v, s, extents[v]) for v, s in strides_of(block, e)), key=lambda t: (t.stride, -t.extent))
        stride = 1
        for term in ordered:
            if term.stride != stride and term.extent > 1:
                unclear(block, f"loop {term.var!r} has factor {term.stride} in a binding, not {stride}")
            stride *= term.extent
        return ordered

    def bind(self, block: Block, binding: Expr, extent: int, size: int) -> None:
        """Small extents of the loops that run along a dimension together: as many tiles as cover it, as the loops of
        the large program cover it.

        Args:
            binding: the element of the dimension in terms of loops.
            extent: of the dimension; `size`: at small sizes.
        """
        self.ends.setdefault((block.name, factors(block, binding)), {})[extent] = size
        terms = [t for t in self.terms(block, binding) if t.extent > 1]
        left, small = extent, size
        for n, term in enumerate(terms):
            if n == len(terms) - 1:
                new = small if term.extent == left else new_factor(left, term.extent, small, self.sizes)
                if term.extent < left:
                    unclear(block, f"loop {term.var!r} does not cover a dimension of {extent} elements")
            elif n == 1:  # tiles of each part
                new = min(term.extent, 2)
            else:
                new = new_factor(left, term.extent, small, self.sizes)
            self.set(block, term.var, new)
            left, small = -(-left // term.extent), -(-small // new)
        for term in self.terms(block, binding):
            if term.extent == 1:
                self.set(block, term.var, 1)

    def set(self, block: Block, var: str, extent: int) -> None:
        known = self.extents.setdefault(self.path(block, var), extent)
        if known != extent:
            unclear(block, f"loop {var!r} would have {known} and {extent} iterations")

    def path(self, block: Block, var: str) -> tree.Path:
        loops = self.loops[block.name]
        return self.paths[block.name][: 1 + tree.depth_of(loops, var)]

    def new(self, block: Block, var: str) -> int:
        """The small extent of a loop."""
        loop = next(x for x in self.loops[block.name] if x.var == var)
        small = 1 if loop.extent == 1 else self.extents.get(self.path(block, var))
        return unclear(block, f"no dimension is known for loop {var!r}") if small is None else small

    def made(self, block: Block, it: Iter) -> int:
        """The small extent of an iteration that the schedule made, such as one over tiles: that of the axis that it
        reads, or what its loops cover."""
        for read in loads(block.body.value):
            if read.buffer in self.buffers and Var(it.name) in read.indices:
                axis = read.indices.index(Var(it.name))
                if self.old.buffer(read.buffer).shape[axis] == it.extent:
                    size = self.buffers[read.buffer].shape[axis]
                    if isinstance(it.binding, Var):
                        self.set(block, it.binding.name, size)
                    return size
        terms = self.terms(block, it.binding)
        if prod(t.extent for t in terms) != it.extent:
            unclear(block, f"iteration {it.name!r} is neither a dimension nor all of its loops")
        return prod(self.new(block, t.var) for t in terms)

    # -- tensors ------------------------------------------------------------------------------------------------

    def shape(self, block: Block) -> None:
        """The small shape of a tensor that the schedule made, from a block that writes it."""
        name = block.writes
        if name in self.large:
            return
        buffer = self.old.buffer(name)
        shape = tuple(self.axis(block, index, n) for index, n in zip(block.body.indices, buffer.shape, strict=True))
        if self.buffers.setdefault(name, replace(buffer, shape=shape)).shape != shape:
            unclear(block, f"tensor {name!r} would have two shapes")

    def axis(self, block: Block, index: Expr, size: int) -> int:
        if isinstance(index, Var) and block.iter(index.name).extent == size:
            return self.iters[block.name, index.name]
        if not variables(index) and size <= 2:
            return size
        return unclear(block, f"an axis of {size} elements of {block.writes!r} is not one iteration")

    def buffer(self, buffer: Buffer) -> Buffer:
        if buffer.name in self.buffers:
            return self.buffers[buffer.name]
        if buffer.name not in self.large or buffer.shape != self.large[buffer.name].shape:
            raise ScheduleError(f"the sizes of tensor {buffer.name!r} are not known", help="replay the steps")
        return replace(buffer, shape=self.small.buffer(buffer.name).shape)

    # -- statements ---------------------------------------------------------------------------------------------

    def statement(self, stmt: Stmt, path: tree.Path) -> Stmt:
        if isinstance(stmt, Block):
            return self.block(stmt)
        extent = self.extents.get(path, stmt.extent)
        if stmt.extent > 1 and path not in self.extents:
            unclear(tree.blocks_under(stmt)[0], f"no dimension is known for loop {stmt.var!r}")
        body = tuple(self.statement(s, (*path, n)) for n, s in enumerate(stmt.body))
        return replace(stmt, extent=extent, body=body, annotations=_semantic(stmt))

    def block(self, block: Block) -> Block:
        iters = tuple(
            replace(it, extent=self.iters[block.name, it.name], binding=self.affine(block, it.binding))
            for it in block.iters
        )
        return replace(
            block,
            iters=iters,
            body=self.store(block, block.body),
            init=None if block.init is None else self.store(block, block.init),
            predicates=tuple(self.predicate(block, p) for p in block.predicates),
        )

    def affine(self, block: Block, e: Expr) -> Expr:
        """A binding with the factors that its loops have at small sizes."""
        return with_strides(e, products((t.var, self.new(block, t.var)) for t in self.terms(block, e)), 1)

    def predicate(self, block: Block, p: Expr) -> Expr:
        match p:
            case Op("lt", (left, Const(int(end), dtype))):
                ends = self.ends.get((block.name, factors(block, left)), {})
                if end in ends:
                    return Op("lt", (self.affine(block, left), Const(ends[end], dtype)))
        return unclear(block, "a predicate is not the end of a dimension")

    def elements(self, block: Block, it: Iter, count: int) -> int:
        """How many elements of an iteration, `count` in the large program, are in one iteration of one of its loops."""
        if count == it.extent:
            return self.iters[block.name, it.name]
        terms = self.terms(block, it.binding)
        strides = products((t.var, self.new(block, t.var)) for t in terms)
        for term in terms:
            if term.stride == count and term.extent > 1:
                return strides[term.var]
        return unclear(block, f"no loop has {count} elements of {it.name!r} in each iteration")

    def store(self, block: Block, store: Store) -> Store:
        return Store(
            store.buffer,
            tuple(self.index(block, i, store.buffer) for i in store.indices),
            self.value(block, store.value),
        )

    def index(self, block: Block, index: Expr, buffer: str) -> Expr:
        """An index of a tensor; iterations of groups keep few elements in each, as in the definition."""
        match index:
            case Var():
                return index
            case Op("floordiv" | "floormod" as digit, (Var(name), Const(int(by), dtype))):
                if self.iters[block.name, name] == block.iter(name).extent:
                    return index
                if buffer in self.large:
                    return Op(digit, (Var(name), Const(self.divisor(block, name, by), dtype)))
                if digit == "floordiv":
                    small = self.elements(block, block.iter(name), by)
                    return Op(digit, (Var(name), Const(small, dtype)))
            case Op("add", (Var(name), Const(int(by), dtype))) if buffer in self.large:
                of = self.known(block, name, f"to which {by} is added")
                return Op("add", (Var(name), Const(self.sizes.offset(of, by), dtype)))
        if any(self.iters[block.name, name] != block.iter(name).extent for name in variables(index)):
            return self.position(block, index)
        return rebuild(index, tuple(self.value(block, c) for c in children(index)))

    def divisor(self, block: Block, name: str, by: int) -> int:
        return self.sizes.divisor(self.known(block, name, f"which is divided by {by}"), by)

    def known(self, block: Block, name: str, what: str) -> Any:
        """The class of an iteration."""
        key = "iter", block.origin or block.name, name
        if key not in self.sizes.classes.parents:
            unclear(block, f"iteration {name!r}, {what}, is no dimension of the definition")
        return self.sizes.of(key)

    def position(self, block: Block, e: Expr) -> Expr:
        """A sum of iterations, of a tile and in it, with the factors that they have at small sizes."""
        terms = self.terms(block, e, {it.name: it.extent for it in block.iters})
        return with_strides(e, products((t.var, self.iters[block.name, t.var]) for t in terms), 1)

    def is_position(self, block: Block, e: Expr) -> bool:
        """Whether a sum of iterations is the element of a dimension."""
        try:
            loops = factors(block, substitute(e, {it.name: it.binding for it in block.iters}))
        except ScheduleError:
            return False
        return (block.name, loops) in self.ends

    def value(self, block: Block, e: Expr) -> Expr:
        """A value with the whole numbers of masks made to fit, as in the small definition."""
        match e:
            case Load() | Previous():
                return rebuild(e, tuple(self.index(block, i, e.buffer) for i in e.indices))
            case Const(value, dtype) if dtype.startswith("int") and not isinstance(value, bool):
                return Const(new_constant(int(value), self.sizes), dtype)
            case Op("add", (Op("mul"), _)) if self.is_position(block, e):
                return self.position(block, e)
            case Op("mul", args) if any(isinstance(a, Const) and a.dtype.startswith("int") for a in args):
                unclear(block, "it computes with how many elements were folded, or with positions")
        return rebuild(e, tuple(self.value(block, c) for c in children(e)))


def _semantic(loop: Loop) -> tuple[tuple[str, str | int], ...]:
    """The annotations of a loop that change its results."""
    return tuple((key, value) for key, value in loop.annotations if key not in HINTS)


__all__ = ["ResizedSchedule", "resized", "resized_schedule"]
