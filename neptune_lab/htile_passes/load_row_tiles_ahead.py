"""Loads the next tile of a row while the present one is reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.substitute import substitute
from neptune_lab.htile.walk import (
    expressions,
    names_of_index,
    reads,
    region,
    rewrite_store,
    same_region,
    stores,
    tile_dims,
    written_tensors,
)
from neptune_lab.htile_passes.rewrite import rewrite_loops, tile_pass

# The fewest iterations of such a loop.
FEWEST = 3


@tile_pass(after="cut_long_rows")
def load_row_tiles_ahead(program: ir.Program) -> ir.Program:
    """Before => after:

        for j0 in range(9):
            s[i] = s[i] + reduce(sum, x[i, j0*512:j0*512+512], dim=0)
        =>
        ahead[0:512] = x[i, 0:512]
        for j0 in range(9):
            now[0:512] = ahead[0:512]
            ahead[0:512] = x[i, min(j0+1, 8)*512:min(j0+1, 8)*512+512]
            s[i] = s[i] + reduce(sum, now[0:512], dim=0)

    A reduction ends with a wait for all threads of a program, who would then all wait for the next tile.  For loops
    without products, which read one tile of one row in each iteration.  On an H200 the log-sum-exp of 493 x 174042
    takes 43.4 instead of 48.3 µs.
    """

    def ahead(loop: ir.For, kernel: ir.Kernel, fresh: Callable[[str], str]):
        read = _read_ahead(loop, kernel, program)
        if read is None:
            return None
        dtype = program.tensor(read.tensor).dtype
        extents = tuple(i.extent for i in region(read) if isinstance(i, ir.Slice))
        first, now = (ir.Tensor(fresh(f"{read.tensor}_{name}"), extents, dtype, "chip") for name in ("ahead", "now"))
        return (first, now), _ahead(loop, read, first, now)

    return rewrite_loops(program, ahead)


def _read_ahead(loop: ir.For, kernel: ir.Kernel, program: ir.Program) -> ir.Access | None:
    """The one tile that an iteration reads of a row in global memory; None for other loops."""
    own = [stmt for stmt in loop.body if isinstance(stmt, ir.Store)]
    if len(own) < len(loop.body) or loop.within or loop.listed or program.sizes:
        return None
    if not (isinstance(loop.stop, ir.Int) and loop.start == ir.Int(0) and loop.stop.value >= FEWEST):
        return None
    if kernel.num_stages is not None or any(isinstance(e, ir.Dot) for s in stores(kernel.body) for e in expressions(s)):
        return None
    if any(program.tensor(s.target.tensor).space != "chip" for s in own):
        return None  # it stores what it reads: there is nothing to wait for
    if not any(isinstance(e, ir.Reduce) for s in own for e in expressions(s)):
        return None
    written = written_tensors(kernel)
    read = [
        a
        for s in own
        for a in reads(s)
        if program.tensor(a.tensor).space != "chip" and any(loop.var in names_of_index(i) for i in a.index)
    ]
    if not read or any(not same_region(read[0], a) or a.tensor != read[0].tensor for a in read):
        return None
    slices = [i for i in region(read[0]) if isinstance(i, ir.Slice)]
    if len(slices) != 1 or read[0].tensor in written:
        return None
    return read[0]


def _ahead(loop: ir.For, read: ir.Access, ahead: ir.Tensor, now: ir.Tensor) -> Iterator[ir.Stmt]:
    bare = ir.Access(read.tensor, region(read))
    axes = tuple(replace(i, start=ir.Int(0)) for i in bare.index if isinstance(i, ir.Slice))
    assert isinstance(loop.stop, ir.Int)
    load = ir.Store(f"{loop.node_id}.{ahead.name}", ir.Access(ahead.name, axes), bare, loop.origin)
    following = ir.Arith("min", ir.Arith("+", ir.Name(loop.var), ir.Int(1)), ir.Int(loop.stop.value - 1))

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        if isinstance(expr, ir.Access) and expr.tensor == read.tensor and same_region(expr, read):
            dims = tile_dims(expr.index)
            return ir.Access(
                now.name, tuple(replace(d, start=ir.Int(0)) if isinstance(d, ir.Slice) else d for d in dims)
            )
        return expr

    yield from substitute((load,), loop.var, ir.Int(0))
    (after,) = substitute((replace(load, node_id=f"{load.node_id}/next"),), loop.var, following)
    own = ir.Store(f"{loop.node_id}.{now.name}", ir.Access(now.name, axes), ir.Access(ahead.name, axes), loop.origin)
    body = tuple(rewrite_store(s, visit) if isinstance(s, ir.Store) else s for s in loop.body)
    yield replace(loop, body=(own, after, *body))
