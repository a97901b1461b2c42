"""Gives tiles of few rows those of whole consumers: 100 queries become the 128 rows of two."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Env, grid_env, interval
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import expressions, map_stores, rewrite_store, stores, tile_dims, with_body
from neptune_lab.htile_to_gluon.enlarge import indices_of, with_kernel
from neptune_lab.htile_to_gluon.rows import ROWS


def heightened(program: ir.Program, kernel: ir.Kernel) -> tuple[ir.Program, ir.Kernel]:
    """Before => after, for 100 queries:

        acc[b, h, i0*100:i0*100+100, 0:64] = dot(p, v[b, h, j0*64:j0*64+64, 0:64], acc=…)
        =>
        acc[b, h, i0*100:i0*100+128, 0:64] = dot(p, v[b, h, j0*64:j0*64+64, 0:64], acc=…)

    Formal statement: the new rows of an output lie past its end, so they are not stored.  No operation combines rows,
    so what the new rows of other tiles hold is in no element that is stored.

    Returns:
        The program and the kernel in it; as given if its rows are whole consumers', or one of these does not hold.
    """
    rows = _rows(kernel)
    if rows is None or not _is_legal(program, kernel, rows):
        return program, kernel
    high = with_body(kernel, map_stores(kernel.body, lambda store: _store(store, rows)))
    return with_kernel(program, kernel, high) or (program, kernel)


def _rows(kernel: ir.Kernel) -> int | None:
    """The number of rows of the kernel's tiles, if that of no consumers, and no tile has as many columns."""
    first: list[int] = []
    others: set[int] = set()
    for index in indices_of(kernel):
        extents = [d.extent if isinstance(d, ir.Slice) else 1 for d in tile_dims(index)]
        others.update(extents[1:])
    for store in stores(kernel.body):
        first += [i.extent for i in store.target.index if isinstance(i, ir.Slice)][:1]
    if len(set(first)) != 1 or first[0] in others or first[0] % ROWS == 0:
        return None
    return first[0]


def _is_legal(program: ir.Program, kernel: ir.Kernel, rows: int) -> bool:
    env = grid_env(kernel)
    return all(
        _ends_there(program, store.target, rows, env)
        and all(_keeps_rows(program, expr, rows) for expr in expressions(store))
        for store in stores(kernel.body)
    )


def _ends_there(program: ir.Program, target: ir.Access, rows: int, env: Env) -> bool:
    """Whether the new rows of what is stored are dropped: those on chip, or past the end of the tensor."""
    tensor = program.tensor(target.tensor)
    if tensor.space == "chip":
        return True
    dims = [(n, i) for n, i in enumerate(target.index) if isinstance(i, ir.Slice)]
    ((n, index), *_) = dims or [(0, None)]
    if index is None or index.extent != rows:
        return False
    at = interval(index.start, env)
    return at.lo == at.hi and at.lo + rows == tensor.shape[n]


def _keeps_rows(program: ir.Program, expr: ir.TileExpr, rows: int) -> bool:
    """Whether an operation combines no rows."""
    match expr:
        case ir.Reduce(arg=arg, dim=dim):
            return shape_of(arg, program)[dim] != rows
        case ir.Dot(a=a, b=b):
            return rows not in (shape_of(a, program)[-1], *shape_of(b, program)[-2:])
        case ir.Permute(arg=arg):
            return rows not in shape_of(arg, program)
        case _:
            return True


def _store(store: ir.Store, rows: int) -> ir.Store:
    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        return replace(expr, index=_index(expr.index, rows)) if isinstance(expr, ir.Access | ir.Iota) else expr

    return replace(rewrite_store(store, visit), target=replace(store.target, index=_index(store.target.index, rows)))


def _index(index: tuple[ir.Index, ...], rows: int) -> tuple[ir.Index, ...]:
    high = -(-rows // ROWS) * ROWS
    return tuple(replace(i, extent=high) if isinstance(i, ir.Slice) and i.extent == rows else i for i in index)


__all__ = ["heightened"]
