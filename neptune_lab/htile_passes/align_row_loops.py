"""Lets loops over tiles of a row begin where memory is aligned, so that they load 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeGuard

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.aligned import AT_ONCE, end_of, head_of, is_tile, steps_of
from neptune_lab.htile.shapes import dtype_of, identity_literal, identity_of
from neptune_lab.htile.substitute import substitute
from neptune_lab.htile.walk import (
    expressions,
    names_of_index,
    reads,
    rewrite,
    simplify,
    stores,
    subexpressions,
    tile_dims,
    with_body,
)
from neptune_lab.htile_passes.cut_long_rows import MANY_ELEMENTS
from neptune_lab.htile_passes.elements_seen import ElementsSeen
from neptune_lab.htile_passes.rewrite import map_kernels, tile_pass
from neptune_lab.strict.dtypes import itemsize

# The fewest whole tiles of such a loop.
FEWEST_TILES = 2


@tile_pass(before="read_selected_elements")
def align_row_loops(program: ir.Program) -> ir.Program:
    """Before => after, for rows of 1003 elements of 2 bytes, in each of which h = i*5 % 8 elements come before the
    first multiple of 16 bytes, and e = 1003 - (1003-h) % 8 before the last:

        for j0 in range(8):
            m[i] = max(m[i], reduce(max, where(iota[j0*128:j0*128+128] < 1003, x[i, j0*128:j0*128+128], -inf)))
        =>
        for j0 in range(8):
            m[i] = max(m[i], reduce(max, where(iota[h+j0*128:h+j0*128+128] < e, x[i, h+j0*128:h+j0*128+128], -inf)))
        m[i] = max(m[i], reduce(max, where(iota[0:8] < h, x[i, 0:8], -inf)))
        m[i] = max(m[i], reduce(max, where(iota[e:e+8] < 1003, x[i, e:e+8], -inf)))

    If statements count the elements that they have seen (`elements_seen`), they count those of this order: before tile
    7 the same 896, before the head e - h, and before the end e.

    A loop may have iterations without an element after others, which change nothing; so the two edges come last.
    """
    return map_kernels(program, lambda kernel: with_body(kernel, _body(program, kernel)))


def _body(program: ir.Program, kernel: ir.Kernel) -> tuple[ir.Stmt, ...]:
    if program.sizes or any(isinstance(e, ir.Dot) for s in stores(kernel.body) for e in expressions(s)):
        return kernel.body
    out: list[ir.Stmt] = []
    for stmt in kernel.body:
        rows = _rows_of(stmt, program, kernel) if isinstance(stmt, ir.For) else None
        if rows is None:
            out.append(stmt)
        else:
            assert isinstance(stmt, ir.For)
            out += _aligned(stmt, rows, program)
    return kernel.body if all(a is b for a, b in zip(out, kernel.body, strict=False)) else tuple(out)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that a loop visits in tiles.

    Args:
        loop: its variable.
        extent: elements of a row.
        tile: elements of a tile.
        head: elements before the first block.
        block: elements that are loaded at once.
    """

    loop: str
    extent: int
    tile: int
    head: ir.IndexExpr
    block: int

    @property
    def end(self) -> ir.IndexExpr:
        """Where the elements behind the last whole block begin."""
        return end_of(self.extent, self.head, self.block)

    @property
    def counts(self) -> ElementsSeen:
        """How the loop counts elements."""
        return ElementsSeen(self.loop, self.tile, self.extent)

    def is_tile(self, index: object) -> bool:
        """Whether an index is the tile of an iteration."""
        return is_tile(index, self.loop, self.tile)


