"""Loads and stores, and the masks that keep them inside their tensors.

An access becomes `base + vector[:, None] * stride + ...`: its scalar part is a named base pointer, and each slice is
a named index vector.  Strides are folded to constants.  There is a mask only if a slice
can leave its tensor, or if padding added lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from neptune_lab.htile.aligned import has_its_end
from neptune_lab.htile.nodes import Access, IndexExpr, Slice
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import reads, region, stores, tile_dims
from neptune_lab.htile_to_triton.addresses import aligned_start, inside, numbered, pointer, subscript, vector
from neptune_lab.htile_to_triton.context import ADD, AND, ATOM, COMPARE, Context, sizes_of
from neptune_lab.htile_to_triton.descriptors import descriptor
from neptune_lab.htile_to_triton.shared_loads import tile_of
from neptune_lab.strict.dtypes import FLOATS
from neptune_lab.wrapping import Doc, call, flat, seq

Condition: TypeAlias = tuple[str, int]  # text and its precedence


def mask(ctx: Context, access: Access, order: tuple[int, ...]) -> list[Condition]:
    """The conditions under which the elements of `access` exist; empty if all of them do."""
    tensor = ctx.program.tensor(access.tensor)
    rank = len(shape_of_access(access))
    tile_dim = {n: dim for n, (dim, _, _) in numbered(access, tensor).items()}
    conditions: list[Condition] = []
    blocks = aligned_start(ctx, access)
    if blocks is not None and not has_its_end(access, tensor, blocks[0], ctx.kernel):
        blocks = None
    for n, (index, size) in enumerate(zip(region(access), sizes_of(tensor), strict=True)):
        if isinstance(index, Slice) and index.extent > 1 and blocks is not None:
            conditions += _block_conditions(ctx, index, size, blocks[0])
        elif isinstance(index, Slice) and index.extent > 1:
            conditions += _slice_conditions(ctx, index, size, subscript(rank, order.index(tile_dim[n])))
        if isinstance(index, Slice) and index.extent > 1:
            continue
        scalar = index.start if isinstance(index, Slice) else index
        if ctx.passes(scalar, 1, size):
            conditions.append((f"{ctx.index(scalar, COMPARE + 1)} < {ctx.index(size, COMPARE + 1)}", COMPARE))
        if ctx.interval(scalar).lo < 0:
            conditions.append((f"{ctx.index(scalar, COMPARE + 1)} >= 0", COMPARE))
    return conditions


def _slice_conditions(ctx: Context, index: Slice, size: IndexExpr, place: str) -> list[Condition]:
    padded = ctx.padding.is_padded(index.extent)
    overflows = ctx.passes(index.start, index.extent, size)
    covered = ctx.covers(index.start, index.extent, size)  # then "before the end" implies "within the extent"
    conditions: list[Condition] = []
    if overflows or (padded and covered):
        conditions.append((f"{vector(ctx, index)}{place} < {ctx.index(size, COMPARE + 1)}", COMPARE))
    if padded and not covered:
        conditions.append((f"{inside(ctx, index.extent)}{place}", ATOM))
    if ctx.interval(index.start).lo < 0:
        conditions.append((f"{vector(ctx, index)}{place} >= 0", COMPARE))
    return conditions


def _block_conditions(ctx: Context, index: Slice, size: IndexExpr, block: int) -> list[Condition]:
    """The whole blocks of a slice of a row behind its head: all elements of one exist, or none is loaded or stored, so
    that each moves at once. The elements of the row's last block that is not whole are read and stored by another
    statement (`has_its_end`)."""
    if not ctx.passes(index.start, index.extent, size):
        return []
    left = f"({ctx.index(size, ADD)} - {ctx.index(index.start, ATOM)}) // {block} * {block}"
    return [(f"tl.arange(0, {index.extent}) < {left}", COMPARE)]


def conjunction(conditions: list[Condition]) -> str:
    """The conditions joined by `&`, each in brackets if Python needs them."""
    if len(conditions) == 1:
        return conditions[0][0]
    return " & ".join(text if level >= AND else f"({text})" for text, level in conditions)


def load(ctx: Context, access: Access, order: tuple[int, ...], extra: Sequence[Condition] = ()) -> Doc:
    """The load of a global access, its dimensions in `order`; elements that do not exist read as 0, and those of which
    an `extra` condition does not hold."""
    if ctx.options.loads != "pointers" and access.tensor not in ctx.written:
        described = descriptor(ctx, access)
        if described is not None:
            name, at = described
            tile = call(f"{name}.load", at)
            return tile if order == (0, 1) else call("tl.trans", tile)
    conditions = [*mask(ctx, access, order), *extra]
    if access.tensor in ctx.passed:
        return _take(ctx, access, conditions)
    args: list[Doc] = [pointer(ctx, access, order) + _unknown_zero(ctx, access)]
    if conditions:
        other = "0.0" if ctx.dtype(access) in FLOATS else "0"
        args += [f"mask={conjunction(conditions)}", f"other={other}"]
    policy = ctx.policies.get((ctx.loops[0].origin, access.tensor)) if ctx.loops else ctx.evicted.get(access.tensor)
    policy = ctx.again.get((ctx.origin, access.tensor), policy)
    if policy and access.tensor not in ctx.written:
        args.append(f'eviction_policy="{policy}"')
    if order and access.tensor in ctx.caching:
        args.append(ctx.caching[access.tensor])
    if ctx.again and order and (ctx.origin, access.tensor) not in ctx.again:
        # The first-level cache keeps the row: on an H100 layer_norm of 13642 x 42737 takes 863 us so and 902 without.
        args.append('cache_modifier=".cg"')
    return call("tl.load", *args)


def _unknown_zero(ctx: Context, access: Access) -> str:
    """A term of an address that is 0, of which Triton does not know, for vectors that are loaded as rows are."""
    if access.tensor not in ctx.beside:
        return ""
    return f" + {ctx.define(('zero',), 'zero', frozenset(), f'tl.program_id({len(ctx.kernel.grid)})')}"


def _take(ctx: Context, access: Access, conditions: list[Condition]) -> Doc:
    """What the programs of a row have passed on, from the words of a tensor (`waiting`)."""
    taken = call(ctx.helper("_take"), ctx.asked[access.tensor], _words(ctx, access), ctx.mark)
    return call("tl.where", conjunction(conditions), taken, "0.0") if conditions else taken


def _words(ctx: Context, access: Access) -> str:
    """The words of all parts of a row; a lane that has no part waits with the last one."""
    index = access.index[-1]
    assert isinstance(index, Slice), "programs take the numbers of all parts"
    lanes = vector(ctx, index)
    if mask(ctx, access, (0,)):
        lanes = f"tl.minimum({lanes}, {index.extent - 1})"
    return f"{ctx.passed[access.tensor]} + {lanes}"


def ask(ctx: Context, access: Access) -> None:
    """The line that loads what is in the words of a tensor so far (`_ask`)."""
    name = ctx.name_for(("asked", access.tensor), f"{access.tensor}_asked", ctx.scope)
    ctx.line(seq(f"{name} = ", call(ctx.helper("_ask"), _words(ctx, access))))
    ctx.asked[access.tensor] = name


def load_once(ctx: Context, access: Access, order: tuple[int, ...]) -> str:
    """The name of a tile that holds a global access, or its transpose: a line of its own loads it, once per scope if it
    is read-only."""
    kept = [isinstance(dim, Slice) for dim in tile_dims(access.index)]
    if any(kept) and not all(kept):
        # The tile is loaded without `NewAxis`, so that reads with different ones share the load.
        own = tuple(sum(kept[:dim]) for dim in order if kept[dim])
        name = load_once(ctx, Access(access.tensor, region(access)), own)
        return f"{name}{subscript(len(order), *(n for n, dim in enumerate(order) if kept[dim]))}"
    if order == (1, 0) and access.tensor not in ctx.written and tile_of(access) in ctx.in_both_orders:
        return flat(call("tl.trans", load_once(ctx, access, (0, 1))))
    doc = load(ctx, access, order)  # even if the tile is loaded already: this links the lines to the current node
    read_only = access.tensor not in ctx.written
    key = ("load", *tile_of(access), order, *_pass_of(ctx, access))
    loaded = ctx.scope.lookup(key) if read_only else None
    if loaded is None:
        barrier(ctx, access)
        name = ctx.name_for(key[:2], access.tensor, ctx.scope)
        loaded = (name, ctx.line(seq(f"{name} = ", doc)))
        if read_only:
            ctx.scope.known[key] = loaded
    loaded[1].used_by(ctx.node)
    return loaded[0]


def is_loaded(ctx: Context, access: Access, order: tuple[int, ...]) -> bool:
    """Whether a line before this one, which `load_once` finds, holds a global access."""
    kept = [isinstance(dim, Slice) for dim in tile_dims(access.index)]
    own = tuple(sum(kept[:dim]) for dim in order if kept[dim])
    key = ("load", *tile_of(access), own, *_pass_of(ctx, access))
    return access.tensor not in ctx.written and ctx.scope.lookup(key) is not None


def _pass_of(ctx: Context, access: Access) -> tuple[str, ...]:
    """The pass that loads a tile for itself (`loaded_again`); (): it shares the load with others."""
    return (ctx.origin,) if (ctx.origin, access.tensor) in ctx.again else ()


def barrier(ctx: Context, access: Access) -> None:
    """Before a read of a tensor that this kernel stores to: waits for the other threads of the program instance."""
    if access.tensor in ctx.written:
        ctx.line("tl.debug_barrier()")


def _beside_vectors(ctx: Context) -> bool:
    """Whether each pass loads a row again, with vectors along it."""
    again = {name for _, name in ctx.again}
    return bool(ctx.again) and any(
        ctx.program.tensor(a.tensor).space != "chip" and a.tensor not in again and len(shape_of_access(a)) == 1
        for stmt in stores(ctx.kernel.body)
        for a in reads(stmt)
    )


def store(ctx: Context, access: Access, value: Doc, extra: list[Condition]) -> Doc:
    """The store of `value` to a global access; elements that do not exist are dropped."""
    if ctx.options.loads != "pointers" and not extra:
        described = descriptor(ctx, access)
        if described is not None:
            return call(f"{described[0]}.store", described[1], value)
    order = tuple(range(len(shape_of_access(access))))
    conditions = mask(ctx, access, order) + extra
    args: list[Doc] = [pointer(ctx, access, order), value]
    if conditions:
        args.append(f"mask={conjunction(conditions)}")
    if (ctx.passed or ctx.in_lanes or _beside_vectors(ctx)) and order:
        # The second-level cache keeps the rows that are read again: on an H200 softmax of 6965 x 132506 takes 1077 us
        # so and 1138 without, layer_norm of 2509 x 118068 390 and 402.  It also keeps the vectors along rows that each
        # pass loads again: on an H100 layer_norm of 13642 x 42737 takes 838 us so and 865 without.
        args.append('cache_modifier=".cs"')
    return call("tl.store", *args)
