"""Leaves out a mask in tiles that the values of an input show to be whole, such as tiles inside of one document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Env, grid_env
from neptune_lab.htile.labels import SUFFIX
from neptune_lab.htile.walk import conjuncts, map_stores, names_of_index, rewrite, stores, subexpressions, with_body
from neptune_lab.htile_passes.input_comparisons import (
    WORDS,
    BoundsKernel,
    Intervals,
    Masking,
    both,
    compare,
    few_elements,
    int_of,
    literal,
    maskings,
    own_axes,
    trips,
)
from neptune_lab.htile_passes.partition_masked_loops import without
from neptune_lab.htile_passes.rewrite import Rewrite, tile_pass

# With fewer tiles, three loops take longer than the masks that they save: on an H200, documents of an eighth of 2,048
# positions take 140 us with them and 135 us without, and of 8,192 positions 376 and 411 us (heads of 64, tiles of 64).
FEWEST_TILES = 100


@tile_pass(before="convert_positions_as_vectors")  # after the masks that positions decide
def unmask_tiles_by_data(program: ir.Program) -> Rewrite:
    """Before => after, for a loop whose tiles `skip_tiles_by_data` has bounded:

        for j0 in range(64) within k_first[i0], k_last[i0]:
            score[...] = where(doc[i0*64:i0*64+64, NewAxis] == doc[NewAxis, j0*64:j0*64+64], qk[...], -inf)
        =>
        for j0 in range(64) within k_first[i0], k_full_first[i0]:  # left edge
            score[...] = where(doc[i0*64:i0*64+64, NewAxis] == doc[NewAxis, j0*64:j0*64+64], qk[...], -inf)
        for j0 in range(64) within k_full_first[i0], k_full_last[i0]:  # interior
            score[...] = qk[...]
        for j0 in range(64) within k_full_last[i0], k_last[i0]:  # right edge
            score[...] = where(doc[i0*64:i0*64+64, NewAxis] == doc[NewAxis, j0*64:j0*64+64], qk[...], -inf)

    Formal statement: with a from the rows and b from the columns of a tile, a == b is true on the whole tile if all
    values of both are one number; a < b if max a < min b, and so on.  The interior are the tiles of which this holds
    if they are neighbours, and none otherwise; so it lies between the first and the last tile that are visited, and
    the three loops visit each of these once, in the same order.  The kernel that finds the bounds finds these too.

    Behind the loop may be the edge of a mask of positions, such as the tile of the diagonal, whose body differs in
    conditions alone.  These are true in the tiles before, so the edge on the right and that one are one loop:

        for j0 in range(i0+1) within k_full_last[i0], k_last[i0]:  # right edge

    if the kernel that finds the bounds knows where the edge starts, so that k_full_last is not past it.  Triton takes
    about as long for each copy of the body: documents at widths 192 and 128 compile in 0.81 of the time, and three such
    kernels took 0.92 to 0.95 of the time of four loops on an H100.
    """
    unmasker = _Unmasker(program)
    for kernel in program.kernels:
        unmasker.kernel(kernel)
    if not unmasker.notes:
        return Rewrite(program)
    kernels = tuple(unmasker.made.get(k.name, k) for k in program.kernels)
    return Rewrite(
        replace(program, tensors=(*program.tensors, *unmasker.added), kernels=kernels), tuple(unmasker.notes)
    )


class _Unmasker:
    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.taken = {t.name for t in program.tensors} | {k.name for k in program.kernels}
        self.made: dict[str, ir.Kernel] = {}
        self.added: list[ir.Tensor] = []
        self.notes: list[str] = []

    def kernel(self, kernel: ir.Kernel) -> None:
        """Makes the loops of a kernel anew, and the kernels that find their bounds."""
        env = grid_env(kernel)
        body: list[ir.Stmt] = []
        changed, left = False, list(kernel.body)
        while left:
            stmt = left.pop(0)
            edge = left[0] if left and isinstance(left[0], ir.For) else None
            found = self.bounded(kernel, stmt, edge, env) if isinstance(stmt, ir.For) else None
            if found is None:
                body.append(stmt)
                continue
            changed = True
            body += found
            if found[-1].stop != stmt.stop:  # type: ignore[union-attr]  # (with the edge)
                left.pop(0)
        if changed:
            self.made[kernel.name] = replace(kernel, body=tuple(body))

    def bounded(self, kernel: ir.Kernel, loop: ir.For, edge: ir.For | None, env: Env) -> list[ir.For] | None:
        """The three loops; None if there is no interior to find, or no kernel that can find it.

        Args:
            edge: the loop behind it, which the last of the three takes in where that is possible.
        """
        if loop.within is None or "edge" in loop.part or loop.part == "whole" or trips(loop, env) < FEWEST_TILES:
            return None
        every = maskings(self.program, kernel, loop, env)
        found = next((m for m in every if few_elements(m.comparison, loop, env)), None)
        bounds = self._finds(loop.within)
        if found is None or bounds is None or not set(own_axes(kernel, loop, found.comparison)) <= set(bounds.grid):
            return None
        first, last = loop.within
        known = {i.name for i in last.index if isinstance(i, ir.Name)}  # to the kernel that finds the bounds
        joined = edge is not None and _is_edge_of(loop, edge) and names_of_index(loop.stop) <= known
        middle = self.interior(bounds, loop, found, env, loop.within, loop.stop if joined else None)
        self.notes.append(
            f"{kernel.name}: {loop.var} visits the tiles in which every {found.comparison.rows.access.tensor} of a row "
            f"is {WORDS[found.comparison.op]} every {found.comparison.columns.access.tensor} of a column without that "
            f"mask, if they are neighbours; {bounds.name} finds them from the least and the largest value of each tile"
        )
        return [
            _renamed_part(loop, "left edge", (first, middle[0])),
            _renamed_part(_unmasked(loop, found), "interior", middle),
            replace(edge, start=loop.start, within=(middle[1], last))
            if joined and edge is not None
            else _renamed_part(loop, "right edge", (middle[1], last)),
        ]

    def _finds(self, within: tuple[ir.Access, ir.Access]) -> ir.Kernel | None:
        """The kernel that stores both bounds of a loop; None if none does, or it has loops of its own."""
        for kernel in self.program.kernels:
            kernel = self.made.get(kernel.name, kernel)
            if {bound.tensor for bound in within} <= {s.target.tensor for s in stores(kernel.body)}:
                return kernel if all(isinstance(s, ir.Store) for s in kernel.body) else None
        return None

    def interior(
        self,
        kernel: ir.Kernel,
        loop: ir.For,
        found: Masking,
        env: Env,
        within: tuple[ir.Access, ir.Access],
        stop: ir.IndexExpr | None,
    ) -> tuple[ir.Access, ir.Access]:
        """Lets the kernel store where the interior starts and ends, which is never outside of the loop's bounds, and
        ends at `stop` at the latest."""
        body = tuple(stores(kernel.body))
        make = BoundsKernel(self.program, kernel.name, loop.origin, self.taken, body)
        at, count = make.intervals(found.comparison, loop, env), trips(loop, env)
        full = make.chip("full", (at.tiles,), "bool", both(_holds(found.comparison.op, at), at.inside))
        starts = ir.Reduce("min", ir.Elementwise("where", (full, at.tile, literal(count)), "int32"), 0)
        after = int_of("add", at.tile, literal(1))
        ends = ir.Reduce("max", ir.Elementwise("where", (full, after, literal(0)), "int32"), 0)
        number = ir.Reduce("sum", ir.Elementwise("where", (full, literal(1), literal(0)), "int32"), 0)
        start, end = make.chip("full_start", (), "int32", starts), make.chip("full_end", (), "int32", ends)
        neighbours = make.chip("are_neighbours", (), "bool", compare("eq", number, int_of("sub", end, start)))
        low, high = (next(s.value for s in body if s.target.tensor == bound.tensor) for bound in within)

        def stored(name: str, value: ir.TileExpr) -> ir.Access:
            some = ir.Elementwise("where", (neighbours, value, high), "int32")
            return make.store(name, kernel.grid, int_of("max", low, int_of("min", some, high)))

        if stop is not None:
            high = int_of("min", high, ir.Scalar(stop))
        bounds = stored("full_first", start), stored("full_last", end)
        self.made[kernel.name] = replace(kernel, body=tuple(make.body))
        for other in self.program.kernels:  # it finds more than these said
            if kernel.finds is not None and other.finds == kernel.finds:
                self.made[other.name] = replace(self.made.get(other.name, other), finds=None)
        self.added += make.added
        return replace(bounds[0], index=within[1].index), replace(bounds[1], index=within[1].index)


def _holds(op: str, at: Intervals) -> ir.TileExpr:
    """Whether `rows op columns` holds everywhere in a tile."""
    match op:
        case "eq":
            one_row, one_column = compare("eq", at.row_min, at.row_max), compare("eq", at.column_min, at.column_max)
            return both(both(one_row, one_column), compare("eq", at.row_min, at.column_min))
        case "lt" | "le":
            return compare(op, at.row_max, at.column_min)
        case _:
            return compare(op, at.row_min, at.column_max)


def _unmasked(loop: ir.For, found: Masking) -> ir.For:
    """The loop without a condition that is true."""

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        match expr:
            case ir.Elementwise(op="where", args=(condition, kept, other)):
                left = without(condition, frozenset((found.conjunct,)))
                return kept if left is None else replace(expr, args=(left, kept, other))
            case _:
                return expr

    return with_body(loop, map_stores(loop.body, lambda s: replace(s, value=rewrite(s.value, visit))))


def _is_edge_of(loop: ir.For, edge: ir.For) -> bool:
    """Whether an edge goes on where a loop stops, with a body that differs in further conditions alone."""
    if edge.part != "right edge" or edge.var != loop.var or edge.within != loop.within or edge.start != loop.stop:
        return False
    inside, own = (tuple(stores(one.body)) for one in (loop, edge))
    known = {part for store in inside for condition in _conditions(store) for part in conjuncts(condition)}
    more = frozenset(part for store in own for c in _conditions(store) for part in conjuncts(c)) - known

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        match expr:
            case ir.Elementwise(op="where", args=(condition, kept, other)):
                left = without(condition, more)
                return kept if left is None else replace(expr, args=(left, kept, other))
            case _:
                return expr

    return len(inside) == len(own) and all(
        a.target == b.target and a.mask is None and b.mask is None and a.value == rewrite(b.value, visit)
        for a, b in zip(inside, own, strict=True)
    )


def _conditions(store: ir.Store) -> Iterator[ir.TileExpr]:
    for expr in subexpressions(store.value):
        if isinstance(expr, ir.Elementwise) and expr.op == "where":
            yield expr.args[0]


def _renamed_part(loop: ir.For, part: ir.Part, within: tuple[ir.Access, ir.Access]) -> ir.For:
    def renamed(store: ir.Store) -> ir.Store:
        return replace(store, node_id=store.node_id + SUFFIX[part])

    node_id = loop.node_id + SUFFIX[part]
    return replace(loop, node_id=node_id, part=part, within=within, body=map_stores(loop.body, renamed))


__all__ = ["unmask_tiles_by_data"]