def _rows_of(loop: ir.For, program: ir.Program, kernel: ir.Kernel) -> _Rows | None:
    """The rows that a loop visits; None if they begin at multiples of 16 bytes, it does more than visit them, or there
    is a vector along few rows, which `shift_vectors` copies."""
    own = [stmt for stmt in loop.body if isinstance(stmt, ir.Store)]
    if len(own) < len(loop.body) or loop.within or loop.listed or loop.part or loop.start != ir.Int(0):
        return None
    places = [index for store in own for index in _places(store)]
    tiles = {i.extent for i in places if isinstance(i, ir.Slice) and loop.var in names_of_index(i)}
    if len(tiles) != 1 or not isinstance(loop.stop, ir.Int):
        return None
    (tile,) = tiles
    if tile & (tile - 1) or not all(
        is_tile(i, loop.var, tile) for i in places if isinstance(i, ir.Slice) and loop.var in names_of_index(i)
    ):
        return None
    read = [a for s in own for a in (s.target, *reads(s))]
    rows = [a for a in read if any(is_tile(i, loop.var, tile) for i in a.index)]
    inputs = [a for a in rows if program.tensor(a.tensor).space != "chip"]
    extents = {program.tensor(a.tensor).shape[-1] for a in inputs}
    if len(extents) != 1 or any(s.mask is not None for s in own):
        return None
    (extent,) = extents
    block = AT_ONCE // min(itemsize(program.tensor(a.tensor).dtype) for a in inputs)
    if not (loop.stop.value - 1) * tile < extent <= loop.stop.value * tile or tile % block:
        return None
    # Formal statement: a row's elements are read by their own position in the tile of an iteration alone, each row is
    # one of its tensor's last dimension, all rows have one head, and what else an iteration reads of its own number is
    # how many elements it and those before it visit.
    if any(not is_tile(a.index[-1], loop.var, tile) or len(tile_dims(a.index)) > 1 for a in rows):
        return None
    if any(loop.var in names_of_index(i) for a in inputs for i in a.index[:-1]):
        return None
    for expr in (e for s in own for e in expressions(s)):
        if isinstance(expr, ir.Reduce) and identity_of(expr.op, dtype_of(expr.arg, program)) is None:
            return None
        if isinstance(expr, ir.Gather | ir.Permute) or (isinstance(expr, ir.Iota) and len(expr.index) > 1):
            return None
    vectors = [a for a in inputs if len(a.index) == 1]
    if vectors and prod(axis.extent for axis in kernel.grid) * extent < MANY_ELEMENTS:
        return None
    heads = {
        head_of(a, steps_of(t), block) if steps_of(t)[-1] == 1 else None
        for a in inputs
        if len(a.index) > 1
        for t in (program.tensor(a.tensor),)
    }
    if len(heads) != 1 or (head := heads.pop()) is None:
        return None
    found = _Rows(loop.var, extent, tile, head, block)
    along = [s for s in own if any(found.is_tile(i) for i in _places(s))]
    if not found.counts.may_count(own, along):
        return None
    return found if (extent - 2 * (block - 1)) // tile >= FEWEST_TILES else None


