"""A program at small sizes: its extents, its indices, and the constants of its masks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from networkx.utils import UnionFind

from neptune_lab.loop_ir import tree
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
    Var,
    children,
    rebuild,
)  # fmt: skip


@dataclass
class Sizes:
    """The new sizes of the definition.

    Args:
        classes: iterations and axes that are one dimension.
        extents: the old extents, by class.
        fixed: classes that keep their extent.
        divided: classes of axes that are read at `iteration // number`, with both; where an axis is read at
            `iteration * number + other`, of the iteration, with the axis and the number.
        remainders: likewise of axes that are read at `iteration % number`, and of the other iteration.
        moved: classes of axes whose last elements are read at `iteration + number`, by the iteration's and the number.
        new: the small extents, by class.
        tiles: the small size of each tile size.
        groups: the small form of a divisor that is the size of an iteration's tiles, by the iteration's class.
    """

    classes: UnionFind
    extents: dict[Any, int]
    fixed: set[Any]
    divided: dict[Any, tuple[Any, int]]
    remainders: dict[Any, tuple[Any, int]]
    moved: dict[tuple[Any, int], Any]
    new: dict[Any, int] = field(default_factory=dict)
    tiles: dict[int, int] = field(default_factory=dict)
    groups: dict[Any, int] = field(default_factory=dict)

    def of(self, key: Any) -> Any:
        return self.classes[key]

    def divisor(self, it: Any, by: int) -> int:
        """The small form of `by` in `iteration // by` and `iteration % by`, of an iteration of this class."""
        if it in self.groups:
            return self.groups[it]
        return min((self.new[c] for c, of in self.remainders.items() if of == (it, by)), default=min(2, by))

    def offset(self, it: Any, by: int) -> int:
        """The small form of `by` in an index `iteration + by`, of an iteration of this class."""
        axis = self.moved.get((it, by))
        return by if axis is None else self.new[axis] - self.new[it]


def at_small_sizes(program: Program, sizes: Sizes) -> Program:
    """The program with the new extents of iterations and buffers, indices (`new_index`) and constants (`new_value`)."""

    def size(key: Any, old: int) -> int:
        """The new size; a dimension that keeps its size may be one of several, such as a row and one more element."""
        c = sizes.of(key)
        return old if c in sizes.fixed else sizes.new[c]

    def statement(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            iters = tuple(replace(it, extent=size(("iter", stmt.name, it.name), it.extent)) for it in stmt.iters)
            body = replace(
                stmt.body,
                indices=tuple(new_index(i, stmt, sizes) for i in stmt.body.indices),
                value=new_value(stmt.body.value, stmt, sizes),
            )
            return replace(stmt, iters=iters, body=body)
        block = tree.blocks_under(stmt)[0]
        driven = next((it for it in block.iters if it.binding == Var(stmt.var)), None)
        extent = stmt.extent if driven is None else size(("iter", block.name, driven.name), stmt.extent)
        return replace(stmt, extent=extent, body=tuple(statement(s) for s in stmt.body))

    buffers = tuple(
        replace(b, shape=tuple(size(("axis", b.name, n), old) for n, old in enumerate(b.shape)))
        for b in program.buffers
    )
    return replace(program, buffers=buffers, body=tuple(statement(s) for s in program.body))


def new_index(index: Expr, block: Block, sizes: Sizes) -> Expr:
    """An index of the small program: the divisor of a digit of an iteration, and how far one is moved, follow from the
    new extents."""
    match index:
        case Op("floordiv" | "floormod" as digit, (Var(name), Const(int(by)))):
            it = sizes.of(("iter", block.name, name))
            if sizes.new[it] != sizes.extents[it]:
                return Op(digit, (Var(name), Const(sizes.divisor(it, by))))
        case Op("add", (Op("mul", (Var(high), Const(int(by)))), Var(low))) if block.iter(low).extent == by:
            it = sizes.of(("iter", block.name, low))
            return Op("add", (Op("mul", (Var(high), Const(sizes.new[it]))), Var(low)))
        case Op("add", (Var(name), Const(int(by), dtype))):
            return Op("add", (Var(name), Const(sizes.offset(sizes.of(("iter", block.name, name)), by), dtype)))
    return index


def new_value(e: Expr, block: Block, sizes: Sizes) -> Expr:
    """The value with the integer constants of masks changed to the new sizes, and indices as in `new_index`."""
    match e:
        case Load(buffer, indices):
            return Load(buffer, tuple(new_index(i, block, sizes) for i in indices))
        case Previous() | Var():
            return e
        case Op("lt" | "le" | "gt" | "ge", (Var(name), Const())) if sizes.of(("iter", block.name, name)) in sizes.fixed:
            return e
        case Const(value, dtype) if dtype.startswith("int") and not isinstance(value, bool):
            return Const(new_constant(int(value), sizes), dtype)
        case Cast(dtype, Const(value, inner)):
            return e if not inner.startswith("int") else Cast(dtype, Const(new_constant(int(value), sizes), inner))
    return rebuild(e, tuple(new_value(c, block, sizes) for c in children(e)))


def new_constant(value: int, sizes: Sizes) -> int:
    """An integer constant of a mask: an extent or difference of two stays one; others keep their position in a tile."""
    size = abs(value)
    if size <= 2:
        return value
    sign = 1 if value > 0 else -1
    moved = [(n, sizes.new[c]) for c, n in sizes.extents.items() if sizes.new[c] != n]
    for old, new in moved:
        for offset in (0, 1, -1):
            if size == old + offset:
                return sign * (new + offset)
    for old, new in moved:
        for other, small in moved:
            if size == old - other:
                return sign * abs(new - small)
    if not moved:
        return value
    largest = max(sizes.tiles, default=0)
    if not largest or sizes.tiles[largest] == largest:
        return value
    t = sizes.tiles[largest]
    whole, rest = divmod(size, largest)
    return sign * max(1, min(whole, 1) * t + (max(1, min(t - 1, rest * t // largest)) if rest else 0))


def new_factor(extent: int, factor: int, small: int, sizes: Sizes) -> int:
    """The factor that cuts a loop of `small` iterations, in place of `factor` for one of `extent`."""
    if extent == small:
        return factor
    if factor >= extent:
        if factor == extent:
            return small
        return 1 << small.bit_length() if factor & (factor - 1) == 0 else small + 1
    if factor in sizes.tiles and sizes.tiles[factor] < small:
        return sizes.tiles[factor]
    if factor == 1:
        return 1
    exact = extent % factor == 0
    options = [f for f in range(2, small) if (small % f == 0) == exact] or list(range(1, small)) or [1]
    wanted = small * factor / extent
    return min(options, key=lambda f: abs(f - wanted))
