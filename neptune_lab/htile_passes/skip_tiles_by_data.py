"""Skips tiles that the values of an input hide, such as tiles of other documents than those of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine, expression
from neptune_lab.htile.bounds import Env, grid_env, loop_interval
from neptune_lab.htile.walk import conjuncts, names_of_index, region, stores, subexpressions, written_tensors
from neptune_lab.htile_passes.partition_masked_loops.noop_iterations import NoOpProof, NoOpProver
from neptune_lab.htile_passes.rewrite import Rewrite, fresh_name, tile_pass

# With fewer tiles, the kernel that finds the bounds takes longer than the tiles that it saves.
FEWEST_TILES = 4
# The most elements of an input whose bounds one program finds.
MOST_ELEMENTS = 1 << 16
# With more of them, the program has 8 warps.
ELEMENTS_OF_FOUR_WARPS = 1 << 12
TILES, LANES = "tiles", "lanes"
_ELEMENT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


@tile_pass(before="partition_masked_loops")
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
    skipper = _Skipper(program)
    kernels = tuple(k for kernel in program.kernels for k in skipper.kernel(kernel))
    if not skipper.notes:
        return Rewrite(program)
    return Rewrite(replace(program, tensors=(*program.tensors, *skipper.added), kernels=kernels), tuple(skipper.notes))


@dataclass(frozen=True, slots=True)
class _Vector:
    """One side of a comparison: the elements of an input along the rows or the columns of a tile.

    Args:
        access: in global memory, with one slice and without `NewAxis`.
    """

    access: ir.Access
    dtype: str

    @property
    def slice(self) -> ir.Slice:
        return next(i for i in self.access.index if isinstance(i, ir.Slice))


@dataclass(frozen=True, slots=True)
class _Comparison:
    """`rows op columns`, of integers of one dtype; the columns move with the loop."""

    op: str
    rows: _Vector
    columns: _Vector


# The same comparison with its operands exchanged.
_EXCHANGED = {"eq": "eq", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


class _Skipper:
    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.taken = {t.name for t in program.tensors} | {k.name for k in program.kernels}
        self.added: list[ir.Tensor] = []
        self.notes: list[str] = []

    def kernel(self, kernel: ir.Kernel) -> Iterator[ir.Kernel]:
        """The kernel, after those that find the bounds of its loops."""
        env, prover = grid_env(kernel), NoOpProver(self.program, kernel)
        body: list[ir.Stmt] = []
        for stmt in kernel.body:
            found = self.comparison(kernel, stmt, env, prover) if isinstance(stmt, ir.For) else None
            if found is None:
                body.append(stmt)
                continue
            assert isinstance(stmt, ir.For)
            comparison, proof = found
            bounds = self.bounds(kernel, stmt, comparison, env)
            yield bounds
            axes = tuple(ir.Name(axis.var) for axis in bounds.grid)
            first, last = (ir.Access(s.target.tensor, axes) for s in bounds.body[-2:] if isinstance(s, ir.Store))
            body.append(replace(stmt, within=(first, last)))
            self.notes += _explained(kernel, stmt, bounds, comparison, proof)
        yield (
            kernel
            if len(body) == 0 or all(a is b for a, b in zip(body, kernel.body, strict=True))
            else replace(kernel, body=tuple(body))
        )

    def comparison(
        self, kernel: ir.Kernel, loop: ir.For, env: Env, prover: NoOpProver
    ) -> tuple[_Comparison, NoOpProof] | None:
        """A comparison that hides tiles of the loop, and the proof that they may be left out; None if there is none."""
        if loop.within is not None or any(isinstance(s, ir.For) for s in loop.body):
            return None
        if _trips(loop, env) < FEWEST_TILES:
            return None
        for condition in _conditions(loop):
            for part in conjuncts(condition):
                comparison = self._compared(kernel, loop, part)
                if comparison is None or _trips(loop, env) * comparison.columns.slice.extent > MOST_ELEMENTS:
                    continue
                proof = prover(loop, lambda mask, false=condition: mask == false)
                if proof.proven:
                    return comparison, proof
        return None

    def _compared(self, kernel: ir.Kernel, loop: ir.For, part: ir.TileExpr) -> _Comparison | None:
        if not isinstance(part, ir.Elementwise) or part.op not in _EXCHANGED:
            return None
        a, b = (self._vector(kernel, loop, arg) for arg in part.args)
        if a is None or b is None or a.dtype != b.dtype:
            return None
        moves = [loop.var in names_of_index(v.slice.start) for v in (a, b)]
        if moves == [False, True]:
            comparison = _Comparison(part.op, a, b)
        elif moves == [True, False]:
            comparison = _Comparison(_EXCHANGED[part.op], b, a)
        else:
            return None
        others = (i for v in (a, b) for i in v.access.index if not isinstance(i, ir.Slice))
        if any(loop.var in names_of_index(i) for i in others) or _step(comparison.columns, loop) is None:
            return None
        return comparison

    def _vector(self, kernel: ir.Kernel, loop: ir.For, expr: ir.TileExpr) -> _Vector | None:
        """An operand of a comparison as elements of an input, or None."""
        conversions: list[str] = []
        while isinstance(expr, ir.Cast):
            conversions.append(expr.dtype)
            expr = expr.arg
        if not isinstance(expr, ir.Access):
            return None
        access = ir.Access(expr.tensor, region(expr))
        if self.program.tensor(access.tensor).space == "chip":
            loaded = _loaded(kernel, access)
            if loaded is None:
                return None
            access = loaded
        tensor = self.program.tensor(access.tensor)
        slices = [i for i in access.index if isinstance(i, ir.Slice)]
        if len(slices) != 1 or tensor.space == "chip" or tensor.name in written_tensors(kernel):
            return None
        own = _ELEMENT_BITS.get(tensor.dtype)
        # (A conversion to fewer bits would not keep the order.)
        if own is None or any(_ELEMENT_BITS.get(dtype, 0) < own for dtype in conversions):
            return None
        return _Vector(access, conversions[0] if conversions else tensor.dtype)

    def bounds(self, kernel: ir.Kernel, loop: ir.For, found: _Comparison, env: Env) -> ir.Kernel:
        """The kernel that stores the numbers of the first tile, and of the last one plus 1."""
        rows, columns = found.rows, found.columns
        step = _step(columns, loop)
        assert step is not None
        stride, rest = step
        trips = _trips(loop, env)
        used = set().union(*(names_of_index(i) for i in (*rows.access.index, *columns.access.index))) - {loop.var}
        grid = tuple(axis for axis in kernel.grid if axis.var in used) or (ir.GridAxis(self._fresh("n"), 1),)
        make = _Maker(self, loop.origin, fresh_name(f"{kernel.name}_tiles", self.taken))
        self.taken.add(make.kernel)
        tiles = 1 << (trips - 1).bit_length()
        tile = ir.Iota((ir.Slice(ir.Int(0), tiles, TILES),))
        down = ir.Iota((*tile.index, ir.NewAxis()))
        across = ir.Iota((ir.NewAxis(), ir.Slice(ir.Int(0), columns.slice.extent, LANES)))
        at = _int("add", _int("add", _int("mul", down, _literal(stride)), across), ir.Scalar(rest))
        values = make.chip("columns", (tiles, columns.slice.extent), columns.dtype, self._elements(columns, at))
        lanes = ir.Iota((ir.Slice(ir.Int(0), rows.slice.extent, LANES),))
        from_start = _int("add", lanes, ir.Scalar(rows.slice.start))
        own = make.chip("rows", (rows.slice.extent,), rows.dtype, self._elements(rows, from_start))
        least, most = (make.chip(f"row_{op}", (), rows.dtype, ir.Reduce(op, own, 0)) for op in ("min", "max"))
        low, high = (make.chip(f"column_{op}", (tiles,), rows.dtype, ir.Reduce(op, values, 1)) for op in ("min", "max"))
        may = _may_hold(found.op, least, most, low, high)
        inside = ir.Elementwise("and", (may, ir.Elementwise("lt", (tile, _literal(trips)), "bool")), "bool")
        some = make.chip("may_hold", (tiles,), "bool", inside)
        begins = ir.Reduce("min", ir.Elementwise("where", (some, tile, _literal(trips - 1)), "int32"), 0)
        ends = ir.Reduce(
            "max", ir.Elementwise("where", (some, _int("add", tile, _literal(1)), _literal(0)), "int32"), 0
        )
        begin = make.chip("begin", (), "int32", begins)
        axes, extents = tuple(ir.Name(axis.var) for axis in grid), tuple(axis.extent for axis in grid)
        make.store("first", extents, axes, begin)
        make.store("last", extents, axes, _int("max", ends, _int("add", begin, _literal(1))))
        warps = 8 if tiles * columns.slice.extent > ELEMENTS_OF_FOUR_WARPS else None
        return ir.Kernel(f"kernel:{make.kernel}", make.kernel, grid, tuple(make.body), warps)

    def _elements(self, vector: _Vector, at: ir.TileExpr) -> ir.TileExpr:
        """The elements of an input at positions; those past its end repeat its last one, which widens no interval."""
        tensor, index = self.program.tensor(vector.access.tensor), vector.access.index
        last = next(size - 1 for i, size in zip(index, tensor.shape, strict=True) if isinstance(i, ir.Slice))
        inside = _int("min", at, _literal(last))
        read = ir.Gather(tensor.name, tuple(inside if isinstance(i, ir.Slice) else ir.Scalar(_index(i)) for i in index))
        return read if tensor.dtype == vector.dtype else ir.Cast(read, vector.dtype)

    def _fresh(self, wanted: str) -> str:
        name = fresh_name(wanted, self.taken)
        self.taken.add(name)
        return name

    def declare(self, wanted: str, shape: tuple[int, ...], dtype: str, space: ir.Space) -> str:
        """Declares a tensor, under a name that is free."""
        name = self._fresh(wanted)
        self.added.append(ir.Tensor(name, shape, dtype, space))
        return name


class _Maker:
    """The statements of a kernel that finds bounds, each of which defines a tile."""

    def __init__(self, skipper: _Skipper, origin: str, kernel: str) -> None:
        self.skipper, self.origin, self.kernel = skipper, origin, kernel
        self.body: list[ir.Store] = []

    def chip(self, wanted: str, shape: tuple[int, ...], dtype: str, value: ir.TileExpr) -> ir.Access:
        name = self.skipper.declare(f"{self.kernel}_{wanted}", shape, dtype, "chip")
        axes = (LANES,) if wanted == "rows" else (TILES, LANES)
        index = tuple(ir.Slice(ir.Int(0), n, axis) for n, axis in zip(shape, axes, strict=False))
        return self._stored(name, index, value)

    def store(self, wanted: str, shape: tuple[int, ...], index: tuple[ir.Index, ...], value: ir.TileExpr) -> None:
        self._stored(self.skipper.declare(f"{self.kernel}_{wanted}", shape, "int32", "global"), index, value)

    def _stored(self, name: str, index: tuple[ir.Index, ...], value: ir.TileExpr) -> ir.Access:
        target = ir.Access(name, index)
        self.body.append(ir.Store(f"tile:{name}", target, value, self.origin))
        return target


def _conditions(loop: ir.For) -> Iterator[ir.TileExpr]:
    for store in stores(loop.body):
        for expr in subexpressions(store.value):
            if isinstance(expr, ir.Elementwise) and expr.op == "where":
                yield expr.args[0]


def _loaded(kernel: ir.Kernel, access: ir.Access) -> ir.Access | None:
    """What an on-chip tile is a copy of, if the kernel loads it once, whole, before its loops."""
    defined = [s for s in stores(kernel.body) if s.target.tensor == access.tensor]
    if len(defined) != 1 or defined[0] not in kernel.body or defined[0].mask is not None:
        return None
    value, own = defined[0].value, defined[0].target
    if not isinstance(value, ir.Access) or region(own) != access.index:
        return None
    return ir.Access(value.tensor, region(value))


def _trips(loop: ir.For, env: Env) -> int:
    """One more than the largest value of the loop's variable."""
    return loop_interval(loop, env).hi + 1


