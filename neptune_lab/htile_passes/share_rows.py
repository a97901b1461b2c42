"""Shares each row among several programs: what they reduce of it, they pass on to each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal as Lit

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, identity_literal
from neptune_lab.htile.walk import (
    reads,
    rewrite,
    rewrite_store,
    simplify,
    stores,
    subexpressions,
)
from neptune_lab.htile_passes.about_parts import about_number, count_of_part, counts_of_parts
from neptune_lab.htile_passes.cut_long_rows import Pieces, head_of_rows
from neptune_lab.htile_passes.rewrite import combining, fresh_name, tile_pass
from neptune_lab.htile_passes.whole_rows import is_reduction, only_rows, slices
from neptune_lab.power_of_two import power_of_two

# Elements of a part for each warp: 32 of a lane.
OF_A_WARP = 1024
# The most parts of a row that is shorter than a few of these.
SHORT_PARTS = 4
# The most axes of a grid.
_MOST_AXES = 3


@tile_pass(on_request=True)
def share_rows(program: ir.Program) -> ir.Program:
    """Before => after, for rows of 10000 elements among programs of 4096, of which 10000 take three:

        kernel y  grid (i: 8)
            s[i] = reduce(max, x[i, 0:10000])
            y[i, 0:10000] = x[i, 0:10000] - s[i]
        =>
        kernel y_s  grid (p: 3, i: 8)
            s_part[i, p] = reduce(max, where(iota[p*4096:p*4096+4096] < 10000, x[i, p*4096:p*4096+4096], -inf))
        kernel y  grid (p: 3, i: 8)
            s[i] = reduce(max, s_part[i, 0:3])
            y[i, p*4096:p*4096+4096] = x[i, p*4096:p*4096+4096] - s[i]

    There is one kernel more than reductions follow on each other.  With `combine="waiting"` they become one launch, in
    which each part is loaded once (`htile_to_triton.waiting`).

    A program has 1024 elements for each of its warps, or a fourth of the row if that is less.  Of rows that do not
    begin at multiples of 16 bytes, parts begin behind the head, and the last program has the elements before and behind
    all parts too.
    """
    sharer = _Sharer(program)
    kernels = tuple(made for kernel in program.kernels for made in sharer.kernel(kernel))
    if not sharer.tensors:
        return program
    every = [store for kernel in kernels for store in stores(kernel.body)]
    used = {access.tensor for store in every for access in (store.target, *reads(store))}
    added = (tensor for tensor in sharer.tensors if tensor.name in used)
    return replace(program, kernels=kernels, tensors=(*program.tensors, *added))


@dataclass(frozen=True, slots=True)
class _Placed:
    """A statement, and the kernel that it is for.

    Args:
        stage: how many reductions follow on each other before it.
        store: the statement.
        kind: "whole": it is on the row.  "part": its value is the reduction of the row, in place of that of a part.
            "given": it passes a number of a part on.
    """

    stage: int
    store: ir.Store
    kind: Lit["whole", "part", "given"] = "whole"


@dataclass(frozen=True, slots=True)
class _Passed:
    """What programs pass on.

    Args:
        stage: of the statements that do.
        own: the number of the program's own part.
        parts: those of all parts.
    """

    stage: int
    own: ir.Access
    parts: ir.Access


class _Sharer:
    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.names = {tensor.name for tensor in program.tensors} | {kernel.name for kernel in program.kernels}
        self.tensors: list[ir.Tensor] = []
        self.chip = {tensor.name: tensor for tensor in program.tensors if tensor.space == "chip"}
        self.extents: dict[ir.IndexExpr, int] = {}

    def kernel(self, kernel: ir.Kernel) -> Iterator[ir.Kernel]:
        """What takes the place of a kernel: itself if its rows cannot be shared."""
        row = self.row(kernel)
        if row is None:
            yield kernel
            return
        taken = {axis.var for axis in kernel.grid} | {i.axis for s in stores(kernel.body) for i in slices(s)}
        var, count = fresh_name("p", taken), row.count
        self.extents = {ir.Name(axis.var): axis.extent for axis in kernel.grid}
        placed = [*self.placed(kernel, row, var)]
        last = max(one.stage for one in placed)
        for stage in range(last + 1):
            yield self.stage(kernel, row, (var, count), placed, stage, last)

    def row(self, kernel: ir.Kernel) -> Pieces | None:
        """The row and the size of a part; None if a part holds it, or the kernel does more than reduce and map rows."""
        own = [stmt for stmt in kernel.body if isinstance(stmt, ir.Store)]
        extent = max((index.extent for store in own for index in slices(store)), default=1)
        size = min(OF_A_WARP * (kernel.num_warps or 4), max(1, power_of_two(extent) // SHORT_PARTS))
        if self.program.sizes or len(own) < len(kernel.body) or len(kernel.grid) >= _MOST_AXES or extent <= size:
            return None
        head, block = head_of_rows(self.program, kernel, extent)
        if size % block or extent < size + block:
            head, block = None, 1
        row = Pieces(extent, size, head, block)
        return row if only_rows(self.program, kernel, row) else None

    @property
    def known(self) -> ir.Program:
        """The program with the tensors that are new so far."""
        return replace(self.program, tensors=(*self.program.tensors, *self.tensors))

    def placed(self, kernel: ir.Kernel, row: Pieces, var: str) -> Iterator[_Placed]:
        """The statements, in which the reductions of rows are those of what parts pass on, each behind its parts."""
        stages: dict[str, int] = {}
        made: dict[str, ir.TileExpr] = {}
        passed: dict[ir.Reduce, _Passed] = {}
        outer = tuple(ir.Name(axis.var) for axis in kernel.grid)
        for store in kernel.body:
            assert isinstance(store, ir.Store)
            value, stage = store.value, 0
            for node in dict.fromkeys(e for e in subexpressions(value) if is_reduction(e, self.program, row)):
                assert isinstance(node, ir.Reduce)
                about = about_number(node, made)
                for wanted in (node,) if about is None else (about.own,):
                    if wanted not in passed:
                        statements, passed[wanted] = self.passed(wanted, store, outer, (row, var), stages)
                        yield from statements
                if about is None:
                    combined: ir.TileExpr = ir.Reduce(node.op, passed[node].parts, 0)
                    first = passed[node].stage
                else:
                    own = passed[about.own]
                    number = self.number(f"{about.number.tensor}_of_part")
                    mine = about.number_of(own.own, count_of_part(row, var))
                    yield _Placed(own.stage, ir.Store(f"{store.node_id}.{number.tensor}", number, mine, store.origin))
                    stages[number.tensor] = own.stage
                    statements, parts = self.passed(about.reduced(number), store, outer, (row, var), stages)
                    yield from statements
                    combined = about.combined(parts.parts, own.parts, counts_of_parts(row, var))
                    first = parts.stage
                value = rewrite(value, lambda x, node=node, combined=combined: combined if x == node else x)
                stage = max(stage, first + 1)
            stage = max([stage, *(stages.get(a.tensor, 0) for a in _accesses(value))])
            stages[store.target.tensor], made[store.target.tensor] = stage, store.value
            yield _Placed(stage, replace(store, value=value))

    def passed(
        self,
        whole: ir.Reduce,
        store: ir.Store,
        outer: tuple[ir.IndexExpr, ...],
        rows: tuple[Pieces, str],
        stages: dict[str, int],
    ) -> tuple[tuple[_Placed, ...], _Passed]:
        """The statements that reduce a part and pass the result on, and what they make."""
        row, var = rows
        stage = max((stages.get(a.tensor, 0) for a in _accesses(whole.arg)), default=0)
        own = self.number(f"{store.target.tensor}_own")
        stages[own.tensor] = stage
        name = self.fresh(f"{store.target.tensor}_part")
        shape = (*(self.extents[axis] for axis in outer), row.count)
        self.tensors.append(ir.Tensor(name, shape, dtype_of(whole, self.known), "global"))
        reduced = ir.Store(f"{store.node_id}.{own.tensor}", own, whole, store.origin)
        given = ir.Store(f"{store.node_id}.{name}", ir.Access(name, (*outer, ir.Name(var))), own, store.origin)
        parts = ir.Access(name, (*outer, ir.Slice(ir.Int(0), row.count, var)))
        return (_Placed(stage, reduced, "part"), _Placed(stage, given, "given")), _Passed(stage, own, parts)

    def number(self, wanted: str) -> ir.Access:
        """A new number on chip."""
        name = self.fresh(wanted)
        self.tensors.append(ir.Tensor(name, (), "float32", "chip"))
        self.chip[name] = self.tensors[-1]
        return ir.Access(name, ())

    def fresh(self, wanted: str) -> str:
        name = fresh_name(wanted, self.names, "_")
        self.names.add(name)
        return name

    def stage(
        self, kernel: ir.Kernel, row: Pieces, axis: tuple[str, int], placed: list[_Placed], stage: int, last: int
    ) -> ir.Kernel:
        """The kernel of one stage: its parts and what it stores, and the numbers on chip that these need."""
        wanted = [one for one in placed if one.stage == stage and self.stores(one.store)]
        needed = {a.tensor for one in wanted for a in _accesses(one.store.value)}
        chosen: list[_Placed] = []
        for one in reversed(placed):
            if one in wanted or (not self.stores(one.store) and one.store.target.tensor in needed):
                chosen.insert(0, one)
                needed |= {a.tensor for a in _accesses(one.store.value)}
        body: list[ir.Store] = []
        for one in chosen:
            if one.kind == "whole":
                body += self.mapped(one.store, row, axis)
            else:
                body.append(self.part(one.store, row, axis) if one.kind == "part" else one.store)
        end = "" if stage == last else f"/{stage}"
        name = kernel.name
        if stage < last:
            name = self.fresh(f"{kernel.name}_{wanted[0].store.origin}")
            body = [*self.renamed(body)]
        body = [replace(store, node_id=f"{store.node_id}{end}") for store in body]
        grid = (ir.GridAxis(*axis), *kernel.grid)
        return replace(kernel, node_id=f"{kernel.node_id}{end}", name=name, grid=grid, body=tuple(body))

    def renamed(self, body: list[ir.Store]) -> Iterator[ir.Store]:
        """Statements with tiles of their own: a tile on chip is of one kernel."""
        own: dict[str, str] = {}
        for store in body:
            name = store.target.tensor
            if not self.stores(store):
                own[name] = self.fresh(f"{name}_again")
                self.tensors.append(replace(self.chip[name], name=own[name]))

        def visit(expr: ir.TileExpr) -> ir.TileExpr:
            return (
                replace(expr, tensor=own[expr.tensor]) if isinstance(expr, ir.Access) and expr.tensor in own else expr
            )

        for store in body:
            target = visit(store.target)
            assert isinstance(target, ir.Access)
            yield replace(rewrite_store(store, visit), target=target)

    def stores(self, store: ir.Store) -> bool:
        """Whether a statement stores to global memory."""
        return store.target.tensor not in self.chip

    def slices(self, row: Pieces, axis: tuple[str, int]) -> Iterator[tuple[str, ir.IndexExpr, int, ir.TileExpr]]:
        """The slices of a row that a program has: what a statement on it is called, the first element, the number of
        them, and which of them count."""
        var, count = axis
        own: ir.IndexExpr = ir.Arith("*", ir.Name(var), ir.Int(row.size))
        if row.head is None:
            yield "", own, row.size, _before(own, row.size, ir.Int(row.extent))
            return
        # 1 in the last program of a row, 0 in the others.
        last = ir.Arith("//", ir.Name(var), ir.Int(count - 1))
        own = ir.Arith("+", row.head, own)
        yield "", own, row.size, _before(own, row.size, row.end)
        yield "/head", ir.Int(0), row.block, _before(ir.Int(0), row.block, ir.Arith("*", row.head, last))
        left = ir.Arith("%", ir.Arith("-", ir.Int(row.extent), row.head), ir.Int(row.block))
        yield "/end", row.end, row.block, _before(ir.Int(0), row.block, ir.Arith("*", left, last))

    def part(self, store: ir.Store, row: Pieces, axis: tuple[str, int]) -> ir.Store:
        """The reduction of what a program has of a row."""
        whole = store.value
        assert isinstance(whole, ir.Reduce)
        dtype = dtype_of(whole.arg, self.known)
        combine = combining(whole.op, dtype)
        tiles: dict[int, ir.TileExpr] = {}
        for _, start, extent, exists in self.slices(row, axis):
            tile = row.tile(whole.arg, start, extent)
            kept: ir.TileExpr = ir.Elementwise("where", (exists, tile, identity_literal(whole.op, dtype)), dtype)
            # Both edges have a block of lanes, so that one reduction is enough for them.
            tiles[extent] = ir.Elementwise(combine, (tiles[extent], kept), dtype) if extent in tiles else kept
        value: ir.TileExpr | None = None
        for kept in tiles.values():
            reduced = ir.Reduce(whole.op, kept, 0)
            value = reduced if value is None else ir.Elementwise(combine, (value, reduced), dtype)
        assert value is not None
        return replace(store, value=value)

    def mapped(self, store: ir.Store, row: Pieces, axis: tuple[str, int]) -> Iterator[ir.Store]:
        """A statement on what a program has of a row; a number of the row is stored by the first program."""
        if not any(map(row.is_row, store.target.index)):
            first = ir.Elementwise("lt", (ir.Scalar(ir.Name(axis[0])), ir.Literal(1, "int32")), "bool")
            yield replace(store, mask=first) if self.stores(store) else store
            return
        for name, start, extent, exists in self.slices(row, axis):
            target = replace(store.target, index=row.cut(store.target.index, start, extent))
            value = row.tile(store.value, start, extent)
            yield replace(
                store, node_id=f"{store.node_id}{name}", target=target, value=value, mask=exists if name else None
            )


def _accesses(expr: ir.TileExpr) -> Iterator[ir.Access]:
    return (node for node in subexpressions(expr) if isinstance(node, ir.Access))


def _before(start: ir.IndexExpr, extent: int, stop: ir.IndexExpr) -> ir.TileExpr:
    """Which of the positions from `start` on are before `stop`."""
    lanes = ir.Slice(simplify(start), extent, "j")
    return ir.Elementwise("lt", (ir.Iota((lanes,)), ir.Scalar(simplify(stop))), "bool")
