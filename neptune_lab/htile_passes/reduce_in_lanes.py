"""Reduces long rows lane by lane, and the results of the lanes once behind the row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import identity_literal
from neptune_lab.htile.walk import read_tensors, rewrite, simplify, stores, subexpressions, with_body
from neptune_lab.htile_passes.about_parts import AboutNumber, moved_exponentials
from neptune_lab.htile_passes.rewrite import (
    combining,
    fresh_name,
    map_kernels_with_tiles,
    tile_pass,
)
from neptune_lab.htile_passes.rows_of_lanes import LaneRow, LaneState, lane_row, lane_states
from neptune_lab.htile_passes.whole_rows import slices

_F32 = "float32"


@tile_pass(before="start_with_constants")
def reduce_in_lanes(program: ir.Program) -> ir.Program:
    """Before => after, for rows of 65536 elements and 64 lanes, each of which loads 8 neighbours at once, and two
    pieces of 512 elements in an iteration:

        m[i] = reduce(max, x[i, 0:65536])
        s[i] = reduce(sum, exp(x[i, 0:65536] - m[i]))
        =>
        m_lanes[0:64], s_lanes[0:64] = -inf, 0.0
        for t in range(64):
            a, b = grouped(x[i, t*1024:t*1024+512], 8), grouped(x[i, t*1024+512:t*1024+1024], 8)
            m_next[0:64] = max(max(m_lanes[0:64], reduce(max, a, dim=1)), reduce(max, b, dim=1))
            s_lanes[0:64] = exp(m_lanes[0:64] - m_next[0:64]) * s_lanes[0:64]
                          + (reduce(sum, exp(a - m_next[0:64, NewAxis]), dim=1) + reduce(sum, exp(b - ...), dim=1))
            m_lanes[0:64] = m_next[0:64]
        m[i] = reduce(max, m_lanes[0:64])
        s[i] = reduce(sum, exp(m_lanes[0:64] - m[i]) * s_lanes[0:64])

    The reductions over `dim=1` are of elements of one lane.  Those over lanes end with a wait for all threads of a
    program, of which a loop over tiles has two in each iteration.  Here the threads run on by themselves until the row
    ends.  Of rows that a program cannot hold, in a loop, and of shorter ones that are only read, without one: then a
    program loads all of the row, and begins with what is there.  Elements behind the pieces of the loop, and before
    and behind whole blocks of 16 bytes, are loaded before it.

    Formal statement.  A lane has a part of the row, as a program has one of shared rows (`whole_rows`, `share_rows`),
    and a reduction about the largest element of the row is moved from that of the part by the same equation
    (`about_parts`), in each iteration and at the end.  Rows that are written are read again in a loop behind it.
    """
    return map_kernels_with_tiles(program, _kernel)


def _kernel(kernel: ir.Kernel, program: ir.Program, names: set[str], added: list[ir.Tensor]) -> ir.Kernel:
    row = lane_row(kernel, program)
    states = None if row is None else lane_states(kernel, program, row.pieces)
    if row is None or states is None or (row.held and not any(one.about for one in states)):
        return kernel
    return with_body(kernel, tuple(_Lanes(kernel, program, row, states, names, added).body()))


@dataclass(frozen=True, slots=True)
class _Place:
    """Elements of a row: the first, how many a tile has, how many of them count (None: all), and whether they are read
    before the loop."""

    start: ir.IndexExpr
    extent: int
    left: ir.IndexExpr | None = None
    early: bool = False


class _Lanes:
    """The statements of one kernel."""

    def __init__(
        self,
        kernel: ir.Kernel,
        program: ir.Program,
        row: LaneRow,
        states: tuple[LaneState, ...],
        names: set[str],
        added: list[ir.Tensor],
    ) -> None:
        self.kernel, self.program, self.states = kernel, program, states
        self.row, self.group, self.iterations, self.at_once = row.pieces, row.group, row.iterations, row.at_once
        self.names, self.added = names, added
        # What is read of the row beside the pieces of the loop, before it.
        self.early: dict[ir.Access, ir.Access] = {}
        self.is_reduced = False
        own = [*stores(kernel.body)]
        self.axis = next(index.axis for store in own for index in slices(store))
        self.var = fresh_name("t", {axis.var for axis in kernel.grid} | {i.axis for s in own for i in slices(s)})
        self.lanes = {one.node: self.tile(f"{one.name}_lanes") for one in states}
        numbers = [one.node for one in states if one.is_number]
        self.next = {node: self.tile(f"{self.lanes[node].tensor}_next") for node in numbers}
        # What the lanes' reductions are about: finite.
        self.about = {node: self.tile(f"{self.lanes[node].tensor}_about") for node in numbers}

    def tile(self, wanted: str, shape: tuple[int, ...] | None = None, dtype: str = _F32) -> ir.Access:
        """A new tile on chip: by default of an element for each lane."""
        name = fresh_name(wanted, self.names, "_")
        self.names.add(name)
        axis = self.axis if shape else f"{self.axis}_lane"
        shape = (self.row.size // self.group,) if shape is None else shape
        self.added.append(ir.Tensor(name, shape, dtype, "chip"))
        return ir.Access(name, tuple(ir.Slice(ir.Int(0), extent, axis) for extent in shape))

    def body(self) -> Iterator[ir.Stmt]:
        own = [*stores(self.kernel.body)]
        along = [store for store in own if any(map(self.row.is_row, store.target.index))]
        numbers = [store for store in own if not any(store is other for other in along)]
        # Numbers that wait for nothing, such as the element of a label, are read before the row.
        waits: set[str] = set()
        first: list[ir.Store] = []
        for store in numbers:
            if read_tensors(store) & waits or any(one.node in {*subexpressions(store.value)} for one in self.states):
                waits.add(store.target.tensor)
            else:
                first.append(store)
        yield from first
        yield from self.reduced(own[0])
        for store in numbers:
            if not any(store is other for other in first):
                yield replace(store, value=self.combined(store.value))
        if along:
            yield from self.mapped(along)

    def reduced(self, store: ir.Store) -> Iterator[ir.Stmt]:
        """The loop over the pieces, and what is behind it."""
        for one in self.states:
            start = identity_literal(one.node.op, _F32)
            yield self.statement(store, self.lanes[one.node], start, "start")
        loop = self.loop(store, "reduced", self.update(store, self.in_iteration(), "in"))
        rest = self.behind()
        groups = [rest[n : n + self.at_once] for n in range(0, len(rest), self.at_once)]
        updated = [s for n, places in enumerate(groups) for s in self.update(store, places, f"rest{n}")]
        for place in self.edges():
            for one in self.states:
                self.of_place(one.node.arg, place)
        for read, tile in self.early.items():
            yield self.statement(store, tile, read, "early")
        self.is_reduced = True
        if self.iterations:
            yield loop
        yield from updated

    def loop(self, store: ir.Store, name: str, body: Sequence[ir.Store]) -> ir.For:
        count = ir.Int(self.iterations)
        return ir.For(f"{store.node_id}.{name}", self.var, ir.Int(0), count, tuple(body), store.origin, "interior")

    def in_iteration(self) -> list[_Place]:
        """The pieces of an iteration."""
        size = self.row.size
        at: ir.IndexExpr = ir.Arith("*", ir.Name(self.var), ir.Int(self.at_once * size))
        at = at if self.row.head is None else ir.Arith("+", self.row.head, at)
        return [_Place(simplify(ir.Arith("+", at, ir.Int(n * size))), size) for n in range(self.at_once)]

    def behind(self) -> list[_Place]:
        """The pieces behind the loop."""
        first = self.iterations * self.at_once
        starts = self.row.starts
        size = self.row.size
        return [_Place(simplify(starts[n]), size, self.row.left(n), early=True) for n in range(first, self.row.count)]

    def edges(self) -> list[_Place]:
        """The elements before and behind all pieces."""
        block = self.row.block
        return [_Place(at, block, self.row.of_edge(n), early=True) for n, at in enumerate(self.row.edges)]

    def of_place(self, value: ir.TileExpr, place: _Place) -> ir.TileExpr:
        """An expression on the row, of the elements of a place."""
        value = self.row.tile(value, place.start, place.extent)
        return rewrite(value, self.read_early) if place.early else value

    def read_early(self, expr: ir.TileExpr) -> ir.TileExpr:
        """A tile that is read before the loop, for the lanes, in place of an access to elements."""
        if not isinstance(expr, ir.Access) or not any(isinstance(i, ir.Slice) for i in expr.index):
            return expr
        tensor = next((t for t in self.program.tensors if t.name == expr.tensor and t.space != "chip"), None)
        if tensor is None:
            return expr  # (a tile of the lanes)
        if expr not in self.early and not self.is_reduced:
            extents = tuple(i.extent for i in expr.index if isinstance(i, ir.Slice))
            self.early[expr] = self.tile(f"{tensor.name}_early", extents, tensor.dtype)
        return self.early.get(expr, expr)

    def update(self, store: ir.Store, places: Sequence[_Place], name: str) -> list[ir.Store]:
        """What the lanes keep once they have read more elements."""
        out: list[ir.Store] = []
        for one in self.states:
            lanes = self.lanes[one.node]
            target = self.next.get(one.node, lanes)
            if one.about is None:
                value = self.folded(one.node, places, lanes)
            else:
                about = self.about[one.about.own]
                moved = moved_exponentials(lanes, self.lanes[one.about.own], about)
                value = _f32("add", moved, self.folded(one.node, places, about=(one.about, about)))
            out.append(self.statement(store, target, value, name))
            if one.node in self.about:
                out.append(self.statement(store, self.about[one.node], _finite(one, self.states, target), name))
        out += [self.statement(store, self.lanes[node], tile, name) for node, tile in self.next.items()]
        return out

    def folded(
        self,
        node: ir.Reduce,
        places: Sequence[_Place],
        first: ir.TileExpr | None = None,
        about: tuple[AboutNumber, ir.Access] | None = None,
    ) -> ir.TileExpr:
        """The elements of some places, reduced by each lane."""
        tiles = [] if first is None else [first]
        for place in places:
            if about is None:
                value: ir.TileExpr = ir.Grouped(self.of_place(node.arg, place), self.group)
            else:
                of = ir.Grouped(self.of_place(about[0].of, place), self.group)
                number = replace(about[1], index=(*about[1].index, ir.NewAxis()))
                value = replace(about[0], of=of).reduced(number).arg
            if place.left is not None:
                exists = ir.Grouped(self.exists(place, place.left), self.group)
                value = ir.Elementwise("where", (exists, value, identity_literal(node.op, _F32)), _F32)
            tiles.append(ir.Reduce(node.op, value, 1))
        return reduce(lambda a, b: _f32(combining(node.op, _F32), a, b), tiles)

    def exists(self, place: _Place, left: ir.IndexExpr) -> ir.TileExpr:
        """Which elements of a place count."""
        lanes = ir.Iota((ir.Slice(ir.Int(0), place.extent, self.axis),))
        return ir.Elementwise("lt", (lanes, ir.Scalar(simplify(left))), "bool")

    def combined(self, value: ir.TileExpr) -> ir.TileExpr:
        """An expression with what the lanes and the edges have in place of reductions of the row."""
        for one in self.states:
            node, lanes = one.node, self.lanes[one.node]
            if one.about is None:
                made: ir.TileExpr = ir.Reduce(node.op, lanes, 0)
            else:
                # (About the row's own number, also if it is -inf: then the sum is NaN, as in the definition.)
                moved = moved_exponentials(lanes, self.lanes[one.about.own], one.about.number)
                made = ir.Reduce("sum", moved, 0)
            if self.row.head is not None:
                made = _f32(combining(node.op, _F32), made, ir.Reduce(node.op, self.of_edges(node), 0))
            value = rewrite(value, lambda x, node=node, made=made: made if x == node else x)
        return value

    def of_edges(self, node: ir.Reduce) -> ir.TileExpr:
        """The elements of both edges, combined lane by lane."""
        tiles: list[ir.TileExpr] = []
        for place in self.edges():
            assert place.left is not None
            kept = (self.exists(place, place.left), self.of_place(node.arg, place), identity_literal(node.op, _F32))
            tiles.append(ir.Elementwise("where", kept, _F32))
        return reduce(lambda a, b: _f32(combining(node.op, _F32), a, b), tiles)

    def mapped(self, along: Sequence[ir.Store]) -> Iterator[ir.Stmt]:
        """The loop that stores rows, and what is behind it."""
        body = [self.piece(s, place, str(n)) for n, place in enumerate(self.in_iteration()) for s in along]
        yield self.loop(along[0], "mapped", body)
        yield from (self.piece(s, place, f"rest{n}") for n, place in enumerate(self.behind()) for s in along)
        for n, place in enumerate(self.edges()):
            for store in along:
                assert place.left is not None
                # The first piece begins in the block of the head; what is behind the row is not stored.
                yield replace(
                    self.piece(store, place, f"edge{n}"), mask=self.exists(place, place.left) if n == 0 else None
                )

    def piece(self, store: ir.Store, place: _Place, name: str) -> ir.Store:
        target = replace(store.target, index=self.row.cut(store.target.index, place.start, place.extent))
        value = self.of_place(store.value, place)
        return replace(store, node_id=f"{store.node_id}/{name}", target=target, value=value)

    def statement(self, store: ir.Store, target: ir.Access, value: ir.TileExpr, name: str) -> ir.Store:
        return ir.Store(f"{store.node_id}.{target.tensor}/{name}", target, value, store.origin)


def _f32(op: str, a: ir.TileExpr, b: ir.TileExpr) -> ir.TileExpr:
    return ir.Elementwise(op, (a, b), _F32)


def _finite(one: LaneState, states: Sequence[LaneState], number: ir.TileExpr) -> ir.TileExpr:
    """What reductions are about if this is the largest element."""
    about = next(other.about for other in states if other.about is not None and other.about.own == one.node)
    return about.number_of(number, ir.Literal(1.0, _F32))
