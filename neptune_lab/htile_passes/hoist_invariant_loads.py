"""Loads a tile once before a loop if every iteration loads the same one (loop-invariant code motion)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from neptune_lab.htile.nodes import Access, For, Int, Kernel, Program, Slice, Stmt, Store, Tensor, TileExpr
from neptune_lab.htile.walk import (
    names_of_access,
    region,
    rewrite_store,
    same_region,
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
    on-chip tensor is as large as the tile, so it also holds the zeros that are loaded past the end of the tensor.
    """
    hoister = _Hoister(program)
    kernels = tuple(hoister.kernel(kernel) for kernel in program.kernels)
    if not hoister.tensors:
        return program
    return replace(program, kernels=kernels, tensors=(*program.tensors, *hoister.tensors))


@dataclass(slots=True)
class _Level:
    """One loop that is being rewritten and the loads to put before it."""

    loop: For
    loads: list[tuple[Access, Store]] = field(default_factory=list)


class _Hoister:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = {tensor.name for tensor in program.tensors}
        self.tensors: list[Tensor] = []
        self.stored: frozenset[str] = frozenset()

    def kernel(self, kernel: Kernel) -> Kernel:
        self.stored = written_tensors(kernel)
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
            return self.access(expr, store, around) if isinstance(expr, Access) else expr

        return rewrite_store(store, visit)

    def access(self, access: Access, store: Store, around: list[_Level]) -> Access:
        tensor = self.program.tensor(access.tensor)
        if tensor.space == "chip" or tensor.name in self.stored:
            return access
        used = names_of_access(access)
        # Formal statement: the load may precede loop n if its index uses no variable of loops n, n + 1, ...
        free = next((n for n in range(len(around)) if not used & {level.loop.var for level in around[n:]}), None)
        if free is None:
            return access
        level = around[free]
        for loaded, load in level.loads:
            if loaded.tensor == tensor.name and same_region(loaded, access):
                return _tile_access(load.target.tensor, access)
        load = self.load(access, tensor, store, level)
        level.loads.append((access, load))
        return _tile_access(load.target.tensor, access)

    def load(self, access: Access, tensor: Tensor, store: Store, level: _Level) -> Store:
        name = fresh_name(f"{tensor.name}_tile", self.names, "_")
        self.names.add(name)
        bare = Access(tensor.name, region(access))
        extents = tuple(index.extent for index in bare.index if isinstance(index, Slice))
        self.tensors.append(Tensor(name, extents, tensor.dtype, "chip"))
        return Store(f"{level.loop.node_id}.{name}", _tile_access(name, bare), bare, store.origin)


def _tile_access(name: str, access: Access) -> Access:
    """`access` in the tile's own coordinates: each slice starts at 0, and scalar indices are dropped."""
    dims = tile_dims(access.index)
    return Access(name, tuple(replace(dim, start=Int(0)) if isinstance(dim, Slice) else dim for dim in dims))
