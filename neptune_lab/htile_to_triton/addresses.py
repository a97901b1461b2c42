"""Addresses: named index vectors and base pointers, with the strides of tensors folded to constants."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import pairwise

from neptune_lab.htile.aligned import behind_the_head
from neptune_lab.htile.nodes import Access, Arith, IndexExpr, Int, Name, NewAxis, Slice, Tensor
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.sizes import multiple_of, product_of
from neptune_lab.htile.walk import names_of_index, region, simplify
from neptune_lab.htile_to_triton.context import ADD, MUL, Context, sizes_of
from neptune_lab.strict.values import INT32_MAX
from neptune_lab.tensor_spec import span


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor.

    >>> strides((4, 200, 64))
    (12800, 64, 1)
    """
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


def steps(tensor: Tensor) -> tuple[int, ...]:
    """Elements from one index of each dimension of a tensor to the next.

    >>> steps(Tensor("q", (8, 64), "float16", "input", (512, 1))), steps(Tensor("q", (8, 64), "float16", "input"))
    ((512, 1), (64, 1))
    """
    return strides(tensor.shape) if tensor.strides is None else tensor.strides


def is_wide(tensor: Tensor) -> bool:
    """Whether offsets of the tensor's elements need 64 bits."""
    return span(tensor.shape, steps(tensor)) > INT32_MAX


def is_wide_access(ctx: Context, tensor: Tensor, access: Access) -> bool:
    """Whether offsets along the slices of an access need 64 bits: those of a tensor of one shape if any of its
    elements' do."""
    return is_wide(tensor) if tensor.sizes is None else _slices_span(ctx, tensor, access) > INT32_MAX


