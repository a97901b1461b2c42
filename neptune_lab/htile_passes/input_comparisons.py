"""Comparisons of elements of inputs, rows against columns, in the masks of a loop, and intervals of these by tile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine, expression
from neptune_lab.htile.bounds import Env, loop_interval
from neptune_lab.htile.walk import conjuncts, names_of_index, region, stores, subexpressions, written_tensors
from neptune_lab.htile_passes.rewrite import fresh_name
from neptune_lab.power_of_two import power_of_two
from neptune_lab.scalar_ops import EXCHANGED

# With fewer tiles, the kernel that finds the bounds takes longer than the tiles that it saves.
FEWEST_TILES = 4
# The most elements of an input whose bounds one program finds.
MOST_ELEMENTS = 1 << 16
TILES, LANES = "tiles", "lanes"
_ELEMENT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


@dataclass(frozen=True, slots=True)
class Vector:
    """One side of a comparison: the elements of an input along the rows or the columns of a tile.

    Args:
        access: in global memory, with one slice and without `NewAxis`.
        dtype: in which the elements are compared.
    """

    access: ir.Access
    dtype: str

    @property
    def slice(self) -> ir.Slice:
        """The rows or columns."""
        return next(i for i in self.access.index if isinstance(i, ir.Slice))


@dataclass(frozen=True, slots=True)
class Comparison:
    """`rows op columns`, of integers of one dtype; the columns move with the loop."""

    op: str
    rows: Vector
    columns: Vector


@dataclass(frozen=True, slots=True)
class Masking:
    """A comparison, with the conjunct that it is and the condition of the `where` that holds it."""

    comparison: Comparison
    conjunct: ir.TileExpr
    condition: ir.TileExpr


def maskings(program: ir.Program, kernel: ir.Kernel, loop: ir.For, env: Env) -> Iterator[Masking]:
    """The comparisons of inputs that mask elements in a loop of enough tiles; `env` bounds the variables around it."""
    if any(isinstance(s, ir.For) for s in loop.body) or trips(loop, env) < FEWEST_TILES:
        return
    for condition in conditions(loop):
        for part in conjuncts(condition):
            found = _compared(program, kernel, loop, part)
            if found is not None:
                yield Masking(found, part, condition)


def few_elements(found: Comparison, loop: ir.For, env: Env) -> bool:
    """Whether one program can find the bounds of all columns."""
    return trips(loop, env) * found.columns.slice.extent <= MOST_ELEMENTS


def trips(loop: ir.For, env: Env) -> int:
    """One more than the largest value of the loop's variable."""
    return loop_interval(loop, env).hi + 1


def own_axes(kernel: ir.Kernel, loop: ir.For, found: Comparison) -> tuple[ir.GridAxis, ...]:
    """The axes of the grid on which the elements depend that a program compares."""
    indices = (*found.rows.access.index, *found.columns.access.index)
    used = set().union(*map(names_of_index, indices)) - {loop.var}
    return tuple(axis for axis in kernel.grid if axis.var in used)


def moves_alone(found: Comparison, loop: ir.For) -> bool:
    """Whether the columns of a tile depend on the number of the tile alone."""
    step = _step(found.columns, loop)
    others = (i for i in found.columns.access.index if not isinstance(i, ir.Slice))
    return step is not None and not names_of_index(step[1]) and not any(map(names_of_index, others))


def _compared(program: ir.Program, kernel: ir.Kernel, loop: ir.For, part: ir.TileExpr) -> Comparison | None:
    if not isinstance(part, ir.Elementwise) or part.op not in EXCHANGED:
        return None
    a, b = (_vector(program, kernel, arg) for arg in part.args)
    if a is None or b is None or a.dtype != b.dtype:
        return None
    moves = [loop.var in names_of_index(v.slice.start) for v in (a, b)]
    if moves == [False, True]:
        comparison = Comparison(part.op, a, b)
    elif moves == [True, False]:
        comparison = Comparison(EXCHANGED[part.op], b, a)
    else:
        return None
    others = (i for v in (a, b) for i in v.access.index if not isinstance(i, ir.Slice))
    if any(loop.var in names_of_index(i) for i in others) or _step(comparison.columns, loop) is None:
        return None
    return comparison


