"""Tensor descriptors: tiles of contiguous rows that a copy engine moves (`loads` in options.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from neptune_lab.htile.nodes import Access, Arith, IndexExpr, Int, NewAxis, Slice
from neptune_lab.htile.walk import names_of_index, simplify
from neptune_lab.htile_to_triton.addresses import base, numbered, strides
from neptune_lab.htile_to_triton.context import Context, HostDescriptor

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1, "int32": 4}
# The copy engine needs addresses and rows in multiples of 16 bytes, and at most 256 rows or columns per tile.
ALIGNMENT = 16
LARGEST = 256


@dataclass(frozen=True, slots=True)
class _Rows:
    """A tile of contiguous rows: its dimension of rows in the tensor, and its two slices."""

    dimension: int
    stride: int
    rows: Slice
    columns: Slice


def descriptor(ctx: Context, access: Access) -> tuple[str, str] | None:
    """The name of a descriptor for `access` and the tile's position in it; None if pointers must be used."""
    found = _rows(ctx, access)
    if found is None:
        return None
    return _on_host(ctx, access, found) if ctx.options.loads == "host_descriptors" else _in_kernel(ctx, access, found)


def _rows(ctx: Context, access: Access) -> _Rows | None:
    tensor = ctx.program.tensor(access.tensor)
    if any(isinstance(index, NewAxis) for index in access.index):
        return None
    walked = numbered(access, tensor)
    if len(walked) != 2 or [dim for dim, _, _ in walked.values()] != [0, 1]:
        return None
    (row, (_, stride, rows)), (last, (_, _, columns)) = walked.items()
    size = _BYTES.get(tensor.dtype)
    if size is None or last != len(tensor.shape) - 1 or 1 in (rows.extent, columns.extent):
        return None
    if any(ctx.padding.is_padded(s.extent) for s in (rows, columns)) or columns.extent * size < ALIGNMENT:
        return None
    steps = [step for n, step in enumerate(strides(tensor.shape)) if n not in walked]
    if any(step * size % ALIGNMENT for step in (*steps, stride)) or max(rows.extent, columns.extent) > LARGEST:
        return None
    return _Rows(row, stride, rows, columns)


def _in_kernel(ctx: Context, access: Access, found: _Rows) -> tuple[str, str] | None:
    """A descriptor of two dimensions of the tensor, from a base that only the grid decides: made once per program,
    and rows past the end of the tensor read as 0."""
    tensor = ctx.program.tensor(access.tensor)
    scalars = [i for i in access.index if not isinstance(i, Slice)]
    in_grid = {axis.var for axis in ctx.kernel.grid}
    if any(names_of_index(i) - in_grid for i in scalars):
        return None  # it would be made again in every iteration
    ctx.uses_descriptors = True
    starts = iter(Slice(Int(0), s.extent, s.axis) for s in (found.rows, found.columns))
    bare = Access(access.tensor, tuple(next(starts) if isinstance(i, Slice) else i for i in access.index))
    text = (
        f"tl.make_tensor_descriptor({base(ctx, tensor, bare)}, [{tensor.shape[found.dimension]}, {tensor.shape[-1]}], "
        f"[{found.stride}, 1], [{found.rows.extent}, {found.columns.extent}])"
    )
    names = frozenset(name for i in scalars for name in names_of_index(i))
    key = ("descriptor", access.tensor, bare.index)
    name = ctx.define(key, f"{access.tensor}_rows", names, text)
    return name, f"[{ctx.index(found.rows.start)}, {ctx.index(found.columns.start)}]"


def _on_host(ctx: Context, access: Access, found: _Rows) -> tuple[str, str] | None:
    """A descriptor of the whole tensor as one matrix: rows that the tile may not leave, or it would read its
    neighbour's."""
    tensor = ctx.program.tensor(access.tensor)
    if found.dimension != len(tensor.shape) - 2 or ctx.program.tensor(access.tensor).space == "chip":
        return None
    for part, size in ((found.rows, tensor.shape[-2]), (found.columns, tensor.shape[-1])):
        at = ctx.interval(part.start)
        if at.lo < 0 or at.hi + part.extent > size:
            return None
    row: IndexExpr = Int(0)
    for index, size in zip(access.index[:-1], tensor.shape[:-1], strict=True):
        start = index.start if isinstance(index, Slice) else index
        assert not isinstance(start, NewAxis)
        row = Arith("+", Arith("*", row, Int(size)), start)
    block = (found.rows.extent, found.columns.extent)
    made = ctx.host_descriptors.get((access.tensor, block))
    if made is None:
        name = ctx.names.fresh(f"{access.tensor}_rows")
        made = HostDescriptor(name, access.tensor, (math.prod(tensor.shape[:-1]), tensor.shape[-1]), block)
        ctx.host_descriptors[(access.tensor, block)] = made
    return made.parameter, f"[{ctx.index(simplify(row))}, {ctx.index(found.columns.start)}]"
