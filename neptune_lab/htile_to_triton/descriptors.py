"""Tensor descriptors: tiles of rows whose elements are adjacent, that a copy engine moves (`loads` in options.py)."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.htile.nodes import Access, Arith, IndexExpr, Int, Name, NewAxis, Slice, Tensor
from neptune_lab.htile.sizes import multiple_of
from neptune_lab.htile.walk import names_of_index, simplify
from neptune_lab.htile_to_triton.addresses import base, numbered, step, steps, weighted_sum
from neptune_lab.htile_to_triton.context import Context, Extent, HostDescriptor, sizes_of

# Bytes of an element, for the dtypes that the copy engine moves.
BYTES = {"float8_e4m3fn": 1, "float8_e5m2": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int8": 1, "int32": 4}
# The copy engine needs addresses and rows in multiples of 16 bytes, and at most 256 rows or columns per tile.
ALIGNMENT = 16
LARGEST = 256


@dataclass(frozen=True, slots=True)
class _Rows:
    """A tile of contiguous rows.

    Args:
        dimension: the tensor's dimension that the rows are in.
        stride: elements from one row to the next.
        rows, columns: the tile's two slices.
    """

    dimension: int
    stride: int
    rows: Slice
    columns: Slice


def _are_constant(*numbers: IndexExpr) -> bool:
    return all(isinstance(number, Int) for number in numbers)


def descriptor(ctx: Context, access: Access) -> tuple[str, str] | None:
    """The name of a descriptor for `access` and the tile's position in it; None if pointers must be used."""
    tile = _rows(ctx, access)
    if tile is None:
        return None
    return _on_host(ctx, access, tile) if ctx.options.loads == "host_descriptors" else _in_kernel(ctx, access, tile)


def _rows(ctx: Context, access: Access) -> _Rows | None:
    tensor = ctx.program.tensor(access.tensor)
    if any(isinstance(index, NewAxis) for index in access.index):
        return None
    slices = numbered(access, tensor)
    if len(slices) != 2 or [dim for dim, _, _ in slices.values()] != [0, 1]:
        return None
    (row, (_, stride, rows)), (last, (_, _, columns)) = slices.items()
    size = BYTES.get(tensor.dtype)
    if size is None or last != len(tensor.shape) - 1 or 1 in (rows.extent, columns.extent):
        return None
    if any(ctx.padding.is_padded(s.extent) for s in (rows, columns)) or columns.extent * size < ALIGNMENT:
        return None
    every = steps(tensor)
    others = [step for n, step in enumerate(every) if n not in slices]
    if any(step * size % ALIGNMENT for step in (*others, stride)) or max(rows.extent, columns.extent) > LARGEST:
        return None
    if every[last] != 1 or stride < tensor.shape[last]:  # elements apart, or rows that share elements
        return None
    if tensor.sizes is not None and not _are_constant(step(tensor, row), tensor.sizes[last]):
        return None
    return _Rows(row, stride, rows, columns)


def _in_kernel(ctx: Context, access: Access, tile: _Rows) -> tuple[str, str] | None:
    """A descriptor of two dimensions of the tensor whose base depends only on the grid, so that a program makes it
    once; rows past the end of the tensor read as 0."""
    tensor = ctx.program.tensor(access.tensor)
    scalars = [i for i in access.index if not isinstance(i, Slice)]
    in_grid = {axis.var for axis in ctx.kernel.grid}
    if any(names_of_index(i) - in_grid for i in scalars):
        return None  # it would be made again in every iteration
    ctx.uses_descriptors = True
    starts = iter(Slice(Int(0), s.extent, s.axis) for s in (tile.rows, tile.columns))
    bare = Access(access.tensor, tuple(next(starts) if isinstance(i, Slice) else i for i in access.index))
    text = (
        f"tl.make_tensor_descriptor({base(ctx, tensor, bare)}, [{tensor.shape[tile.dimension]}, {tensor.shape[-1]}], "
        f"[{tile.stride}, 1], [{tile.rows.extent}, {tile.columns.extent}])"
    )
    names = frozenset(name for i in scalars for name in names_of_index(i))
    key = ("descriptor", access.tensor, bare.index)
    name = ctx.define(key, f"{access.tensor}_rows", names, text)
    return name, f"[{ctx.index(tile.rows.start)}, {ctx.index(tile.columns.start)}]"


