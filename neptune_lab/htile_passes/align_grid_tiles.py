"""Lets programs that each map a tile of a row begin where memory is aligned, so that they load 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.aligned import AT_ONCE, end_of, head_of, is_tile, steps_of
from neptune_lab.htile.walk import expressions, names_of_index, reads, rewrite, simplify, tile_dims, with_body
from neptune_lab.htile_passes.rewrite import map_kernels, tile_pass
from neptune_lab.strict.dtypes import itemsize

# Rows of fewer elements stay as they are.
SHORTEST = 1024


@tile_pass(before="squares_without_scale")
def align_grid_tiles(program: ir.Program) -> ir.Program:
    """Before => after, for rows of 1003 elements of 2 bytes, in each of which h = i*5 % 8 elements come before the
    first multiple of 16 bytes, and e = 1003 - (1003-h) % 8 before the last:

        kernel p  grid (j0: 8, i: 4)
            y[i, j0*128:j0*128+128] = exp(x[i, j0*128:j0*128+128])
        =>
        kernel p  grid (j0: 8, i: 4)
            y[i, h+j0*128:h+j0*128+128] = exp(x[i, h+j0*128:h+j0*128+128])
            y[i, 0:8] = exp(x[i, 0:8])  where iota[0:8] < h if j0 = 0
            y[i, e:e+8] = exp(x[i, e:e+8])  where iota[e:e+8] < 1003 if j0 = 0

    Only of kernels that compute each element from those at its own position, and from numbers of its row.
    """
    if program.sizes:
        return program
    return map_kernels(program, lambda kernel: _aligned(program, kernel))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows whose tiles the programs of a kernel map.

    Args:
        axis: of the grid, over tiles.
        extent: elements of a row.
        tile: elements of a tile.
        head: elements before the first block.
        block: elements that are loaded at once.
    """

    axis: str
    extent: int
    tile: int
    head: ir.IndexExpr
    block: int

    def is_tile(self, index: ir.Index) -> bool:
        """Whether an index is the tile of a program."""
        return is_tile(index, self.axis, self.tile)


def _aligned(program: ir.Program, kernel: ir.Kernel) -> ir.Kernel:
    rows = next((rows for axis in kernel.grid if (rows := _rows_of(axis, program, kernel)) is not None), None)
    if rows is None:
        return kernel
    end = end_of(rows.extent, rows.head, rows.block)
    own = ir.Arith("+", rows.head, ir.Arith("*", ir.Name(rows.axis), ir.Int(rows.tile)))
    # 1 in the first program of a row, 0 in the others.
    first = ir.Arith("-", ir.Int(1), ir.Arith("min", ir.Name(rows.axis), ir.Int(1)))
    left = ir.Arith("-", ir.Int(rows.extent), end)
    places: list[tuple[str, ir.IndexExpr, int, ir.IndexExpr | None]] = [
        ("", own, rows.tile, None),
        ("/head", ir.Int(0), rows.block, ir.Arith("*", rows.head, first)),
        ("/end", end, rows.block, ir.Arith("+", end, ir.Arith("*", left, first))),
    ]
    body = [
        _store_of_elements(store, rows, *place)
        for place in places
        for store in kernel.body
        if isinstance(store, ir.Store)
    ]
    return with_body(kernel, tuple(body))


def _rows_of(axis: ir.GridAxis, program: ir.Program, kernel: ir.Kernel) -> _Rows | None:
    """The rows along whose tiles an axis of the grid runs; None if there are none, they begin at multiples of 16 bytes,
    or an element is computed from more than its own position and its row."""
    own = [stmt for stmt in kernel.body if isinstance(stmt, ir.Store)]
    every = [expr for store in own for expr in (store.target, *expressions(store))]
    slices = {i.extent for e in every for i in _index(e) if isinstance(i, ir.Slice) and axis.var in names_of_index(i)}
    if len(own) < len(kernel.body) or len(slices) != 1:
        return None
    (tile,) = slices
    rows = [e for e in every if any(is_tile(i, axis.var, tile) for i in _index(e))]
    inputs = [e for e in rows if isinstance(e, ir.Access)]
    extents = {program.tensor(a.tensor).shape[-1] for a in inputs}
    if len(extents) != 1 or any(program.tensor(a.tensor).space == "chip" for a in inputs):
        return None
    (extent,) = extents
    block = AT_ONCE // min(itemsize(program.tensor(a.tensor).dtype) for a in inputs)
    if extent < SHORTEST or tile % block or not (axis.extent - 1) * tile < extent <= axis.extent * tile:
        return None
    # Formal statement: each statement makes the elements of the program's tile, each from elements at its own position
    # and numbers of its row; no other statement reads what it makes; so a tile may begin anywhere, and the elements
    # before the first and behind the last may be made by any program.
    if any(store.mask is not None or store.target not in rows for store in own):
        return None
    if {store.target.tensor for store in own} & {a.tensor for store in own for a in reads(store)}:
        return None
    if any(isinstance(e, ir.Reduce | ir.Dot | ir.Gather | ir.Permute) for e in every):
        return None
    if any(axis.var in names_of_index(i) and not is_tile(i, axis.var, tile) for e in every for i in _index(e)):
        return None
    if any(len(tile_dims(_index(e))) != 1 or not is_tile(_index(e)[-1], axis.var, tile) for e in rows):
        return None
    tensors = [program.tensor(a.tensor) for a in inputs]
    if any(len(a.index) < 2 or steps_of(t)[-1] != 1 for a, t in zip(inputs, tensors, strict=True)):
        return None
    heads = {head_of(a, steps_of(t), block) for a, t in zip(inputs, tensors, strict=True)}
    head = heads.pop() if len(heads) == 1 else None
    return None if head is None else _Rows(axis.var, extent, tile, head, block)


def _index(expr: ir.TileExpr) -> tuple[ir.Index, ...]:
    """The entries of an expression's index."""
    match expr:
        case ir.Access(index=index) | ir.Iota(index=index):
            return index
        case ir.Scalar(value=value):
            return (value,)
        case _:
            return ()


def _store_of_elements(
    store: ir.Store, rows: _Rows, name: str, start: ir.IndexExpr, extent: int, stop: ir.IndexExpr | None
) -> ir.Store:
    """A statement on the `extent` elements from `start` on, of which those before `stop` are stored; None: all."""

    def cut(expr: ir.TileExpr) -> ir.TileExpr:
        if not isinstance(expr, ir.Access | ir.Iota) or not any(map(rows.is_tile, expr.index)):
            return expr
        index = tuple(replace(i, start=start, extent=extent) if rows.is_tile(i) else i for i in expr.index)
        return replace(expr, index=index)

    target = cut(store.target)
    assert isinstance(target, ir.Access)
    mask = None
    if stop is not None:
        lanes = next(_slices(target))
        mask = ir.Elementwise("lt", (ir.Iota((lanes,)), ir.Scalar(simplify(stop))), "bool")
    return replace(store, node_id=store.node_id + name, target=target, value=rewrite(store.value, cut), mask=mask)


def _slices(access: ir.Access) -> Iterator[ir.Slice]:
    return (index for index in access.index if isinstance(index, ir.Slice))