def _vector(program: ir.Program, kernel: ir.Kernel, expr: ir.TileExpr) -> Vector | None:
    """An operand of a comparison as elements of an input, or None."""
    conversions: list[str] = []
    while isinstance(expr, ir.Cast):
        conversions.append(expr.dtype)
        expr = expr.arg
    if not isinstance(expr, ir.Access):
        return None
    access = ir.Access(expr.tensor, region(expr))
    if program.tensor(access.tensor).space == "chip":
        loaded = _loaded(kernel, access)
        if loaded is None:
            return None
        access = loaded
    tensor = program.tensor(access.tensor)
    slices = [i for i in access.index if isinstance(i, ir.Slice)]
    if len(slices) != 1 or tensor.space == "chip" or tensor.name in written_tensors(kernel):
        return None
    own = _ELEMENT_BITS.get(tensor.dtype)
    # (A conversion to fewer bits would not keep the order.)
    if own is None or any(_ELEMENT_BITS.get(dtype, 0) < own for dtype in conversions):
        return None
    return Vector(access, conversions[0] if conversions else tensor.dtype)


def conditions(loop: ir.For) -> Iterator[ir.TileExpr]:
    """The conditions of `where` in the statements of a loop."""
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


def _step(columns: Vector, loop: ir.For) -> tuple[int, ir.IndexExpr] | None:
    """The columns of a tile start at step * j0 + rest; None if they start elsewhere."""
    form, name = affine(columns.slice.start), ir.Name(loop.var)
    stride, rest = form.coefficient(name), expression(form.without(name))
    return None if stride <= 0 or loop.var in names_of_index(rest) else (stride, rest)


# -- intervals of values, tile by tile ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Intervals:
    """The least and the largest value of a program's rows, and of the columns of each tile.

    Args:
        tiles: how many tiles there are, perhaps more than the loop has.
        tile: their numbers.
        row_min, row_max: of the rows: one number each.
        column_min, column_max: of the columns of each tile.
        inside: whether the loop may visit the tile of this number.
    """

    tiles: int
    tile: ir.TileExpr
    row_min: ir.Access
    row_max: ir.Access
    column_min: ir.Access
    column_max: ir.Access
    inside: ir.TileExpr