def _on_host(ctx: Context, access: Access, tile: _Rows) -> tuple[str, str] | None:
    """A descriptor of the tensor as one matrix; None if the tile may reach past the end of a dimension."""
    placed = _descriptor_of_matrix(ctx, access, tile, several=False)
    return None if placed is None else (placed[0].parameter, f"[{', '.join(placed[1])}]")


def host_descriptor(
    ctx: Context, access: Access, together: int | None = None
) -> tuple[HostDescriptor, tuple[str, ...]] | None:
    """A descriptor that the launcher makes, and the tile's position in it: row and column, or matrix, row and column
    if tiles do not divide the rows; None if pointers must be used.

    Args:
        together: rows of a larger tile of which this is a part; what counts is then whether that divides the rows.
    """
    tile = _rows(ctx, access)
    return None if tile is None else _descriptor_of_matrix(ctx, access, tile, several=True, together=together)


def leaves_matrix(tensor: Tensor, block: tuple[int, ...]) -> bool:
    """Whether tiles of that many rows and columns do not divide the tensor's, its last two dimensions."""
    return leaves_rows(tensor, block[0]) or _leaves_columns(tensor, block[1])


def leaves_rows(tensor: Tensor, rows: int) -> bool:
    """Whether tiles of `rows` rows do not divide the tensor's rows, its last dimension but one; those of a tensor with
    sizes that are known at the launch only are taken not to."""
    return tensor.sizes is not None or tensor.shape[-2] % rows != 0


def _leaves_columns(tensor: Tensor, columns: int) -> bool:
    return tensor.shape[-1] % columns != 0