def _step(columns: _Vector, loop: ir.For) -> tuple[int, ir.IndexExpr] | None:
    """The columns of a tile start at step * j0 + rest; None if they start elsewhere."""
    form, name = affine(columns.slice.start), ir.Name(loop.var)
    stride, rest = form.coefficient(name), expression(form.without(name))
    return None if stride <= 0 or loop.var in names_of_index(rest) else (stride, rest)


def _index(index: ir.Index) -> ir.IndexExpr:
    assert not isinstance(index, ir.Slice | ir.NewAxis)
    return index


def _int(op: str, *args: ir.TileExpr) -> ir.Elementwise:
    return ir.Elementwise(op, args, "int32")


def _literal(value: int) -> ir.Literal:
    return ir.Literal(value, "int32")


def _may_hold(op: str, least: ir.Access, most: ir.Access, low: ir.Access, high: ir.Access) -> ir.TileExpr:
    """Whether `rows op columns` may hold somewhere: rows are from `least` to `most`, columns from `low` to `high`."""
    compare: Callable[..., ir.Elementwise] = lambda name, a, b: ir.Elementwise(name, (a, b), "bool")  # noqa: E731
    match op:
        case "eq":
            return ir.Elementwise("and", (compare("le", least, high), compare("ge", most, low)), "bool")
        case "lt" | "le":
            return compare(op, least, high)
        case _:
            return compare(op, most, low)


def _explained(
    kernel: ir.Kernel, loop: ir.For, bounds: ir.Kernel, found: _Comparison, proof: NoOpProof
) -> Iterator[str]:
    words = {"eq": "equal", "lt": "below", "le": "at most", "gt": "above", "ge": "at least"}
    yield (
        f"{kernel.name}: {loop.var} visits only the tiles from the first to the last in which "
        f"{found.rows.access.tensor} of a row may be {words[found.op]} {found.columns.access.tensor} of a column; "
        f"{bounds.name} finds them from the least and the largest value of each tile"
    )
    yield f"{kernel.name}: a tile outside changes nothing that is read afterwards:"
    yield from (f"  {line}" for line in proof.lines)
    yield from (f"  assumed: {line}" for line in proof.assumptions)


__all__ = ["skip_tiles_by_data"]
