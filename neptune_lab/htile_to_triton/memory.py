"""Addresses: base pointers, index vectors, masks, and the loads and stores that use them.

An access becomes `base + vector[:, None] * stride + ...`: its scalar part stands in a named base pointer, each slice
is a named index vector.  Strides are those of contiguous tensors, folded to constants.  A mask is there only where a
slice can leave its tensor, or where padding added lanes.
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias

from neptune_lab.htile.layout import Doc, call, seq
from neptune_lab.htile.nodes import Access, Arith, Index, IndexExpr, Int, NewAxis, Slice, Tensor
from neptune_lab.htile.shapes import FLOATS, shape_of_access
from neptune_lab.htile.walk import names_of_index, simplify
from neptune_lab.htile_to_triton.context import ADD, AND, ATOM, COMPARE, MUL, Context

INT32_MAX = 2**31 - 1

Condition: TypeAlias = tuple[str, int]  # text and its precedence


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor.

    >>> strides((4, 200, 64))
    (12800, 64, 1)
    """
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


def subscript(rank: int, *dims: int) -> str:
    """The brackets that put the dimensions of a tile at `dims` of a tile of rank `rank`; "" where they fill it.

    >>> subscript(2, 1), subscript(1, 0)
    ('[None, :]', '')
    """
    if rank == len(dims):
        return ""
    return f"[{', '.join(':' if n in dims else 'None' for n in range(rank))}]"


def vector(ctx: Context, index: Slice) -> str:
    """The named index vector of a slice: `i = i0 * 128 + tl.arange(0, 128)`."""
    start, extent = simplify(index.start), ctx.padding.extent(index.extent)
    lanes = f"tl.arange(0, {extent})"
    text = lanes if start == Int(0) else f"{ctx.index(start, ADD)} + {lanes}"
    wanted = re.sub(r"(?<=[^\W\d_])_?\d+$", "", index.axis) or index.axis
    return ctx.define(("vector", start, extent), wanted, names_of_index(start), text)


def inside(ctx: Context, extent: int) -> str:
    """The named mask of the lanes that a padded extent does not add: `in_80 = tl.arange(0, 128) < 80`."""
    text = f"tl.arange(0, {ctx.padding.extent(extent)}) < {extent}"
    return ctx.define(("inside", extent), f"in_{extent}", frozenset(), text)


def pointer(ctx: Context, access: Access, order: tuple[int, ...]) -> str:
    """The pointers to the elements of `access`, its dimensions in `order`."""
    tensor = ctx.program.tensor(access.tensor)
    shape = shape_of_access(access)
    parts = [_base(ctx, tensor, access)]
    wide = _slices_span(ctx, tensor, access) > INT32_MAX
    for dim, stride, index in _sliced(access, tensor):
        if index.extent == 1:
            continue
        place = subscript(len(shape), order.index(dim))
        name = f"{vector(ctx, index)}{'.to(tl.int64)' if wide else ''}{place}"
        parts.append(name if stride == 1 else f"{name} * {stride}")
    if shape and math.prod(shape) == 1:
        parts.append(f"tl.zeros([{', '.join('1' for _ in shape)}], tl.int32)")
    return " + ".join(parts)


def _numbered(access: Access, tensor: Tensor) -> dict[int, tuple[int, int, Slice]]:
    """Dimension of the tensor -> (dimension of the tile, stride, slice), for every slice of `access`."""
    out: dict[int, tuple[int, int, Slice]] = {}
    tile_dim, tensor_dim = 0, 0
    steps = strides(tensor.shape)
    for index in access.index:
        if isinstance(index, Slice):
            out[tensor_dim] = (tile_dim, steps[tensor_dim], index)
        tile_dim += isinstance(index, Slice | NewAxis)
        tensor_dim += not isinstance(index, NewAxis)
    return out


def _sliced(access: Access, tensor: Tensor) -> list[tuple[int, int, Slice]]:
    return list(_numbered(access, tensor).values())


def _slices_span(ctx: Context, tensor: Tensor, access: Access) -> int:
    span = sum(stride * max(0, ctx.interval(s.start).hi + s.extent) for _, stride, s in _sliced(access, tensor))
    return min(span, math.prod(tensor.shape))