def _descriptor_of_matrix(
    ctx: Context, access: Access, tile: _Rows, *, several: bool, together: int | None = None
) -> tuple[HostDescriptor, tuple[str, ...]] | None:
    """A descriptor of the whole tensor as one matrix, of which each tile must stay inside its own rows: past them are
    those of the next index. With `several`, one of a matrix for each index, if tiles do not divide the rows.

    An index of a dimension whose stride is a multiple of the rows' moves the tile by rows, one of a smaller stride by
    columns: in (batch, heads, length, head_dim) with the strides of (batch, length, heads, head_dim), heads are
    columns.  They are matrices if the tile's columns reach past the tensor's, where those of the next head are.
    """
    tensor = ctx.program.tensor(access.tensor)
    if tile.dimension != len(tensor.shape) - 2 or ctx.program.tensor(access.tensor).space == "chip":
        return None
    if tensor.sizes is not None:
        return _descriptor_by_sizes(ctx, access, tile) if several else None
    several = several and leaves_matrix(tensor, (together or tile.rows.extent, tile.columns.extent))
    past_columns = several and _leaves_columns(tensor, tile.columns.extent)
    for part, size, inside in (
        (tile.rows, tensor.shape[-2], not several),
        (tile.columns, tensor.shape[-1], not past_columns),
    ):
        at = ctx.interval(part.start)
        if at.lo < 0 or (inside and at.hi + part.extent > size):
            return None
    outer: list[tuple[IndexExpr, int]] = []
    row: list[tuple[IndexExpr, int]] = []
    column: list[tuple[IndexExpr, int]] = []
    sizes: list[int] = []  # of the outer dimensions
    ends = [1, 1]
    for n, (index, size, apart) in enumerate(zip(access.index, tensor.shape, steps(tensor), strict=True)):
        start = index.start if isinstance(index, Slice) else index
        assert not isinstance(start, NewAxis)
        by_rows = apart % tile.stride == 0
        if apart == 0 or (size == 1 and not by_rows):  # the only index is 0
            continue
        if several and n < tile.dimension and (apart > tile.stride or past_columns):
            outer.append((start, apart))
            sizes.append(size)
            continue
        if not by_rows and apart > tile.stride:
            return None
        (row if by_rows else column).append((start, apart // tile.stride if by_rows else apart))
        ends[not by_rows] += (size - 1) * (apart // tile.stride if by_rows else apart)
    if ends[1] > tile.stride:
        return None
    at = [simplify(_multiple(*weighted_sum(terms))) for terms in (row, column)]
    matrices = None
    if several:
        matrix, unit = weighted_sum(outer)
        last = sum((size - 1) * (apart // unit) for size, (_, apart) in zip(sizes, outer, strict=True))
        matrices = (last + 1, unit or tile.stride)
        at = [simplify(matrix), *at]
    return _descriptor_of(ctx, access, tile, (ends[0], ends[1]), matrices), tuple(map(ctx.index, at))


def _descriptor_by_sizes(ctx: Context, access: Access, tile: _Rows) -> tuple[HostDescriptor, tuple[str, ...]] | None:
    """As `_descriptor_of_matrix` with `several`, of a tensor with sizes that are known at the launch: a
    matrix for each index of the dimensions whose strides are larger than the rows', or multiples of one size.

    Formal statement: an element (rows r, columns c, others o) of the tensor is r * stride + c + sum(o * step) elements
    after its first one.  The matrix m, row r and column c' of the descriptor are m * unit + r * stride + c' elements
    after it.  Each step is a multiple of `unit`, and moves m, or is smaller than `stride`, and moves c'; c' stays below
    `stride`, so no two elements share a place.  Rows of a matrix end at the tensor's, whatever the sizes are.
    """
    tensor = ctx.program.tensor(access.tensor)
    if ctx.interval(tile.rows.start).lo < 0 or ctx.interval(tile.columns.start).lo < 0:
        return None
    past_columns = ctx.interval(tile.columns.start).hi + tile.columns.extent > tensor.shape[-1]
    outer: list[tuple[IndexExpr, int]] = []
    column: list[tuple[IndexExpr, int]] = [(tile.columns.start, 1)]
    names: set[str] = set()
    last: IndexExpr = Int(0)
    counts: list[tuple[IndexExpr, int]] = []
    width = tensor.shape[-1]
    every = sizes_of(tensor)
    for n, (index, size) in enumerate(zip(access.index[: tile.dimension], every, strict=False)):
        found = multiple_of(step(tensor, n))
        assert not isinstance(index, NewAxis | Slice)
        if found is None:
            return None
        name, factor = found
        if factor * BYTES[tensor.dtype] % ALIGNMENT:
            return None
        if size == Int(1) or factor == 0:  # the only index is 0, or each has the same elements
            continue
        if name or factor > tile.stride or past_columns:
            names.add(name)
            outer.append((index, factor))
            counts.append((size, factor))
        elif factor == tile.stride or not isinstance(size, Int):
            return None
        else:
            column.append((index, factor))
            width += (size.value - 1) * factor
    if len(names) > 1 or width > tile.stride:
        return None
    matrix, unit = weighted_sum(outer)
    for size, factor in counts:
        last = Arith("+", last, Arith("*", Arith("-", size, Int(1)), Int(factor // unit)))
    count = simplify(Arith("+", last, Int(1)))
    apart: Extent = unit or tile.stride
    if names and (name := names.pop()):
        apart = simplify(Arith("*", Name(name), Int(unit)))
    at = [simplify(matrix), simplify(tile.rows.start), simplify(_multiple(*weighted_sum(column)))]
    made = _descriptor_of(ctx, access, tile, (every[tile.dimension], width), (count, apart))
    return made, tuple(map(ctx.index, at))


def _descriptor_of(
    ctx: Context,
    access: Access,
    tile: _Rows,
    shape: tuple[Extent, int],
    matrices: tuple[Extent, Extent] | None,
) -> HostDescriptor:
    """The descriptor of a tensor for blocks of the tile's shape; the same for all of them."""
    block = (tile.rows.extent, tile.columns.extent)
    made = ctx.host_descriptors.get((access.tensor, block))
    if made is None:
        name = ctx.names.fresh(f"{access.tensor}_rows")
        made = HostDescriptor(name, access.tensor, shape, tile.stride, block, matrices)
        ctx.host_descriptors[(access.tensor, block)] = made
    return made


def _multiple(offset: IndexExpr, unit: int) -> IndexExpr:
    return offset if unit <= 1 else Arith("*", offset, Int(unit))
