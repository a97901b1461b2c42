"""Writes a reduction of a few elements, over a tile of three dimensions or more, as one statement per element."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import accesses, simplify, subexpressions, tile_dims, with_body
from neptune_lab.htile_passes.rewrite import combining, edit_bodies, map_kernels, position, tile_pass

MOST_ELEMENTS = 32


@tile_pass(before="hoist_invariant_loads")
def unroll_small_reductions(program: ir.Program) -> ir.Program:
    """Before => after:

        distance[...] = sum(square(q[i0*64:i0*64+64, 0:2, NewAxis] - transpose(k[j0*64:j0*64+64, 0:2, NewAxis])), 1)
        =>
        distance[...] = square(q[i0*64:i0*64+64, 0, NewAxis] - k[NewAxis, j0*64:j0*64+64, 0])
        distance[...] = distance[...] + square(q[i0*64:i0*64+64, 1, NewAxis] - k[NewAxis, j0*64:j0*64+64, 1])

    Only for reductions of at most 32 elements, and where the tile that is reduced is larger than each tile that it is
    made of: it would be kept in registers as a whole, which few kernels have room for.  Squared distances between
    points inside a score are such a reduction.
    """
    return map_kernels(program, lambda k: with_body(k, edit_bodies(k.body, partial(_edit, program))))


def _edit(program: ir.Program, store: ir.Store, body: list[ir.Stmt]) -> bool:
    if store.mask is not None or program.tensor(store.target.tensor).space != "chip":
        return False
    value = store.value
    if not isinstance(value, ir.Reduce) or store.target.tensor in {a.tensor for a in accesses(value)}:
        return False
    elements = _elements(value, program)
    if elements is None or any(shape_of(e, program) != shape_of(value, program) for e in elements):
        return False
    dtype = dtype_of(value, program)
    if program.tensor(store.target.tensor).dtype != dtype:
        return False
    new = [replace(store, value=elements[0])]
    for n, each in enumerate(elements[1:], start=1):
        combined = ir.Elementwise(combining(value.op, dtype), (store.target, each), dtype)
        new.append(replace(store, value=combined, node_id=f"{store.node_id}+{n}"))
    at = position(body, store)
    body[at : at + 1] = new
    return True


def _elements(value: ir.Reduce, program: ir.Program) -> list[ir.TileExpr] | None:
    """What is reduced, one tile per element, in order; None if it is left as it is."""
    dims = [value.dim]
    arg = value.arg
    while isinstance(arg, ir.Reduce) and arg.op == value.op:
        dims.append(arg.dim)
        arg = arg.arg
    if len(shape_of(arg, program)) < 3 or not _is_outer(arg, program):
        return None
    tiles: list[ir.TileExpr] = [arg]
    for dim in reversed(dims):  # the innermost reduction is the first
        extent = shape_of(tiles[0], program)[dim]
        if extent * len(tiles) > MOST_ELEMENTS:
            return None
        found = [element(tile, dim, at, program) for at in range(extent) for tile in tiles]
        tiles = [tile for tile in found if tile is not None]
        if len(tiles) < len(found):
            return None
    return tiles


def _is_outer(expr: ir.TileExpr, program: ir.Program) -> bool:
    """Whether a tile combines smaller ones by broadcasting."""
    shape = shape_of(expr, program)
    leaves = [e for e in subexpressions(expr) if isinstance(e, ir.Access | ir.Gather | ir.Reduce | ir.Dot)]
    return bool(leaves) and all(sorted(shape_of(leaf, program)) != sorted(shape) for leaf in leaves)


def element(expr: ir.TileExpr, dim: int, at: int, program: ir.Program) -> ir.TileExpr | None:
    """The tile of the elements at one position of a dimension, which is dropped; None if it cannot be written.

    Args:
        expr: a tile.
        dim: the dimension.
        at: the position; 0 is taken where the dimension has extent 1.
        program: has the tensors.
    """
    shape = shape_of(expr, program)
    if not shape:
        return expr
    at = 0 if shape[dim] == 1 else at
    match expr:
        case ir.Access():
            index = _index_at(expr.index, dim, at)
            return ir.Access(expr.tensor, index) if _may_read(expr, dim, at, program) else None
        case ir.Iota():
            chosen = tile_dims(expr.index)[dim]
            if isinstance(chosen, ir.Slice):
                return ir.Scalar(_plus(chosen.start, at))
            kept = tile_dims(expr.index)
            return ir.Iota((*kept[:dim], *kept[dim + 1 :]))
        case ir.Elementwise():
            args = [element(arg, dim, at, program) for arg in expr.args]
            found = tuple(arg for arg in args if arg is not None)
            return ir.Elementwise(expr.op, found, expr.dtype) if len(found) == len(args) else None
        case ir.Cast():
            arg = element(expr.arg, dim, at, program)
            return None if arg is None else ir.Cast(arg, expr.dtype)
        case ir.Permute():
            source = expr.order[dim]
            arg = element(expr.arg, source, at, program)
            kept = [d for d in expr.order if d != source]
            return None if arg is None else _permuted(arg, tuple(d - (d > source) for d in kept))
        case _:  # reductions and products inside, and gathers
            return None


def _permuted(arg: ir.TileExpr, order: tuple[int, ...]) -> ir.TileExpr:
    """`arg` with its dimensions in another order; a vector's new axes are placed there at once."""
    if order == tuple(range(len(order))):
        return arg
    if isinstance(arg, ir.Access):
        dims = tile_dims(arg.index)
        vector = [d for d in dims if isinstance(d, ir.Slice)]
        if len(vector) == 1:
            moved = [dims[d] for d in order]
            index = [part for i in _without_new_axes(arg.index) for part in (moved if i is vector[0] else [i])]
            return ir.Access(arg.tensor, tuple(index))
    return ir.Permute(arg, order)


def _may_read(access: ir.Access, dim: int, at: int, program: ir.Program) -> bool:
    """Whether one element of a slice may be read: not of an on-chip tile, and only inside the tensor."""
    chosen = tile_dims(access.index)[dim]
    if not isinstance(chosen, ir.Slice):
        return True
    tensor = program.tensor(access.tensor)
    sizes = [size for size, index in zip(tensor.shape, _without_new_axes(access.index), strict=True) if index is chosen]
    start = simplify(chosen.start)
    return tensor.space != "chip" and isinstance(start, ir.Int) and start.value + at < sizes[0]


def _without_new_axes(index: tuple[ir.Index, ...]) -> list[ir.Index]:
    return [i for i in index if not isinstance(i, ir.NewAxis)]


def _index_at(index: tuple[ir.Index, ...], dim: int, at: int) -> tuple[ir.Index, ...]:
    """The index with the slice of a dimension at one position, or without its new axis."""
    out: list[ir.Index] = []
    seen = -1
    for i in index:
        seen += isinstance(i, ir.Slice | ir.NewAxis)
        if seen != dim or not isinstance(i, ir.Slice | ir.NewAxis):
            out.append(i)
        elif isinstance(i, ir.Slice):
            out.append(_plus(i.start, at))
    return tuple(out)


def _plus(start: ir.IndexExpr, at: int) -> ir.IndexExpr:
    return simplify(ir.Arith("+", start, ir.Int(at)))