def _aligned(loop: ir.For, rows: _Rows, program: ir.Program) -> list[ir.Stmt]:
    """The loop over tiles that are whole whatever the head is, the tiles behind them, and the two edges."""
    whole = (rows.extent - 2 * (rows.block - 1)) // rows.tile
    at = ir.Arith("+", rows.head, ir.Arith("*", ir.Name(rows.loop), ir.Int(rows.tile)))
    own = [ir.Arith("*", ir.Name(rows.loop), ir.Int(rows.tile))]
    own.append(ir.Arith("+", own[0], ir.Int(rows.tile)))
    body = tuple(
        rows.counts.moved(_store_of_elements(s, rows, program, at, rows.tile, None), own[0], own[1])
        for s in stores(loop.body)
    )
    out: list[ir.Stmt] = [replace(loop, stop=ir.Int(whole), body=body, part="interior")]
    count = -(-(rows.extent // rows.block * rows.block) // rows.tile)
    places: list[tuple[str, int, ir.IndexExpr, int, ir.IndexExpr, ir.IndexExpr]] = []
    # The number of elements behind the head, and before the end.
    behind = ir.Arith("-", rows.end, rows.head)
    for n in range(whole, count):
        start = ir.Arith("+", rows.head, ir.Int(n * rows.tile))
        seen = ir.Arith("min", ir.Int((n + 1) * rows.tile), behind)
        places.append((f"tile{n}", n, start, rows.tile, rows.end, seen))
    places.append(("head", 0, ir.Int(0), rows.block, rows.head, rows.end))
    places.append(("end", 0, rows.end, rows.block, ir.Int(rows.extent), ir.Int(rows.extent)))
    before: ir.IndexExpr = ir.Int(whole * rows.tile)
    for name, n, start, extent, stop, seen in places:
        part = []
        for store in stores(loop.body):
            moved = rows.counts.moved(_store_of_elements(store, rows, program, start, extent, stop), before, seen)
            mask = None
            if name == "head" and program.tensor(store.target.tensor).space != "chip":
                mask = next((_before(i, stop) for i in moved.target.index if _is_place(i, start, extent)), None)
            part.append(replace(moved, node_id=f"{store.node_id}/{name}", mask=mask))
        out += substitute(tuple(part), rows.loop, ir.Int(n))
        before = seen
    return out


def _is_place(index: object, start: ir.IndexExpr, extent: int) -> TypeGuard[ir.Slice]:
    return isinstance(index, ir.Slice) and (index.start, index.extent) == (start, extent)


def _store_of_elements(
    store: ir.Store, rows: _Rows, program: ir.Program, start: ir.IndexExpr, extent: int, stop: ir.IndexExpr | None
) -> ir.Store:
    """A statement on the `extent` elements from `start` on, of which those before `stop` count; None: all."""

    def cut(index: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(replace(i, start=start, extent=extent) if rows.is_tile(i) else i for i in index)

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        match expr:
            case ir.Access(index=index) | ir.Iota(index=index) if any(map(rows.is_tile, index)):
                return replace(expr, index=cut(index))
            case ir.Elementwise(op="where", args=(condition, value, _)) if stop is None and ends(condition):
                return value
            case ir.Elementwise(op="lt", args=(own, _)) if stop is not None and ends(expr):
                return replace(expr, args=(own, ir.Scalar(simplify(stop))))
            case ir.Reduce(arg=arg) if stop is not None:
                return replace(expr, arg=inside(expr, arg, stop))
            case _:
                return expr

    def ends(expr: ir.TileExpr) -> bool:
        match expr:
            case ir.Elementwise(op="lt", args=(ir.Iota(index=(own,)), ir.Literal(value=rows.extent))):
                return _is_place(own, start, extent)
            case _:
                return False

    def inside(reduce: ir.Reduce, arg: ir.TileExpr, stop: ir.IndexExpr) -> ir.TileExpr:
        lanes = [i for e in subexpressions(arg) if isinstance(e, ir.Access | ir.Iota) for i in e.index]
        exists = next((_before(i, stop) for i in lanes if _is_place(i, start, extent)), None)
        if exists is None or (isinstance(arg, ir.Elementwise) and arg.op == "where" and arg.args[0] == exists):
            return arg
        dtype = dtype_of(arg, program)
        return ir.Elementwise("where", (exists, arg, identity_literal(reduce.op, dtype)), dtype)

    value = rewrite(store.value, visit)
    return replace(store, target=replace(store.target, index=cut(store.target.index)), value=value)


def _before(lanes: ir.Slice, stop: ir.IndexExpr) -> ir.TileExpr:
    """Whether a position is before `stop`."""
    return ir.Elementwise("lt", (ir.Iota((lanes,)), ir.Scalar(simplify(stop))), "bool")


def _places(store: ir.Store) -> Iterator[ir.Index]:
    """The entries of every index of a statement."""
    for expr in (store.target, *expressions(store)):
        if isinstance(expr, ir.Access | ir.Iota):
            yield from expr.index
