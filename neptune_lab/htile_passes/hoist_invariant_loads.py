"""Loads a tile once before a loop if every iteration loads the same one (loop-invariant code motion)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from neptune_lab.htile.nodes import (
    Access,
    For,
    Gather,
    Int,
    Iota,
    Kernel,
    Program,
    Scalar,
    Slice,
    Stmt,
    Store,
    Tensor,
    TileExpr,
)
from neptune_lab.htile.walk import (
    names_of_access,
    names_of_index,
    region,
    rewrite_store,
    same_region,
    subexpressions,
    tile_dims,
    unchanged,
    with_body,
    written_tensors,
)
from neptune_lab.htile_passes.rewrite import fresh_name, tile_pass


@tile_pass(after="share_common_tiles")
def hoist_invariant_loads(program: Program) -> Program:
    """A global tile that a loop reads, at an index without the loop's variable, is loaded to an on-chip tile first.

        for j0 in range(4):
            score[...] = dot(q[b, h, i0*128:i0*128+128, 0:64], ...)
        =>
        q_tile[0:128, 0:64] = q[b, h, i0*128:i0*128+128, 0:64]
        for j0 in range(4):
            score[...] = dot(q_tile[0:128, 0:64], ...)

    Only for tensors that the kernel does not store to.  The load moves out of as many loops as its index allows.  The
    on-chip tensor is as large as the tile, so it also holds the zeros that are loaded past the end of the tensor.  A
    matrix that is gathered at positions, such as the queries of a group of heads, is loaded first too.
    """
    return hoisted(program, {})


def hoisted(program: Program, moving: Mapping[str, frozenset[str]]) -> Program:
    """As `hoist_invariant_loads`, but for loads with a variable of the grid in their index that `moving` holds, by the
    kernel's name: a loop that need not run is to load these."""
    hoister = _Hoister(program, moving)
    kernels = tuple(hoister.kernel(kernel) for kernel in program.kernels)
    if not hoister.tensors:
        return program
    return replace(program, kernels=kernels, tensors=(*program.tensors, *hoister.tensors))


@dataclass(slots=True)
class _Level:
    """One loop that is being rewritten and the loads to put before it."""

    loop: For
    loads: list[tuple[Access | Gather, Store]] = field(default_factory=list)


class _Hoister:
    def __init__(self, program: Program, moving: Mapping[str, frozenset[str]]) -> None:
        self.program, self.every_moving = program, moving
        self.moving: frozenset[str] = frozenset()
        self.names = {tensor.name for tensor in program.tensors}
        self.tensors: list[Tensor] = []
        self.stored: frozenset[str] = frozenset()

    def kernel(self, kernel: Kernel) -> Kernel:
        self.stored = written_tensors(kernel)
        self.moving = self.every_moving.get(kernel.name, frozenset())
        body = self.body(kernel.body, [])
        return with_body(kernel, body)

    def body(self, body: tuple[Stmt, ...], around: list[_Level]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Store):
                out.append(self.store(stmt, around))
                continue
            level = _Level(stmt)
            inner = self.body(stmt.body, [*around, level])
            out += [load for _, load in level.loads]
            out.append(with_body(stmt, inner))
        return body if unchanged(out, body) else tuple(out)

    def store(self, store: Store, around: list[_Level]) -> Store:
        def visit(expr: TileExpr) -> TileExpr:
            match expr:
                case Access():
                    return self.access(expr, store, around)
                case Gather():
                    return self.gather(expr, store, around)
            return expr

        return rewrite_store(store, visit)

    def access(self, access: Access, store: Store, around: list[_Level]) -> Access:
        tensor = self.program.tensor(access.tensor)
        level = self.level(tensor, names_of_access(access), around)
        if level is None:
            return access
        for loaded, load in level.loads:
            if isinstance(loaded, Access) and loaded.tensor == tensor.name and same_region(loaded, access):
                return tile_access(load.target.tensor, access)
        bare = Access(tensor.name, region(access))
        load = self.load(bare, tuple(i for i in bare.index if isinstance(i, Slice)), tensor, store, level)
        level.loads.append((access, load))
        return tile_access(load.target.tensor, access)

    def gather(self, gather: Gather, store: Store, around: list[_Level]) -> Access | Gather:
        """A matrix that is gathered at positions; vectors, and what is looked up in other tensors, stay."""
        tensor, positions = self.program.tensor(gather.tensor), _positions(gather)
        if positions is None or sorted(positions[1]) != [-2, -1]:
            return gather
        used, slices = positions
        level = self.level(tensor, used, around)
        if level is None:
            return gather
        load = next((load for loaded, load in level.loads if loaded == gather), None)
        if load is None:
            load = self.load(gather, (slices[-2], slices[-1]), tensor, store, level)
            level.loads.append((gather, load))
        return load.target

    def level(self, tensor: Tensor, used: frozenset[str], around: list[_Level]) -> _Level | None:
        """The outermost loop that a load with these variables in its index may precede; None if there is none."""
        if tensor.space == "chip" or tensor.name in self.stored or used & self.moving:
            return None
        # Formal statement: the load may precede loop n if its index uses no variable of loops n, n + 1, ...
        free = next((n for n in range(len(around)) if not used & {level.loop.var for level in around[n:]}), None)
        return None if free is None else around[free]

    def load(
        self, value: Access | Gather, slices: tuple[Slice, ...], tensor: Tensor, store: Store, level: _Level
    ) -> Store:
        made, load = loaded_first(tensor, "tile", value, slices, self.names, level.loop.node_id, store.origin)
        self.tensors.append(made)
        return load


def loaded_first(
    tensor: Tensor,
    word: str,
    value: Access | Gather,
    slices: tuple[Slice, ...],
    names: set[str],
    node: str,
    origin: str,
) -> tuple[Tensor, Store]:
    """An on-chip tile of a tensor, and the store that loads it.

    Args:
        tensor: what is loaded.
        word: the end of the tile's name.
        value: what the tile holds.
        slices: its dimensions.
        names: of all tensors; the tile's is added.
        node, origin: the id of the node that the load belongs to, and its origin.

    Returns:
        The tile, and the store.
    """
    name = fresh_name(f"{tensor.name}_{word}", names, "_")
    names.add(name)
    tile = Tensor(name, tuple(index.extent for index in slices), tensor.dtype, "chip")
    return tile, Store(f"{node}.{name}", tile_access(name, Access(name, slices)), value, origin)


def _positions(gather: Gather) -> tuple[frozenset[str], dict[int, Slice]] | None:
    """The variables in the indices of a gather, and the slice that numbers each dimension of its tile; None if an index
    reads a tensor."""
    used: frozenset[str] = frozenset()
    slices: dict[int, Slice] = {}
    for part in (part for index in gather.indices for part in subexpressions(index)):
        match part:
            case Access() | Gather():
                return None
            case Iota(index=own):
                dim, index = next((n, i) for n, i in enumerate(own) if isinstance(i, Slice))
                used |= names_of_index(index.start)
                slices.setdefault(dim - len(own), index)
            case Scalar(value=value):
                used |= names_of_index(value)
    return used, slices


def tile_access(name: str, access: Access) -> Access:
    """`access` in the tile's own coordinates: each slice starts at 0, and scalar indices are dropped."""
    dims = tile_dims(access.index)
    return Access(name, tuple(replace(dim, start=Int(0)) if isinstance(dim, Slice) else dim for dim in dims))