def _base(ctx: Context, tensor: Tensor, access: Access) -> str:
    """The scalar part of an address, as a named pointer, by Horner's rule over the tensor's dimensions."""
    param = ctx.pointers[tensor.name]
    indices = [index for index in access.index if not isinstance(index, NewAxis)]
    offset: IndexExpr = Int(0)
    unit = 0
    for index, stride in zip(indices, strides(tensor.shape), strict=True):
        scalar = index if not isinstance(index, Slice) else index.start if index.extent == 1 else None
        if scalar is None or simplify(scalar) == Int(0):
            continue
        offset = scalar if unit == 0 else Arith("+", Arith("*", offset, Int(unit // stride)), scalar)
        unit = stride
    offset = simplify(offset)
    if offset == Int(0):
        return param
    text = ctx.index(offset, MUL if unit > 1 else ADD)
    if math.prod(tensor.shape) > INT32_MAX:
        text = f"tl.cast({ctx.index(offset)}, tl.int64)"
    text = f"{param} + {text} * {unit}" if unit > 1 else f"{param} + {text}"
    return ctx.define(("base", tensor.name, offset, unit), f"{tensor.name}_base", names_of_index(offset), text)


def mask(ctx: Context, access: Access, order: tuple[int, ...]) -> list[Condition]:
    """The conditions under which the elements of `access` exist; none where all of them do."""
    tensor = ctx.program.tensor(access.tensor)
    rank = len(shape_of_access(access))
    tile_dim = {n: dim for n, (dim, _, _) in _numbered(access, tensor).items()}
    conditions: list[Condition] = []
    indices = [index for index in access.index if not isinstance(index, NewAxis)]
    for n, (index, size) in enumerate(zip(indices, tensor.shape, strict=True)):
        if isinstance(index, Slice) and index.extent > 1:
            conditions += _slice_conditions(ctx, index, size, subscript(rank, order.index(tile_dim[n])))
            continue
        scalar = index.start if isinstance(index, Slice) else index
        bounds = ctx.interval(scalar)
        if bounds.hi >= size:
            conditions.append((f"{ctx.index(scalar, COMPARE + 1)} < {size}", COMPARE))
        if bounds.lo < 0:
            conditions.append((f"{ctx.index(scalar, COMPARE + 1)} >= 0", COMPARE))
    return conditions


def _slice_conditions(ctx: Context, index: Slice, size: int, place: str) -> list[Condition]:
    start = ctx.interval(index.start)
    padded = ctx.padding.is_padded(index.extent)
    overflows = start.hi + index.extent > size
    covered = start.lo + index.extent >= size  # then "before the end" implies "within the extent"
    conditions: list[Condition] = []
    if overflows or (padded and covered):
        conditions.append((f"{vector(ctx, index)}{place} < {size}", COMPARE))
    if padded and not covered:
        conditions.append((f"{inside(ctx, index.extent)}{place}", ATOM))
    if start.lo < 0:
        conditions.append((f"{vector(ctx, index)}{place} >= 0", COMPARE))
    return conditions


def conjunction(conditions: list[Condition]) -> str:
    """The conditions joined by `&`, each in brackets where Python needs them."""
    if len(conditions) == 1:
        return conditions[0][0]
    return " & ".join(text if level >= AND else f"({text})" for text, level in conditions)


def load(ctx: Context, access: Access, order: tuple[int, ...]) -> Doc:
    """The `tl.load` of a global access, its dimensions in `order`; elements that do not exist read as 0."""
    conditions = mask(ctx, access, order)
    args: list[Doc] = [pointer(ctx, access, order)]
    if conditions:
        other = "0.0" if ctx.dtype(access) in FLOATS else "0"
        args += [f"mask={conjunction(conditions)}", f"other={other}"]
    return call("tl.load", *args)


def loaded(ctx: Context, access: Access, order: tuple[int, ...]) -> str:
    """The name of a tile that holds a global access: loaded by a line of its own, once in a scope if read-only."""
    doc = load(ctx, access, order)  # also where the tile is there already: it links the lines to this node
    read_only = access.tensor not in ctx.written
    key = ("load", access.tensor, _anonymous(access), order)
    found = ctx.scope.lookup(key) if read_only else None
    if found is None:
        barrier(ctx, access)
        name = ctx.name_for(key[:2], access.tensor, ctx.scope)
        found = (name, ctx.line(seq(f"{name} = ", doc)))
        if read_only:
            ctx.scope.known[key] = found
    found[1].used_by(ctx.node)
    return found[0]


def _anonymous(access: Access) -> tuple[Index, ...]:
    return tuple(Slice(simplify(i.start), i.extent, "") if isinstance(i, Slice) else i for i in access.index)


def barrier(ctx: Context, access: Access) -> None:
    """A read of what this kernel writes waits for the other threads of the program instance."""
    if access.tensor in ctx.written:
        ctx.line("tl.debug_barrier()")


def store(ctx: Context, access: Access, value: Doc, extra: list[Condition]) -> Doc:
    """The `tl.store` of `value` to a global access; elements that do not exist are dropped."""
    order = tuple(range(len(shape_of_access(access))))
    conditions = mask(ctx, access, order) + extra
    args: list[Doc] = [pointer(ctx, access, order), value]
    if conditions:
        args.append(f"mask={conjunction(conditions)}")
    return call("tl.store", *args)
