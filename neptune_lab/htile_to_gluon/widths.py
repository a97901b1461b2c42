"""Widens tiles whose columns are no power of two, such as a head width of 80.

The registers of a warp group hold powers of two.  The Triton emitter pads such tiles where it prints them
(`htile_to_triton.padding`).  Here the copy engine fills shared memory with whole blocks, and what lies past the end of
a matrix is 0, so the tiles themselves get more columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import (
    expressions,
    map_stores,
    rewrite_store,
    stores,
    tile_dims,
    with_body,
)
from neptune_lab.htile_to_gluon.enlarge import indices_of, with_kernel
from neptune_lab.htile_to_gluon.heights import heightened
from neptune_lab.power_of_two import power_of_two


def enlarged(program: ir.Program, kernel: ir.Kernel) -> tuple[ir.Program, ir.Kernel]:
    """The kernel with the columns and rows that the registers of consumers hold."""
    return heightened(*widened(program, kernel))


def widened(program: ir.Program, kernel: ir.Kernel) -> tuple[ir.Program, ir.Kernel]:
    """Before => after, for a head width of 80:

        acc[i0*128:i0*128+128, 0:80] = dot(p, v[b, h, j0*64:j0*64+64, 0:80], acc=acc[i0*128:i0*128+128, 0:80])
        =>
        acc[i0*128:i0*128+128, 0:128] = dot(p, v[b, h, j0*64:j0*64+64, 0:128], acc=acc[i0*128:i0*128+128, 0:128])

    Formal statement: in a tensor, the new columns lie past the end, so they read as 0 and are not stored.  No reduction
    folds them.  A product that sums over them has the elements of two tensors for factors, both 0 there.  So every
    element of the old columns keeps its value.

    Returns:
        The program and the kernel in it; as given if a tile has such columns and one of these does not hold.
    """
    widths = _widths(kernel)
    if not widths or not _is_legal(program, kernel, widths):
        return program, kernel
    body = map_stores(kernel.body, lambda store: _store(store, widths))
    wide = with_body(kernel, body)
    tensors = tuple(_tile(t, widths) if t.space == "chip" else t for t in program.tensors)
    return with_kernel(replace(program, tensors=tensors), kernel, wide) or (program, kernel)


def _widths(kernel: ir.Kernel) -> frozenset[int]:
    """The numbers of columns that are no powers of two, of which no tile has as many rows."""
    columns: set[int] = set()
    others: set[int] = set()
    for index in indices_of(kernel):
        extents = [d.extent if isinstance(d, ir.Slice) else 1 for d in tile_dims(index)]
        others.update(extents if len(extents) == 1 else extents[:-1])
        columns.update(extents[-1:] if len(extents) > 1 else ())
    return frozenset(n for n in columns - others if n != power_of_two(n))


def _is_legal(program: ir.Program, kernel: ir.Kernel, widths: frozenset[int]) -> bool:
    every = tuple(stores(kernel.body))
    loaded = _loaded(program, every)
    return all(
        _ends_there(program, store.target, widths)
        and all(_keeps_values(program, expr, widths, loaded) for expr in expressions(store))
        for store in every
    )


def _loaded(program: ir.Program, every: Iterable[ir.Store]) -> set[str]:
    """The tiles that hold elements of a tensor, unchanged."""
    computed: set[str] = set()
    tiles: set[str] = set()
    for store in every:
        value = store.value
        plain = isinstance(value, ir.Access) and program.tensor(value.tensor).space != "chip"
        (tiles if plain else computed).add(store.target.tensor)
    return tiles - computed


def _keeps_values(program: ir.Program, expr: ir.TileExpr, widths: frozenset[int], loaded: set[str]) -> bool:
    match expr:
        case ir.Access():
            return _ends_there(program, expr, widths)
        case ir.Reduce(arg=arg, dim=dim):
            return shape_of(arg, program)[dim] not in widths
        case ir.Dot(a=a, b=b):
            if shape_of(a, program)[-1] not in widths:
                return True
            factors = (a, b.arg if isinstance(b, ir.Permute) else b)
            return all(isinstance(x, ir.Access) and _is_loaded(program, x, loaded) for x in factors)
        case ir.Gather():
            return False
        case _:
            return True


def _is_loaded(program: ir.Program, access: ir.Access, loaded: set[str]) -> bool:
    return program.tensor(access.tensor).space != "chip" or access.tensor in loaded


def _ends_there(program: ir.Program, access: ir.Access, widths: frozenset[int]) -> bool:
    """Whether the widened columns of a tensor's tile lie past the tensor's end."""
    tensor = program.tensor(access.tensor)
    last = access.index[-1] if access.index else None
    if tensor.space == "chip" or not isinstance(last, ir.Slice) or last.extent not in widths:
        return True
    return isinstance(last.start, ir.Int) and last.start.value + last.extent == tensor.shape[-1]


def _store(store: ir.Store, widths: frozenset[int]) -> ir.Store:
    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        return replace(expr, index=_index(expr.index, widths)) if isinstance(expr, ir.Access | ir.Iota) else expr

    return replace(rewrite_store(store, visit), target=replace(store.target, index=_index(store.target.index, widths)))


def _index(index: tuple[ir.Index, ...], widths: frozenset[int]) -> tuple[ir.Index, ...]:
    last = index[-1] if index else None
    if not isinstance(last, ir.Slice) or last.extent not in widths:
        return index
    return (*index[:-1], replace(last, extent=power_of_two(last.extent)))


def _tile(tensor: ir.Tensor, widths: frozenset[int]) -> ir.Tensor:
    if not tensor.shape or tensor.shape[-1] not in widths:
        return tensor
    return replace(tensor, shape=(*tensor.shape[:-1], power_of_two(tensor.shape[-1])))


__all__ = ["enlarged", "widened"]
