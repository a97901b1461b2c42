"""Reads the vectors of a row before the first reduction of a program, which waits for the row there anyway."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.odd_rows import has_odd_rows
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import expressions, read_tensors, reads, region, rewrite_store, tile_read, written_tensors
from neptune_lab.htile_passes.hoist_invariant_loads import loaded_first, tile_access
from neptune_lab.htile_passes.rewrite import DEFAULT_WARPS, LANES, map_kernels_with_tiles, tile_pass

# The most programs, but for rows of an odd number of elements, which are loaded one by one: of more, others load
# meanwhile. On an H200 a layer_norm of 322 x 655 takes 2.12 us so and 2.21 without, of 67 x 2065 1.95 and 2.80, of
# 1000 x 768 2.06 and 2.05, of 1500 x 3504 5.77 and 5.44; of 1900 x 2065, with vectors loaded as the row is
# (`beside_rows`), 6.7 and 9.7.
MOST_PROGRAMS = 512
# The most elements of all vectors for each lane, which wait in registers.
MOST_PER_LANE = 64


@tile_pass(after="read_elements_first")
def read_vectors_first(program: ir.Program) -> ir.Program:
    """Before => after, in a kernel of few programs, without loops and products:

        m[i] = reduce(sum, x[i, 0:2048], dim=0)
        y[i, 0:2048] = (x[i, 0:2048] - m[i]) * gamma[0:2048]
        =>
        gamma_first[0:2048] = gamma[0:2048]
        m[i] = reduce(sum, x[i, 0:2048], dim=0)
        y[i, 0:2048] = (x[i, 0:2048] - m[i]) * gamma_first[0:2048]

    A reduction among threads has a barrier, which loads behind it wait for. So a program that is alone on its
    multiprocessor waits for memory twice, for the row and for what it is scaled with.

    Formal statement: the tile is one of a vector that the kernel does not store to, and its index has no variable.
    """
    return program if program.sizes else map_kernels_with_tiles(program, _kernel)


def _kernel(kernel: ir.Kernel, program: ir.Program, names: set[str], added: list[ir.Tensor]) -> ir.Kernel:
    own = [stmt for stmt in kernel.body if isinstance(stmt, ir.Store)]
    every = [tuple(expressions(stmt)) for stmt in own]
    many = prod(axis.extent for axis in kernel.grid) > MOST_PROGRAMS
    if len(own) < len(kernel.body) or (many and not has_odd_rows(program, kernel)):
        return kernel
    if any(isinstance(expr, ir.Dot) for exprs in every for expr in exprs):
        return kernel
    first = next((n for n, exprs in enumerate(every) if any(isinstance(e, ir.Reduce) for e in exprs)), len(own))
    early = set().union(*map(read_tensors, own[: first + 1]))
    found: dict[ir.Access, tuple[ir.Tensor, ir.Store]] = {}
    late = [a for a in _loads(own[first + 1 :], program) if a.tensor not in early]
    if not all(_is_vector(access, kernel, program) for access in late):
        return kernel  # (it waits for the others all the same)
    for access in late:
        if tile_read(access) not in found:
            slices = tuple(index for index in access.index if isinstance(index, ir.Slice))
            made = loaded_first(
                program.tensor(access.tensor), "first", access, slices, names, kernel.node_id, own[first].origin
            )
            found[tile_read(access)] = made
    elements = sum(prod(tile.shape) for tile, _ in found.values())
    if not found or elements > MOST_PER_LANE * LANES * (kernel.num_warps or DEFAULT_WARPS):
        names.difference_update(tile.name for tile, _ in found.values())
        return kernel

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        made = found.get(tile_read(expr)) if isinstance(expr, ir.Access) else None
        return tile_access(made[0].name, expr) if made is not None and isinstance(expr, ir.Access) else expr

    added += [tile for tile, _ in found.values()]
    later = (rewrite_store(stmt, visit) for stmt in own[first:])
    return replace(kernel, body=(*own[:first], *(load for _, load in found.values()), *later))


def _loads(body: Iterable[ir.Store], program: ir.Program) -> Iterable[ir.Access]:
    """What statements read of tensors outside of the chip, without its shape."""
    every = (ir.Access(access.tensor, region(access)) for stmt in body for access in reads(stmt))
    return (access for access in every if program.tensor(access.tensor).space != "chip")


def _is_vector(access: ir.Access, kernel: ir.Kernel, program: ir.Program) -> bool:
    """Whether it is a tile of a vector, the same in each program, that the kernel does not store to."""
    if access.tensor in written_tensors(kernel) or len(program.tensor(access.tensor).shape) != 1:
        return False
    (index,) = access.index
    return isinstance(index, ir.Slice) and isinstance(index.start, ir.Int) and prod(shape_of_access(access)) > 1


__all__ = ["read_vectors_first"]
