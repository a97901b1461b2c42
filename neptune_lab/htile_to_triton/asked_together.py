"""Loads of products of few rows that a program asks for together, so that it waits for the memory once.

Such products, as of decoding, take hardly any time beside the wait for their tiles.  Triton asks for the tiles of a
loop ahead, but stores what is loaded before the loop to shared memory first, which waits for it; and without a loop, it
loads the second product's tile when the first product is done.

    q_tile = tl.load(q)             for j0 in range(16):
    for j0 in range(16):        =>      q_tile = tl.load(q, mask=j0 >= 0)
        k = tl.load(k + j0 ...)         k = tl.load(k + j0 ...)

    q = tl.load(q)                  for once in range(tl.minimum(tl.num_programs(0), 1)):
    k = tl.load(k)              =>      q = tl.load(q)
    p = f(tl.dot(q, k))                 k = tl.load(k)
    v = tl.load(v)                      p = f(tl.dot(q, k))
    o = tl.dot(p, v)                    v = tl.load(v)
                                        o = tl.dot(p, v)

The condition of a load in a loop always holds, and the other loop runs once; but Triton does not know, so it neither
moves the load out nor removes the loop, and asks for all three tiles before it waits for one.  The rows are loaded
again for each tile of columns, from the caches: they are few beside it.

Tiles that are asked for together need shared memory at the same time.  Nothing is changed if fewer programs of the grid
then run at a time: on an H200, 304 programs with tiles of 128 columns took 14.5 us so, two on a multiprocessor, where
three took 13.1.  With room for all, 14 short kernels of single tiles took 0.86 to 1.01 of the time, 0.94 by geometric
mean, and 35 with loops 0.89 to 1.02, 0.99 by geometric mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from neptune_lab.htile.nodes import Access, Dot, For, Kernel, Program, Stmt, Store
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import accesses, expressions, read_tensors, stores, written_tensors
from neptune_lab.htile_to_triton.options import DEFAULT_STAGES, EmitOptions
from neptune_lab.htile_to_triton.padding import DOT_MINIMUM
from neptune_lab.power_of_two import power_of_two
from neptune_lab.strict.dtypes import itemsize

# The most bytes of rows that are loaded again for each tile.
_MOST_BYTES = 8 << 10
# Bytes of shared memory that a program takes beside the tiles of its products, about.
_BESIDE = 9 << 10


def loaded_in_loops(program: Program, kernel: Kernel, options: EmitOptions) -> Mapping[str, Store]:
    """The tiles of few rows that are loaded in each loop that reads them, and the statement that loads each.

    Only tiles that a statement before the loops loads from a tensor that the kernel does not store to, and that nothing
    outside of a loop reads.
    """
    stages = DEFAULT_STAGES if kernel.num_stages is None else kernel.num_stages
    if stages < 2 or not _asks_ahead(options):
        return {}
    written, found = written_tensors(kernel), {}
    multiplied = {dot.a.tensor for dot in _products(kernel.body) if isinstance(dot.a, Access)}
    straight = [stmt for stmt in kernel.body if isinstance(stmt, Store)]
    inside = [store for stmt in kernel.body if isinstance(stmt, For) for store in stores(stmt.body)]
    for stmt in straight:
        name, value = stmt.target.tensor, stmt.value
        if (
            name in multiplied
            and isinstance(value, Access)
            and stmt.mask is None
            and program.tensor(name).space == "chip"
            and program.tensor(value.tensor).space != "chip"
            and value.tensor not in written
            and shape_of(stmt.target, program) == shape_of(value, program)
            and _has_few_rows(shape_of(value, program))
            and _bytes(value, program) <= _MOST_BYTES
            and not any(name in read_tensors(other) for other in straight)
            and not any(other.target.tensor == name for other in (*straight, *inside) if other is not stmt)
        ):
            found[name] = stmt
    rows = sum(_bytes(stmt.value, program) for stmt in found.values() if isinstance(stmt.value, Access))
    tiles = sum(_bytes(tile, program) for tile in _loaded(program, kernel))
    before = (stages - 1) * tiles + rows
    return found if _runs_as_many(kernel, options, before, before + (stages - 2) * rows) else {}


def runs_once(program: Program, kernel: Kernel, options: EmitOptions) -> bool:
    """Whether the body of a kernel becomes a loop that runs once: it has no loop, and loads tiles of two products."""
    if not _asks_ahead(options) or any(isinstance(stmt, For) for stmt in kernel.body):
        return False
    products, tiles = tuple(_products(kernel.body)), _loaded(program, kernel)
    loading = [dot for dot in products if any(access in tiles for access in accesses(dot.b))]
    if len(loading) < 2 or not all(_has_few_rows(shape_of(dot.a, program)) for dot in products):
        return False
    sizes = [_bytes(tile, program) for tile in tiles]
    return _runs_as_many(kernel, options, max(sizes), sum(sizes))


def _runs_as_many(kernel: Kernel, options: EmitOptions, before: int, after: int) -> bool:
    """Whether as many programs run at a time with tiles of `after` bytes as with tiles of `before` bytes, or all."""
    fitting, fitted = (options.target.shared_memory // (size + _BESIDE) for size in (after, before))
    own = -(-prod(axis.extent for axis in kernel.grid) // options.target.sm_count)
    return fitting >= max(1, min(fitted, own))


def _asks_ahead(options: EmitOptions) -> bool:
    """Whether Triton loads tiles of a product's loop by asynchronous copies of single elements' addresses."""
    return options.loads == "pointers" and options.target.asynchronous_copies


def _has_few_rows(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and 1 < shape[0] <= DOT_MINIMUM


def _loaded(program: Program, kernel: Kernel) -> list[Access]:
    """The tiles in global memory that products read."""
    factors = (part for dot in _products(kernel.body) for part in (dot.a, dot.b))
    read = dict.fromkeys(access for part in factors for access in accesses(part))
    return [access for access in read if program.tensor(access.tensor).space != "chip"]


def _bytes(tile: Access, program: Program) -> int:
    """Of a tile in shared memory, whose sides are powers of two."""
    return prod(map(power_of_two, shape_of(tile, program))) * itemsize(program.tensor(tile.tensor).dtype)


def _products(body: tuple[Stmt, ...]) -> Iterator[Dot]:
    return (expr for store in stores(body) for expr in expressions(store) if isinstance(expr, Dot))


__all__ = ["loaded_in_loops", "runs_once"]
