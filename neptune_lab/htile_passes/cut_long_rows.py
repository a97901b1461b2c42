"""Cuts a row that one tile holds into pieces, so that few lanes are left without an element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.aligned import AT_ONCE, end_of, head_of, steps_of
from neptune_lab.htile.shapes import dtype_of, identity_literal, shape_of
from neptune_lab.htile.walk import (
    expressions,
    is_exception,
    reads,
    simplify,
    stores,
    subexpressions,
    tile_dims,
    with_body,
)
from neptune_lab.htile.walk import rewrite as rewrite_tile
from neptune_lab.htile_passes.rewrite import combining, fresh_name, tile_pass
from neptune_lab.power_of_two import power_of_two
from neptune_lab.strict.dtypes import itemsize

# Rows of fewer elements stay whole.
SHORTEST = 1024
# The elements of all rows together from which on a vector along them is copied for each place where a row may begin.
MANY_ELEMENTS = 1 << 24
# The least elements of a piece per lane; of programs of so many warps, twice as many where that fits the row.
OF_A_LANE, MANY_WARPS = 4, 32

_DTYPES = ("float32", "float64", "int32", "int64")


@tile_pass(after="longest_first")
def cut_long_rows(program: ir.Program) -> ir.Program:
    """Before => after, for a row of 2500 elements in pieces of 512:

        s[i] = reduce(max, float32(x[i, 0:2500]), dim=0)
        y[i, 0:2500] = x[i, 0:2500] - s[i]
        =>
        s_part[0:512] = max(float32(x[i, 0:512]), float32(x[i, 512:1024]))
        s_part[0:512] = max(s_part[0:512], float32(x[i, 1024:1536]))                                  (and so on)
        s_part[0:512] = max(s_part[0:512], where(iota[2048:2560] < 2500, float32(x[i, 2048:2560]), -inf))
        s[i] = reduce(max, s_part[0:512], dim=0)
        y[i, 0:512] = x[i, 0:512] - s[i]                                                              (and so on)

    A tile has a power of two of elements, so 2500 of them would be computed as 4096.  All pieces stay in registers from
    their load to their store, and each reduction is one of a piece.  A row that is computed and held on chip, such as
    the weights of a softmax, becomes a tile per piece.  Only of kernels without products, whose loops are exceptions
    (`squares_without_scale`).
    """
    cutter = _Cutter(program)
    kernels = tuple(cutter.kernel(kernel) for kernel in program.kernels)
    if not cutter.tensors:
        return program
    whole = {row for row, _, _ in cutter.held}
    kept = tuple(tensor for tensor in program.tensors if tensor.name not in whole)
    return replace(program, kernels=kernels, tensors=(*kept, *cutter.tensors))


@dataclass(frozen=True, slots=True)
class Pieces:
    """A row of `extent` elements in pieces of `size`, the last of which may reach past its end.

    Args:
        extent: elements of the row.
        size: elements of a piece.
        head: elements before the first piece, of rows that do not begin at a multiple of `block` elements in memory:
            less than a block.  Pieces then have whole blocks, and two *edges* of one block each have the elements of
            the head, and those behind the last whole block.
        block: elements that are loaded at once.
    """

    extent: int
    size: int
    head: ir.IndexExpr | None = None
    block: int = 1

    @property
    def count(self) -> int:
        """The number of pieces."""
        return -(-(self.extent // self.block * self.block) // self.size)

    @property
    def end(self) -> ir.IndexExpr:
        """Where the elements behind the last whole block begin."""
        assert self.head is not None
        return end_of(self.extent, self.head, self.block)

    @property
    def starts(self) -> tuple[ir.IndexExpr, ...]:
        """The first element of each piece."""
        first = [ir.Int(n * self.size) for n in range(self.count)]
        return tuple(first if self.head is None else (ir.Arith("+", self.head, at) for at in first))

    @property
    def edges(self) -> tuple[ir.IndexExpr, ...]:
        """The first element of each edge."""
        return () if self.head is None else (ir.Int(0), self.end)

    def left(self, n: int) -> ir.IndexExpr | None:
        """How many elements piece `n` has; None if all of its lanes have one."""
        if (n + 1) * self.size <= self.extent - 2 * (self.block - 1):
            return None
        if self.head is None:
            return ir.Int(self.extent - n * self.size)
        behind = ir.Arith("//", ir.Arith("-", ir.Int(self.extent), self.head), ir.Int(self.block))
        return ir.Arith("-", ir.Arith("*", behind, ir.Int(self.block)), ir.Int(n * self.size))

    def of_edge(self, n: int) -> ir.IndexExpr:
        """How many elements an edge has."""
        assert self.head is not None
        return ir.Arith("-", ir.Int(self.extent), self.end) if n else self.head

    def is_row(self, index: object) -> bool:
        """Whether an index is the whole row."""
        return isinstance(index, ir.Slice) and index.extent == self.extent

    def tile(self, expr: ir.TileExpr, start: ir.IndexExpr, extent: int) -> ir.TileExpr:
        """A tile of the elements from `start` on."""

        def visit(node: ir.TileExpr) -> ir.TileExpr:
            if isinstance(node, ir.Access) and any(map(self.is_row, node.index)):
                return replace(node, index=self.cut(node.index, start, extent))
            if isinstance(node, ir.Iota) and any(map(self.is_row, node.index)):
                return replace(node, index=self.cut(node.index, start, extent))
            return node

        return rewrite_tile(expr, visit)

    def cut(self, index: tuple[Any, ...], start: ir.IndexExpr, extent: int) -> tuple[Any, ...]:
        """An index with the elements from `start` on instead of the row."""
        return tuple(replace(i, start=start, extent=extent) if self.is_row(i) else i for i in index)


def pieces_of(extent: int, warps: int, head: ir.IndexExpr | None = None, block: int = 1) -> Pieces | None:
    """How a row is cut; None if it stays whole.

    >>> pieces_of(2500, 2).size, pieces_of(4096, 4), pieces_of(57344, 32).size, pieces_of(50000, 32).size
    (512, None, 8192, 4096)
    """
    whole = power_of_two(extent)
    for count in (8, 16) if warps < 16 else (16,):
        size = max(whole // count, 32 * warps * max(OF_A_LANE, block))
        if warps >= MANY_WARPS and size == 32 * warps * OF_A_LANE and extent % (2 * size) == 0:
            size *= 2  # (16 bytes at once: on an H200 layer_norm of 2000 x 57344 takes 137 us so, and 151 without)
        pieces = Pieces(extent, size, head, block)
        if extent >= SHORTEST and size < whole and (head is not None or pieces.count * size < whole):
            return pieces
    return None


def head_of_rows(program: ir.Program, kernel: ir.Kernel, extent: int) -> tuple[ir.IndexExpr | None, int]:
    """The head of the rows of a kernel, and the elements of a block, if the rows of all tensors have one and the same;
    None and 1 if they have none, or a statement has several rows in a tile, or there is a vector along few rows, which
    `shift_vectors` copies.

    Args:
        extent: elements of a row.
    """
    row = Pieces(extent, extent)
    own = (stmt for stmt in kernel.body if isinstance(stmt, ir.Store))
    read = [a for s in own for a in (s.target, *reads(s))]
    rows = [a for a in read if any(map(row.is_row, a.index))]
    if not rows or any(len(tile_dims(a.index)) > 1 for a in rows):
        return None, 1
    if any(not row.is_row(a.index[-1]) for a in rows):
        return None, 1
    vectors = [a for a in rows if len(a.index) == 1]
    rows = [a for a in rows if len(a.index) > 1]
    count = prod(axis.extent for axis in kernel.grid)
    if not rows or (vectors and count * extent < MANY_ELEMENTS):
        return None, 1
    tensors = [program.tensor(a.tensor) for a in rows]
    block = AT_ONCE // min(itemsize(t.dtype) for t in tensors)
    heads = {head_of(a, steps_of(t), block) for a, t in zip(rows, tensors, strict=True)}
    return (heads.pop(), block) if len(heads) == 1 and None not in heads else (None, 1)


class _Cutter:
    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.names = {tensor.name for tensor in program.tensors}
        self.tensors: list[ir.Tensor] = []
        # The pieces of rows that a kernel computes and holds, by their row and place.
        self.held: dict[tuple[str, ir.IndexExpr, int], str] = {}

    def kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        pieces = self.pieces(kernel)
        if pieces is None:
            return kernel
        body: list[ir.Stmt] = []
        for stmt in kernel.body:
            body += self.store(stmt, pieces) if isinstance(stmt, ir.Store) else [stmt]
        return with_body(kernel, tuple(body))

    def pieces(self, kernel: ir.Kernel) -> Pieces | None:
        """How the rows of a kernel are cut; None if it has no long ones, or reads them in another way than this."""
        loops = [stmt for stmt in kernel.body if isinstance(stmt, ir.For)]
        if self.program.sizes or not all(is_exception(loop, self.program) for loop in loops):
            return None
        own = tuple(stmt for stmt in kernel.body if isinstance(stmt, ir.Store))
        extent = max((index.extent for store in own for index in _slices(store)), default=1)
        head, block = head_of_rows(self.program, kernel, extent)
        pieces = pieces_of(extent, kernel.num_warps or 4, head, block)
        # Formal statement: each reduction over the row is of elements that are computed from those of its own position,
        # each from 0 to the extent; so each piece is computed from pieces alone.
        if pieces is None or not any(self.reduces(expr, pieces) for s in own for expr in expressions(s)):
            return None
        if any(pieces.is_row(index) for loop in loops for store in stores(loop.body) for index in _slices(store)):
            return None
        return pieces if all(self.may_cut(store, pieces) for store in own) else None

    def reduces(self, expr: ir.TileExpr, pieces: Pieces) -> bool:
        return isinstance(expr, ir.Reduce) and shape_of(expr.arg, self.program)[expr.dim] == pieces.extent

    def may_cut(self, store: ir.Store, pieces: Pieces) -> bool:
        rows = [index for index in _slices(store) if pieces.is_row(index)]
        if store.mask is not None or any(index.start != ir.Int(0) for index in rows):
            return False
        for expr in expressions(store):
            if isinstance(expr, ir.Dot | ir.Gather | ir.Permute) and rows:
                return False
            if self.reduces(expr, pieces) and not self.may_reduce(expr, pieces):
                return False
        accessed = [a for a in (store.target, *reads(store)) if any(map(pieces.is_row, a.index))]
        return not any(sum(map(pieces.is_row, a.index)) > 1 or not self.ends_with_row(a, pieces) for a in accessed)

    def ends_with_row(self, access: ir.Access, pieces: Pieces) -> bool:
        """Whether the row is the last dimension of a tile on chip, which a tile for each piece replaces."""
        return self.program.tensor(access.tensor).space != "chip" or pieces.is_row(access.index[-1])

    def may_reduce(self, expr: ir.TileExpr, pieces: Pieces) -> bool:
        assert isinstance(expr, ir.Reduce)
        inside = any(isinstance(node, ir.Reduce) for node in subexpressions(expr.arg))
        one = shape_of(expr.arg, self.program).count(pieces.extent) == 1
        return one and not inside and dtype_of(expr.arg, self.program) in _DTYPES

    def store(self, store: ir.Store, pieces: Pieces) -> Iterator[ir.Store]:
        value = store.value
        for n, node in enumerate([x for x in subexpressions(value) if self.reduces(x, pieces)]):
            assert isinstance(node, ir.Reduce)
            steps, part = self.part(node, replace(store, node_id=f"{store.node_id}/{n}"), pieces)
            yield from steps
            value = rewrite_tile(value, lambda x, node=node, part=part: part if x == node else x)
        if not any(map(pieces.is_row, store.target.index)):
            yield replace(store, value=value)
            return
        places = [(at, pieces.size) for at in pieces.starts] + [(at, pieces.block) for at in pieces.edges]
        for n, place in enumerate(places):
            mask = None
            if n == pieces.count:  # the head, in whose block the first piece begins
                lanes = next(i for i in store.target.index if isinstance(i, ir.Slice) and pieces.is_row(i))
                own = ir.Iota((replace(lanes, start=ir.Int(0), extent=pieces.block),))
                mask = ir.Elementwise("lt", (own, ir.Scalar(pieces.of_edge(0))), "bool")
            target = replace(store.target, index=pieces.cut(store.target.index, *place))
            piece = self.piece(value, pieces, *place)
            if self.program.tensor(store.target.tensor).space == "chip":
                target, mask = self.hold(target, *place), None
            yield replace(store, node_id=f"{store.node_id}/{n}", target=target, value=piece, mask=mask)

    def hold(self, target: ir.Access, start: ir.IndexExpr, extent: int) -> ir.Access:
        """The tile on chip that holds the piece of a row from `start` on."""
        row = self.program.tensor(target.tensor)
        name = fresh_name(f"{target.tensor}_piece", self.names, "_")
        self.names.add(name)
        self.tensors.append(ir.Tensor(name, (*row.shape[:-1], extent), row.dtype, "chip"))
        self.held[target.tensor, start, extent] = name
        return self.own(target, start, extent)

    def own(self, access: ir.Access, start: ir.IndexExpr, extent: int) -> ir.Access:
        """An access to a piece of a row, of the tile that holds it if there is one."""
        name = self.held.get((access.tensor, start, extent))
        last = access.index[-1] if access.index else None
        if name is None or not isinstance(last, ir.Slice):
            return access
        return replace(access, tensor=name, index=(*access.index[:-1], replace(last, start=ir.Int(0))))

    def piece(self, value: ir.TileExpr, pieces: Pieces, start: ir.IndexExpr, extent: int) -> ir.TileExpr:
        """`value` of the elements from `start` on."""
        return rewrite_tile(
            pieces.tile(value, start, extent),
            lambda x: self.own(x, start, extent) if isinstance(x, ir.Access) else x,
        )

    def part(self, node: ir.Reduce, store: ir.Store, pieces: Pieces) -> tuple[list[ir.Store], ir.TileExpr]:
        """The statements that combine the pieces of what is reduced, and the reduction of what they leave."""
        body = [(at, pieces.left(n)) for n, at in enumerate(pieces.starts)]
        out, reduced = self.combined(node, store, body, pieces.size)
        if pieces.head is not None:
            edges = [(at, pieces.of_edge(n)) for n, at in enumerate(pieces.edges)]
            more, others = self.combined(node, replace(store, node_id=f"{store.node_id}.edges"), edges, pieces.block)
            out += more
            dtype = dtype_of(node.arg, self.program)
            reduced = ir.Elementwise(combining(node.op, dtype), (reduced, others), dtype)
        return out, reduced

    def combined(
        self, node: ir.Reduce, store: ir.Store, places: Sequence[tuple[ir.IndexExpr, ir.IndexExpr | None]], size: int
    ) -> tuple[list[ir.Store], ir.TileExpr]:
        """The statements that combine tiles of `size` elements at some places, each with the number of its elements or
        None for all; and the reduction of what they leave."""
        shape, dtype = list(shape_of(node.arg, self.program)), dtype_of(node.arg, self.program)
        row = Pieces(shape[node.dim], size)
        axis = next(index.axis for index in _slices(replace(store, value=node.arg)) if row.is_row(index))
        shape[node.dim] = size
        name = fresh_name(f"{store.target.tensor}_part", self.names, "_")
        self.names.add(name)
        self.tensors.append(ir.Tensor(name, tuple(shape), dtype, "chip"))
        part = ir.Access(name, tuple(ir.Slice(ir.Int(0), extent, f"p{n}") for n, extent in enumerate(shape)))

        def at(start: ir.IndexExpr, left: ir.IndexExpr | None) -> ir.TileExpr:
            value = self.piece(node.arg, row, start, size)
            if left is None:
                return value
            lanes = ir.Slice(ir.Int(0), size, axis)
            axes = tuple(lanes if d == node.dim else ir.NewAxis() for d in range(len(shape)))
            exists = ir.Elementwise("lt", (ir.Iota(axes), ir.Scalar(simplify(left))), "bool")
            return ir.Elementwise("where", (exists, value, identity_literal(node.op, dtype)), dtype)

        out: list[ir.Store] = []
        value = at(*places[0])
        for n, place in enumerate(places[1:], start=1):
            value = ir.Elementwise(combining(node.op, dtype), (value, at(*place)), dtype)
            out.append(ir.Store(f"{store.node_id}.{name}{n}", part, value, store.origin))
            value = part
        return out, replace(node, arg=value)


def _slices(store: ir.Store) -> Iterator[ir.Slice]:
    """Every slice of a statement's accesses and positions."""
    for expr in (store.target, *expressions(store)):
        if isinstance(expr, ir.Access | ir.Iota):
            yield from (index for index in tile_dims(expr.index) if isinstance(index, ir.Slice))