def subscript(rank: int, *dims: int) -> str:
    """The subscript that puts a tile's dimensions at `dims` of a tile of rank `rank`; "" if these are all.

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
    return ctx.define(("vector", start, extent), vector_name(index.axis), names_of_index(start), text)


def vector_name(axis: str) -> str:
    """The name of an index vector along an axis: the axis without its number.

    >>> vector_name("i1"), vector_name("d")
    ('i', 'd')
    """
    return re.sub(r"(?<=[^\W\d_])_?\d+$", "", axis) or axis


def inside(ctx: Context, extent: int) -> str:
    """The named mask of the lanes that are not padding: `in_80 = tl.arange(0, 128) < 80`."""
    text = f"tl.arange(0, {ctx.padding.extent(extent)}) < {extent}"
    return ctx.define(("inside", extent), f"in_{extent}", frozenset(), text)


def pointer(ctx: Context, access: Access, order: tuple[int, ...]) -> str:
    """The pointers to the elements of `access`, its dimensions in `order`."""
    tensor = ctx.program.tensor(access.tensor)
    shape = shape_of_access(access)
    if (found := aligned_start(ctx, access)) is not None:
        return _aligned_pointer(ctx, tensor, access, *found)
    parts = [base(ctx, tensor, access)]
    wide = _slices_span(ctx, tensor, access) > INT32_MAX
    for n, (dim, _, index) in numbered(access, tensor).items():
        if index.extent == 1:
            continue
        place = subscript(len(shape), order.index(dim))
        name = f"{vector(ctx, index)}{'.to(tl.int64)' if wide else ''}{place}"
        parts.append(name + times_step(ctx, tensor, n))
    if shape and math.prod(shape) == 1:
        parts.append(f"tl.zeros([{', '.join('1' for _ in shape)}], tl.int32)")
    return " + ".join(parts)


def aligned_start(ctx: Context, access: Access) -> tuple[int, IndexExpr] | None:
    """As `behind_the_head`, of a tile of one dimension of a tensor whose sizes are known."""
    tensor = ctx.program.tensor(access.tensor)
    if tensor.sizes is not None or len(access.index) != len(tensor.shape) or len(shape_of_access(access)) != 1:
        return None
    return behind_the_head(access, steps(tensor))


def _aligned_pointer(ctx: Context, tensor: Tensor, access: Access, block: int, rest: IndexExpr) -> str:
    """Pointers that Triton sees to begin at a multiple of `block` elements: where the row begins, rounded up."""
    own = Access(access.tensor, (*access.index[:-1], Int(0)))
    offset = _offset(ctx, tensor, own)
    assert offset is not None, "a row without an offset has no head"
    text, key = offset
    name = f"{tensor.name}_row"
    rounded = f"{ctx.pointers[tensor.name]} + ({text} + {block - 1}) // {block} * {block}"
    row = ctx.define(("row", *key, block), name, frozenset().union(*map(names_of_index, own.index)), rounded)
    last = access.index[-1]
    assert isinstance(last, Slice)
    lanes = f"tl.arange(0, {ctx.padding.extent(last.extent)})"
    return f"{row} + {lanes}" if rest == Int(0) else f"{row} + ({ctx.index(rest, ADD)} + {lanes})"


def numbered(access: Access, tensor: Tensor) -> dict[int, tuple[int, int, Slice]]:
    """Dimension of the tensor -> (dimension of the tile, stride, slice), for every slice of `access`."""
    out: dict[int, tuple[int, int, Slice]] = {}
    tile_dim, tensor_dim = 0, 0
    strides_of = steps(tensor)
    for index in access.index:
        if isinstance(index, Slice):
            out[tensor_dim] = (tile_dim, strides_of[tensor_dim], index)
        tile_dim += isinstance(index, Slice | NewAxis)
        tensor_dim += not isinstance(index, NewAxis)
    return out


def sliced(access: Access, tensor: Tensor) -> list[tuple[int, int, Slice]]:
    """For each slice of `access`: dimension of the tile, stride, slice."""
    return list(numbered(access, tensor).values())


def _slices_span(ctx: Context, tensor: Tensor, access: Access) -> int:
    reach = sum(
        ctx.most([step(tensor, n)]) * max(0, ctx.interval(s.start).hi + s.extent)
        for n, (_, _, s) in numbered(access, tensor).items()
    )
    if tensor.sizes is None:
        return min(reach, span(tensor.shape, steps(tensor)))
    return reach if tensor.strides is not None else min(reach, ctx.most(sizes_of(tensor)))


def step(tensor: Tensor, n: int) -> IndexExpr:
    """The stride of dimension `n`, in elements."""
    if tensor.steps is not None:
        return tensor.steps[n]
    known = tensor.strides is not None or tensor.sizes is None
    return Int(steps(tensor)[n]) if known else product_of(sizes_of(tensor)[n + 1 :])


def times_step(ctx: Context, tensor: Tensor, n: int) -> str:
    """The text that multiplies an index of dimension `n` by its stride; factor by factor, in the dtype of the index."""
    if tensor.steps is not None:
        found = multiple_of(tensor.steps[n])
        assert found is not None
        name, factor = found
        sizes: tuple[IndexExpr, ...] = (*([Name(name)] if name else []), Int(factor))
    elif tensor.strides is not None or tensor.sizes is None:
        sizes = (Int(steps(tensor)[n]),)
    else:
        sizes = sizes_of(tensor)[n + 1 :]
    constant = math.prod(size.value for size in sizes if isinstance(size, Int))
    factors = [ctx.index(size, MUL + 1) for size in sizes if not isinstance(size, Int)]
    return "".join(f" * {factor}" for factor in (*factors, *([str(constant)] if constant != 1 else [])))


def base(ctx: Context, tensor: Tensor, access: Access) -> str:
    """The scalar part of an address, as a named pointer."""
    if tensor.sizes is not None:
        return _base_of_sizes(ctx, tensor, access)
    param = ctx.pointers[tensor.name]
    found = _offset(ctx, tensor, access)
    if found is None:
        return param
    text, key = found
    return ctx.define(("base", *key), f"{tensor.name}_base", names_of_index(key[1]), f"{param} + {text}")


def _offset(ctx: Context, tensor: Tensor, access: Access) -> tuple[str, tuple[str, IndexExpr, int]] | None:
    """The scalar part of an offset in elements, and what tells it from others; None if it is 0."""
    terms: list[tuple[IndexExpr, int]] = []
    for index, stride in zip(region(access), steps(tensor), strict=True):
        scalar = index if not isinstance(index, Slice) else index.start if index.extent == 1 else None
        if scalar is not None and simplify(scalar) != Int(0):
            terms.append((scalar, stride))
    offset, unit = weighted_sum(terms)
    if offset == Int(0):
        return None
    if not is_wide(tensor):
        text = ctx.index(offset, MUL if unit > 1 else ADD)
    elif ctx.interval(offset).hi <= INT32_MAX:
        text = f"tl.cast({ctx.index(offset)}, tl.int64)"
    else:
        parts = [f"tl.cast({ctx.index(i)}, tl.int64) * {stride // unit}" for i, stride in terms if stride]
        text = f"({' + '.join(parts)})"
    return (f"{text} * {unit}" if unit > 1 else text), (tensor.name, offset, unit)


def weighted_sum(terms: Iterable[tuple[IndexExpr, int]]) -> tuple[IndexExpr, int]:
    """The sum of index * stride, as an offset and the unit that it counts in.

    By Horner's rule if the strides nest, that is if each divides the next larger one.

    >>> from neptune_lab.htile.nodes import Name
    >>> b, h, i = Name("b"), Name("h"), Name("i")
    >>> weighted_sum([(b, 256), (h, 8), (i, 64)])[0] == simplify(weighted_sum([(b, 32), (i, 8), (h, 1)])[0])
    True
    >>> weighted_sum([(b, 96), (h, 64)])[1]
    32
    """
    ordered = sorted(((simplify(i), stride) for i, stride in terms if stride), key=lambda term: -term[1])
    unit = math.gcd(*(stride for _, stride in ordered))
    nest = all(larger % smaller == 0 for (_, larger), (_, smaller) in pairwise(ordered))
    offset: IndexExpr = Int(0)
    last = 0
    for index, stride in ordered:
        if not nest:
            offset = Arith("+", offset, Arith("*", index, Int(stride // unit)))
        else:
            offset = index if last == 0 else Arith("+", Arith("*", offset, Int(last // stride)), index)
        last = stride
    return simplify(offset), unit


def _base_of_sizes(ctx: Context, tensor: Tensor, access: Access) -> str:
    """As `base`, for a tensor with sizes that are known at the launch: in 64 bits, since it may be large."""
    param = ctx.pointers[tensor.name]
    offset: IndexExpr = Int(0)
    parts: list[tuple[IndexExpr, int]] = []  # an offset, and the dimension whose stride it has
    for n, (index, size) in enumerate(zip(region(access), sizes_of(tensor), strict=True)):
        scalar = index if not isinstance(index, Slice) else index.start if index.extent == 1 else Int(0)
        # Horner's rule over dimensions of constant size; the others have strides of their own.
        if isinstance(size, Int) and tensor.strides is None:
            offset = Arith("+", Arith("*", offset, size), scalar)
        else:
            parts.append((simplify(offset), n - 1))
            offset = scalar
    parts.append((simplify(offset), len(tensor.shape) - 1))
    used = [(at, n) for at, n in parts if at != Int(0)]
    if not used:
        return param
    names = frozenset(name for at, n in used for name in names_of_index(at) | names_of_index(step(tensor, n)))
    texts = [f"tl.cast({ctx.index(at)}, tl.int64){times_step(ctx, tensor, n)}" for at, n in used]
    key = ("base", tensor.name, *used)
    return ctx.define(key, f"{tensor.name}_base", names, " + ".join([param, *texts]))
