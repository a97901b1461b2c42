"""Skips tiles that the values of an input hide, such as tiles of other documents than those of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine
from neptune_lab.htile.bounds import Env, grid_env
from neptune_lab.htile_passes.input_comparisons import (
    WORDS,
    BoundsKernel,
    Comparison,
    Intervals,
    both,
    compare,
    few_elements,
    int_of,
    literal,
    maskings,
    moves_alone,
    own_axes,
    trips,
)
from neptune_lab.htile_passes.partition_masked_loops.noop_iterations import NoOpProof, NoOpProver
from neptune_lab.htile_passes.rewrite import Rewrite, fresh_name, tile_pass
from neptune_lab.htile_passes.skip_tiles_by_positions import are_limits_of_few_rows

# With more elements, the program that finds the bounds has 8 warps.
ELEMENTS_OF_FOUR_WARPS = 1 << 12
# Tiles of columns that `skip_any_tiles_by_data` can bound.
MOST_TILES = 1 << 12


@tile_pass(before="skip_tiles_by_positions")
def skip_tiles_by_data(program: ir.Program) -> Rewrite:
    """Before => after, for a mask that compares the documents of rows and columns:

        for j0 in range(64):
            score[...] = where(doc[i0*64:i0*64+64, NewAxis] == doc[NewAxis, j0*64:j0*64+64], qk[...], -inf)
        =>
        kernel k_tiles  grid (i0: 64)
            k_first[i0] = number of the first tile of columns that may have an element of the rows' documents
            k_last[i0] = number of the last one, plus 1
        kernel k
        for j0 in range(64) within k_first[i0], k_last[i0]:
            score[...] = where(doc[i0*64:i0*64+64, NewAxis] == doc[NewAxis, j0*64:j0*64+64], qk[...], -inf)

    Formal statement: with a from the rows and b from the columns of a tile, a == b is false on the whole tile if the
    intervals of their values are disjoint; a < b if min a >= max b, and so on.  The range from the first to the last
    tile where no such interval decides contains every tile in which the condition holds somewhere, whatever the
    values are; it is short if they are sorted.  An iteration outside is proven to change nothing that is read
    afterwards, as for tiles that positions hide (`partition_masked_loops`).  At least one tile is visited.
    """
    return _skipped(program, many=False)


@tile_pass(on_request=True)
def skip_any_tiles_by_data(program: ir.Program) -> Rewrite:
    """As `skip_tiles_by_data`, in a form that is the same for every number of tiles: before => after

        kernel k_tiles  grid (i0: 64)
            …
        =>
        kernel k_tiles_ends  grid (t: 64)
            k_tiles_ends_column_min[t], k_tiles_ends_column_max[t] = least and largest document of tile t of the columns
        kernel k_tiles  grid (i0: 64)
            k_first[i0], k_last[i0] = as before, from these

    Kernels for all lengths have it.  There may be as many as `MOST_TILES` tiles.
    """
    return _skipped(program, many=True)


def _skipped(program: ir.Program, *, many: bool) -> Rewrite:
    skipper = _Skipper(program, many)
    kernels = tuple(k for kernel in program.kernels for k in skipper.kernel(kernel))
    if not skipper.notes:
        return Rewrite(program)
    return Rewrite(replace(program, tensors=(*program.tensors, *skipper.added), kernels=kernels), tuple(skipper.notes))


class _Skipper:
    def __init__(self, program: ir.Program, many: bool) -> None:
        self.program, self.many = program, many
        self.taken = {t.name for t in program.tensors} | {k.name for k in program.kernels}
        self.added: list[ir.Tensor] = []
        self.notes: list[str] = []

    def kernel(self, kernel: ir.Kernel) -> Iterator[ir.Kernel]:
        """The kernel, after those that find the bounds of its loops."""
        env, prover = grid_env(kernel), NoOpProver(self.program, kernel)
        body: list[ir.Stmt] = []
        for stmt in kernel.body:
            found = None
            if isinstance(stmt, ir.For):
                found = hiding_comparison(self.program, kernel, stmt, env, prover, many=self.many)
            if found is None:
                body.append(stmt)
                continue
            assert isinstance(stmt, ir.For)
            comparison, proof = found
            every, within = self.bounds(kernel, stmt, comparison, env)
            yield from every
            bounds = every[-1]
            body.append(replace(stmt, within=within))
            self.notes += _explained(kernel, stmt, bounds, comparison, proof)
        same = all(a is b for a, b in zip(body, kernel.body, strict=True))
        yield kernel if same else replace(kernel, body=tuple(body))

    def bounds(
        self, kernel: ir.Kernel, loop: ir.For, found: Comparison, env: Env
    ) -> tuple[list[ir.Kernel], tuple[ir.Access, ir.Access]]:
        """The kernels that find the numbers of the first tile, and of the last one plus 1; and what the last stores."""
        grid = own_axes(kernel, loop, found) or (ir.GridAxis(self._fresh("n"), 1),)
        made: list[ir.Kernel] = []
        make = BoundsKernel(self.program, self._fresh(f"{kernel.name}_tiles"), loop.origin, self.taken)
        count = trips(loop, env)
        if self.many:
            tiles = ir.GridAxis(self._fresh("t"), count)
            before = BoundsKernel(self.program, self._fresh(f"{make.name}_ends"), loop.origin, self.taken)
            ends = before.ends(found, loop, tiles)
            self.added += before.added
            made.append(ir.Kernel(f"kernel:{before.name}", before.name, (tiles,), tuple(before.body)))
            at = make.intervals_from(found, loop, env, ends, MOST_TILES)
        else:
            at = make.intervals(found, loop, env)
        tile = at.tile
        some = make.chip("may_hold", (at.tiles,), "bool", both(_may_hold(found.op, at), at.inside))
        begins = ir.Reduce("min", ir.Elementwise("where", (some, tile, literal(count - 1)), "int32"), 0)
        ends = ir.Reduce(
            "max", ir.Elementwise("where", (some, int_of("add", tile, literal(1)), literal(0)), "int32"), 0
        )
        begin = make.chip("begin", (), "int32", begins)
        first = make.store("first", grid, begin)
        end = make.chip("end", (), "int32", int_of("max", ends, int_of("add", begin, literal(1))))
        last = make.store("last", grid, end)
        self.added += make.added
        most = max(math.prod(t.shape) for t in make.added)
        warps = 8 if most > ELEMENTS_OF_FOUR_WARPS else None
        made.append(ir.Kernel(f"kernel:{make.name}", make.name, grid, tuple(make.body), warps))
        finds = found_tiles(self.program, loop, grid, found, env, (first.tensor, last.tensor))
        return [replace(kernel, finds=finds) for kernel in made], (first, last)

    def _fresh(self, wanted: str) -> str:
        name = fresh_name(wanted, self.taken)
        self.taken.add(name)
        return name


def hiding_comparison(
    program: ir.Program, kernel: ir.Kernel, loop: ir.For, env: Env, prover: NoOpProver, *, many: bool
) -> tuple[Comparison, NoOpProof] | None:
    """A comparison that hides tiles of a loop, and the proof that they may be left out; None if there is none.

    Args:
        many: in the form of `skip_any_tiles_by_data`.
    """
    if loop.within is not None or loop.listed is not None:
        return None
    for found in maskings(program, kernel, loop, env):
        fits = moves_alone(found.comparison, loop) and trips(loop, env) <= MOST_TILES
        if not (fits if many else few_elements(found.comparison, loop, env)):
            continue
        if not many and are_limits_of_few_rows(program, kernel, loop, env, found.condition):
            continue  # (each program finds them itself: `skip_tiles_by_flags`)
        proof = prover(loop, lambda mask, false=found.condition: mask == false)
        if proof.proven:
            return found.comparison, proof
    return None


def found_tiles(
    program: ir.Program,
    loop: ir.For,
    grid: tuple[ir.GridAxis, ...],
    found: Comparison,
    env: Env,
    numbers: tuple[str, str],
) -> ir.FoundTiles | None:
    """What the kernels of a loop's bounds find, if it is for equal elements of two vectors, all of which are in tiles
    that follow on each other; else None.

    Args:
        grid: of the kernel that stores the bounds.
        numbers: the tensors that it stores them to.
    """
    if found.op != "eq" or len(grid) != 1:
        return None
    for vector, tile, count in ((found.rows, grid[0].var, grid[0].extent), (found.columns, loop.var, trips(loop, env))):
        shape, extent = program.tensor(vector.access.tensor).shape, vector.slice.extent
        start = ir.Arith("*", ir.Name(tile), ir.Int(extent))
        if len(shape) != 1 or affine(vector.slice.start) != affine(start) or count != -(-shape[0] // extent):
            return None
    rows, columns = found.rows, found.columns
    extents = rows.slice.extent, columns.slice.extent
    return ir.FoundTiles(*numbers, rows.access.tensor, columns.access.tensor, *extents)


def _may_hold(op: str, at: Intervals) -> ir.TileExpr:
    """Whether `rows op columns` may hold somewhere in a tile."""
    match op:
        case "eq":
            return both(compare("le", at.row_min, at.column_max), compare("ge", at.row_max, at.column_min))
        case "lt" | "le":
            return compare(op, at.row_min, at.column_max)
        case _:
            return compare(op, at.row_max, at.column_min)


def _explained(
    kernel: ir.Kernel, loop: ir.For, bounds: ir.Kernel, found: Comparison, proof: NoOpProof
) -> Iterator[str]:
    yield (
        f"{kernel.name}: {loop.var} visits only the tiles from the first to the last in which "
        f"{found.rows.access.tensor} of a row may be {WORDS[found.op]} {found.columns.access.tensor} of a column; "
        f"{bounds.name} finds them from the least and the largest value of each tile"
    )
    yield f"{kernel.name}: a tile outside changes nothing that is read afterwards:"
    yield from proof.notes()


__all__ = ["MOST_TILES", "found_tiles", "hiding_comparison", "skip_any_tiles_by_data", "skip_tiles_by_data"]