class BoundsKernel:
    """Statements of a kernel that finds bounds for a loop, each of which defines a tile.

    Args:
        program: whose inputs are compared.
        name: of the kernel; its tiles are named after it.
        origin: of its statements.
        taken: names of tensors that are not free; grows.
        body: the statements that the kernel has.
    """

    def __init__(
        self, program: ir.Program, name: str, origin: str, taken: set[str], body: Iterable[ir.Store] = ()
    ) -> None:
        self.program, self.name, self.origin, self.taken = program, name, origin, taken
        self.body = list(body)
        self.added: list[ir.Tensor] = []

    def intervals(self, found: Comparison, loop: ir.For, env: Env) -> Intervals:
        """The intervals of a comparison's values, as tiles that the kernel has or gets."""
        columns = found.columns
        step = _step(columns, loop)
        assert step is not None
        stride, rest = step
        tiles = power_of_two(trips(loop, env))
        tile = ir.Iota((ir.Slice(ir.Int(0), tiles, TILES),))
        down = ir.Iota((*tile.index, ir.NewAxis()))
        across = ir.Iota((ir.NewAxis(), ir.Slice(ir.Int(0), columns.slice.extent, LANES)))
        at = int_of("add", int_of("add", int_of("mul", down, literal(stride)), across), ir.Scalar(rest))
        values = self.chip("columns", (tiles, columns.slice.extent), columns.dtype, self._elements(columns, at))
        low, high = (
            self.chip(f"column_{op}", (tiles,), columns.dtype, ir.Reduce(op, values, 1)) for op in ("min", "max")
        )
        return self._with_rows(found, loop, env, tiles, low, high)

    def intervals_from(self, found: Comparison, loop: ir.For, env: Env, ends: tuple[str, str], tiles: int) -> Intervals:
        """As `intervals`, with the least and the largest value of each tile of columns read from tensors (`ends`), for
        as many as `tiles` tiles."""
        tile = ir.Iota((ir.Slice(ir.Int(0), tiles, TILES),))
        at = int_of("min", tile, literal(trips(loop, env) - 1))
        low, high = (
            self.chip(f"column_{op}", (tiles,), found.columns.dtype, ir.Gather(name, (at,)))
            for op, name in zip(("min", "max"), ends, strict=True)
        )
        return self._with_rows(found, loop, env, tiles, low, high)

    def ends(self, found: Comparison, loop: ir.For, axis: ir.GridAxis) -> tuple[str, str]:
        """Stores the least and the largest value of one tile of columns, the number of which is `axis`, and returns the
        tensors."""
        columns = found.columns
        step = _step(columns, loop)
        assert step is not None
        stride, rest = step
        lanes = ir.Iota((ir.Slice(ir.Int(0), columns.slice.extent, LANES),))
        start = ir.Arith("+", ir.Arith("*", ir.Name(axis.var), ir.Int(stride)), rest)
        at = int_of("add", lanes, ir.Scalar(start))
        values = self.chip("rows", (columns.slice.extent,), columns.dtype, self._elements(columns, at))
        low, high = (
            self.store(f"column_{op}", (axis,), ir.Reduce(op, values, 0), columns.dtype) for op in ("min", "max")
        )
        return low.tensor, high.tensor

    def _with_rows(
        self, found: Comparison, loop: ir.For, env: Env, tiles: int, low: ir.Access, high: ir.Access
    ) -> Intervals:
        rows = found.rows
        tile = ir.Iota((ir.Slice(ir.Int(0), tiles, TILES),))
        lanes = ir.Iota((ir.Slice(ir.Int(0), rows.slice.extent, LANES),))
        from_start = int_of("add", lanes, ir.Scalar(rows.slice.start))
        own = self.chip("rows", (rows.slice.extent,), rows.dtype, self._elements(rows, from_start))
        least, most = (self.chip(f"row_{op}", (), rows.dtype, ir.Reduce(op, own, 0)) for op in ("min", "max"))
        inside = compare("lt", tile, literal(trips(loop, env)))
        return Intervals(tiles, tile, least, most, low, high, inside)

    def chip(self, wanted: str, shape: tuple[int, ...], dtype: str, value: ir.TileExpr) -> ir.Access:
        """A tile of `value`: one that the kernel has, or a new one."""
        axes = (LANES,) if wanted == "rows" else (TILES, LANES)
        index = tuple(ir.Slice(ir.Int(0), n, axis) for n, axis in zip(shape, axes, strict=False))
        for store in self.body:
            if store.value == value and store.target.index == index and store.mask is None:
                return store.target
        return self._stored(self._declare(wanted, shape, dtype, "chip"), index, value)

    def store(self, wanted: str, axes: tuple[ir.GridAxis, ...], value: ir.TileExpr, dtype: str = "int32") -> ir.Access:
        """Stores one number for each program to a new tensor in global memory."""
        name = self._declare(wanted, tuple(axis.extent for axis in axes), dtype, "global")
        return self._stored(name, tuple(ir.Name(axis.var) for axis in axes), value)

    def _declare(self, wanted: str, shape: tuple[int, ...], dtype: str, space: ir.Space) -> str:
        name = fresh_name(f"{self.name}_{wanted}", self.taken)
        self.taken.add(name)
        self.added.append(ir.Tensor(name, shape, dtype, space))
        return name

    def _stored(self, name: str, index: tuple[ir.Index, ...], value: ir.TileExpr) -> ir.Access:
        target = ir.Access(name, index)
        self.body.append(ir.Store(f"tile:{name}", target, value, self.origin))
        return target

    def _elements(self, vector: Vector, at: ir.TileExpr) -> ir.TileExpr:
        """The elements of an input at positions; those past its end repeat its last one, which widens no interval."""
        tensor, index = self.program.tensor(vector.access.tensor), vector.access.index
        last = next(size - 1 for i, size in zip(index, tensor.shape, strict=True) if isinstance(i, ir.Slice))
        inside = int_of("min", at, literal(last))
        read = ir.Gather(tensor.name, tuple(inside if isinstance(i, ir.Slice) else ir.Scalar(_index(i)) for i in index))
        return read if tensor.dtype == vector.dtype else ir.Cast(read, vector.dtype)


def int_of(op: str, *args: ir.TileExpr) -> ir.Elementwise:
    """An operation of int32."""
    return ir.Elementwise(op, args, "int32")


def literal(value: int) -> ir.Literal:
    """An int32."""
    return ir.Literal(value, "int32")


def compare(op: str, a: ir.TileExpr, b: ir.TileExpr) -> ir.Elementwise:
    """A condition."""
    return ir.Elementwise(op, (a, b), "bool")


def both(a: ir.TileExpr, b: ir.TileExpr) -> ir.Elementwise:
    """Whether two conditions hold."""
    return ir.Elementwise("and", (a, b), "bool")


def _index(index: ir.Index) -> ir.IndexExpr:
    assert not isinstance(index, ir.Slice | ir.NewAxis)
    return index


# Operations in words.
WORDS = {"eq": "equal", "lt": "below", "le": "at most", "gt": "above", "ge": "at least"}


__all__ = [
    "FEWEST_TILES",
    "WORDS",
    "BoundsKernel",
    "Comparison",
    "Intervals",
    "Masking",
    "Vector",
    "both",
    "compare",
    "conditions",
    "few_elements",
    "int_of",
    "literal",
    "maskings",
    "moves_alone",
    "own_axes",
    "trips",
]
