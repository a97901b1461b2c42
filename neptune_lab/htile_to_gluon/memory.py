"""Loads and stores through pointers: captured vectors, values of rows, outputs that the copy engine cannot store."""

from __future__ import annotations

from neptune_lab.htile.nodes import Access, Int, NewAxis, Slice
from neptune_lab.htile.walk import names_of_access, names_of_index, region, simplify, tile_dims
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_triton.addresses import base, is_wide_access, numbered, times_step, vector_name
from neptune_lab.htile_to_triton.context import ADD, sizes_of
from neptune_lab.strict.dtypes import FLOATS
from neptune_lab.wrapping import Doc, call


def vector(ctx: GluonContext, index: Slice, columns: int, *, is_columns: bool) -> str:
    """The named index vector of a slice.

    Args:
        columns: columns of the tile that it is a part of.
        is_columns: whether it runs along the tile's columns; otherwise along its rows.
    """
    layout = ctx.columns_layout(index.extent) if is_columns else ctx.rows_layout(columns)
    start = simplify(index.start)
    lanes = f"tl.arange(0, {index.extent}, layout={layout})"
    if is_columns and index.axis == ctx.structure.in_halves:
        lanes = f"{ctx.helper('_keys_in_halves')}({lanes}, {index.extent // 2})"
    text = lanes if start == Int(0) else f"{ctx.index(start, ADD)} + {lanes}"
    key = ("vector", start, index.extent, layout)
    return ctx.define(key, vector_name(index.axis), names_of_index(start), text)


def load(ctx: GluonContext, access: Access, columns: int) -> str:
    """The name of a tile that holds a global access: a line of its own loads it, in the outermost possible scope."""
    dims = tile_dims(access.index)
    at = "" if len(dims) < 2 or NewAxis() not in dims else "[None, :]" if dims[0] == NewAxis() else "[:, None]"
    bare = Access(access.tensor, region(access))
    addresses, mask = _addresses(ctx, bare, columns, is_columns=at == "[None, :]")
    args: list[Doc] = [addresses]
    if mask:
        args += [f"mask={mask}", f"other={'0.0' if ctx.dtype(access) in FLOATS else '0'}"]
    key = ("load", access.tensor, bare.index, columns, at)
    return f"{ctx.define(key, access.tensor, names_of_access(bare), call('tl.load', *args))}{at}"


def store(ctx: GluonContext, access: Access, value: Doc, columns: int) -> Doc:
    """The store of `value` to a global access."""
    addresses, mask = _addresses(ctx, access, columns, is_columns=False)
    return call("tl.store", addresses, value, *([f"mask={mask}"] if mask else []))


def _addresses(ctx: GluonContext, access: Access, columns: int, *, is_columns: bool) -> tuple[str, str]:
    """Pointers to the elements of `access`, which has no `NewAxis`, and the condition under which they exist."""
    tensor = ctx.program.tensor(access.tensor)
    parts = [base(ctx, tensor, access)]
    conditions: list[str] = []
    slices = numbered(access, tensor)
    wide = ".to(tl.int64)" if is_wide_access(ctx, tensor, access) else ""
    for n, (dim, _, index) in slices.items():
        as_columns = is_columns or dim == 1
        at = "" if len(slices) == 1 else "[None, :]" if dim == 1 else "[:, None]"
        name = vector(ctx, index, columns, is_columns=as_columns)
        parts.append(f"{name}{wide}{at}{times_step(ctx, tensor, n)}")
        size = sizes_of(tensor)[n]
        if ctx.passes(index.start, index.extent, size):
            conditions.append(f"({name}{at} < {ctx.index(size, ADD)})")
        if ctx.interval(index.start).lo < 0:
            conditions.append(f"({name}{at} >= 0)")
    return " + ".join(parts), " & ".join(conditions)
