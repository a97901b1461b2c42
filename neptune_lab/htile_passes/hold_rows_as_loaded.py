"""Holds rows of 16 bits as they were loaded between the passes over them, not as the float32 that each pass makes of
them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.held_rows import FEWEST, LANES, MOST, MOST_OF_SEVERAL
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import (
    expressions,
    reads,
    region,
    rewrite_store,
    tile_dims,
    tile_read,
    written_tensors,
)
from neptune_lab.htile_passes.rewrite import fresh_name, map_kernels_with_tiles, tile_pass
from neptune_lab.strict.dtypes import itemsize

# Bytes of an element of rows that are held as they were loaded: `again` packs two into a register.
LOADED_BYTES = 2


@tile_pass(before="read_elements_first")
def hold_rows_as_loaded(program: ir.Program) -> ir.Program:
    """Before => after, of each piece of a row with vectors along it:

        m[i] = reduce(sum, float32(x[i, 0:2048]), dim=0) / 2048
        s[i] = reduce(sum, square(float32(x[i, 0:2048]) - m[i]), dim=0)
        y[i, 0:2048] = (float32(x[i, 0:2048]) - m[i]) * s[i] * float32(gamma[0:2048])
        =>
        m[i] = reduce(sum, float32(x[i, 0:2048]), dim=0) / 2048
        x_held[0:2048] = again(x[i, 0:2048])
        s[i] = reduce(sum, square(float32(x_held[0:2048]) - m[i]), dim=0)
        x_held_2[0:2048] = again(x_held[0:2048])
        y[i, 0:2048] = (float32(x_held_2[0:2048]) - m[i]) * s[i] * float32(gamma[0:2048])

    Triton and the assembler compute equal expressions once, so a program would hold the row as float32, or what the
    pass before has made of it, in twice as many registers.  `again` is the value itself, of which they do not know what
    was computed of it.  So a multiprocessor runs more programs, of which some load while others compute or store, and
    wait for the vectors.  Rows without vectors, such as those of a softmax, took as long as before.  Of a layer_norm's
    gradient, x and the cotangent are held so: of 5811 x 11048, its rows take 118 us on an H200, and 156 in float32.

    Formal statement: the kernel is one sequence of statements, and none stores to the tensor, so each read of a tile
    gives the same.
    """
    return program if program.sizes else map_kernels_with_tiles(program, _kernel)


def _kernel(kernel: ir.Kernel, program: ir.Program, names: set[str], added: list[ir.Tensor]) -> ir.Kernel:
    own = [stmt for stmt in kernel.body if isinstance(stmt, ir.Store)]
    every = [expr for stmt in own for expr in expressions(stmt)]
    if kernel.num_warps not in MOST or len(own) < len(kernel.body) or any(_is_apart(expr) for expr in every):
        return kernel
    lanes = LANES * kernel.num_warps
    tiles = {t: a for t, a in _tiles(own, kernel, program).items() if prod(shape_of_access(a)) >= 2 * lanes}
    reducing = [n for n, stmt in enumerate(own) if any(isinstance(e, ir.Reduce) for e in expressions(stmt))]
    if not reducing:
        return kernel
    later = {n: _tiles(own[n + 1 :], kernel, program).keys() & tiles.keys() for n in reducing}
    first = _tiles(own[: reducing[0] + 1], kernel, program).keys()
    programs = prod(axis.extent for axis in kernel.grid)
    # (programs share vectors, and copies of them for each place where a row may begin)
    vectors = {tile.tensor for tile in tiles if prod(program.tensor(tile.tensor).shape[:-1]) < programs}
    kept = (tile for tile in tiles if tile in first and tile in later[reducing[0]] and tile.tensor not in vectors)
    rows = {tile: tiles[tile] for tile in kept}
    of_lane = sum(prod(shape_of_access(access)) for access in rows.values()) // lanes
    several = len({tile.tensor for tile in rows}) > 1
    most = MOST_OF_SEVERAL.get(kernel.num_warps, 0) if several else MOST[kernel.num_warps]
    if not vectors or not FEWEST <= of_lane <= most:
        return kernel
    body: list[ir.Stmt] = []
    now: dict[ir.Access, ir.Access] = {}  # tile -> what holds it
    read: dict[ir.Access, None] = {}  # tiles that were read since they were loaded or copied

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        held = now.get(tile_read(expr)) if isinstance(expr, ir.Access) else None
        if held is None or not isinstance(expr, ir.Access):
            return expr
        dims = (replace(d, start=ir.Int(0)) if isinstance(d, ir.Slice) else d for d in tile_dims(expr.index))
        return ir.Access(held.tensor, tuple(dims))

    for n, stmt in enumerate(own):
        body.append(rewrite_store(stmt, visit))
        read |= dict.fromkeys(tile for tile in _tiles([stmt], kernel, program) if tile in rows)
        for tile in [t for t in read if t in later.get(n, ())]:
            source = now.get(tile, rows[tile])
            name = fresh_name(f"{tile.tensor}_held", names, "_")
            names.add(name)
            added.append(ir.Tensor(name, shape_of_access(tile), program.tensor(tile.tensor).dtype, "chip"))
            slices = (replace(i, start=ir.Int(0)) for i in rows[tile].index if isinstance(i, ir.Slice))
            now[tile] = ir.Access(name, tuple(slices))
            value = ir.Elementwise("again", (source,), program.tensor(tile.tensor).dtype)
            body.append(ir.Store(f"{stmt.node_id}.{name}", now[tile], value, stmt.origin))
            del read[tile]
    return replace(kernel, body=tuple(body))


def _is_apart(expr: ir.TileExpr) -> bool:
    """Whether a kernel with this stays as it is: products, and rows that are computed again already."""
    return isinstance(expr, ir.Dot) or (isinstance(expr, ir.Elementwise) and expr.op == "again")


def _tiles(body: Iterable[ir.Store], kernel: ir.Kernel, program: ir.Program) -> dict[ir.Access, ir.Access]:
    """The pieces of rows of 16 bits in global memory that statements read, by the tile that is read."""
    written = written_tensors(kernel)
    found: dict[ir.Access, ir.Access] = {}
    for access in (ir.Access(a.tensor, region(a)) for stmt in body for a in reads(stmt)):
        tensor = program.tensor(access.tensor)
        if tensor.space == "chip" or access.tensor in written or itemsize(tensor.dtype) != LOADED_BYTES:
            continue
        if len(shape_of_access(access)) == 1:
            found.setdefault(tile_read(access), access)
    return found


__all__ = ["hold_rows_as_loaded"]
