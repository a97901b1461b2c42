"""The tiles of a nest as terms of the elements of a pair of a query and a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine
from neptune_lab.htile.loop_runs import MOST_PROGRAMS
from neptune_lab.htile.walk import evaluate, names_of_index, same_index, tile_dims
from neptune_lab.htile_to_gluon.structure import LoopPart, UnsupportedKernel

SQUARE = 64  # rows and columns of tiles are multiples of it


class Terms:
    """The tiles of one part of a nest as terms of an element of a pair: "row" is the element of `kernel`'s rows.

    Args:
        heads: the indices of a query's other dimensions.
        exchanged: of tensors with exchanged dimensions, those that exist (squares.py).
        lengths: the numbers of queries and keys.
        transposed: whether the rows of this nest are the keys.
    """

    def __init__(
        self,
        program: ir.Program,
        kernel: ir.Kernel,
        part: LoopPart,
        resident: dict[str, ir.Access],
        heads: tuple[ir.IndexExpr, ...],
        exchanged: Mapping[str, str],
        lengths: tuple[int, int],
        *,
        transposed: bool,
    ) -> None:
        self._program = program
        self._resident = resident
        self._exchanged = exchanged
        both = zip(("query", "key"), lengths, strict=True)
        self._ends = {("lt", "bool", ("iota", name), ("literal", repr(end), "int32")) for name, end in both}
        self._loop = part.loop
        scores = part.leading[0].store.target
        self.rows, self.columns = (i for i in tile_dims(scores.index) if isinstance(i, ir.Slice))
        self._names = ("key", "query") if transposed else ("query", "key")
        self._grid = {axis.var: axis.extent for axis in kernel.grid}
        self._values = {
            s.target.tensor: s
            for s in (*kernel.body, *(p.store for p in part.leading), *part.middle)
            if isinstance(s, ir.Store)
        }
        others = {var: range(extent) for var, extent in self._grid.items() if var not in names_of_index(self.rows)}
        if prod(map(len, others.values())) > MOST_PROGRAMS:
            raise UnsupportedKernel("there are too many heads")
        envs = [dict(zip(others, values, strict=True)) for values in product(*others.values())]
        if any(names_of_index(index) - others.keys() for index in heads):
            raise UnsupportedKernel("the heads of a tile depend on its rows or columns")
        by_head = {tuple(evaluate(index, env) for index in heads): env for env in envs}
        if len(by_head) != len(envs):
            raise UnsupportedKernel("several programs of a row block visit the same head")
        self._envs = [by_head[head] for head in sorted(by_head)]
        self.heads = sorted(by_head)

    def of(self, expr: ir.TileExpr) -> Any:
        """The term of an expression.

        Raises:
            UnsupportedKernel: it is not made of elements of the pair's row and column.
        """
        match expr:
            case ir.Access(tensor=name) if self._program.tensor(name).space == "chip":
                stored = self._values.get(name)
                if stored is None or stored.mask is not None or not _same_elements(stored.target, expr):
                    raise UnsupportedKernel(f"{name} is read in parts, or computed elsewhere")
                return self.of(stored.value)
            case ir.Access(tensor=name, index=index):
                places = [self._place(i, n, name) for n, i in enumerate(_dimensions(index))]
                if [place for place in places if place in self._names] == [*self._names[::-1]]:
                    raise UnsupportedKernel(f"a tile of {name} has the columns of others as rows")
                if name in self._exchanged:
                    *outer, rows, columns = places
                    return ("load", self._exchanged[name], *outer, columns, rows)
                return ("load", name, *places)
            case ir.Iota(index=index):
                (place,) = (i for i in index if isinstance(i, ir.Slice))
                return self._position(place)
            case ir.Gather(tensor=name, indices=indices):
                return ("gather", name, *(self.of(index) for index in indices))
            case ir.Literal(value=value, dtype=dtype):
                return ("literal", repr(value), dtype)
            case ir.Scalar(value=value):
                return ("scalar", self._outside(value, "a scalar"))
            case ir.Elementwise("where", (condition, kept, ir.Literal(value=0))) if self.of(condition) in self._ends:
                return self.of(kept)  # (a pair past the end does not exist)
            case ir.Elementwise(op=op, args=args, dtype=dtype):
                return (op, dtype, *(self.of(arg) for arg in args))
            case ir.Cast(arg=arg, dtype=dtype):
                return ("cast", dtype, self.of(arg))
            case ir.Dot(a=a, b=ir.Permute(arg=b, order=(1, 0)), acc=None):
                return ("dot", frozenset({self.of(a), self.of(b)}))
            case _:
                raise UnsupportedKernel(f"a tile of the backward pass has {type(expr).__name__}")

    def visited(self, head: int) -> Iterator[tuple[int, int]]:
        """The pairs that the part visits for a head, as numbers of squares of 64 rows and 64 columns."""
        for number in range(self._grid[self.axis]):
            row = evaluate(self.rows.start, {self.axis: number})
            for column in self.columns_of(number, head):
                if (row | column | self.rows.extent | self.columns.extent) % SQUARE:
                    raise UnsupportedKernel(f"tiles are no multiples of {SQUARE}")
                for r in range(row // SQUARE, (row + self.rows.extent) // SQUARE):
                    for c in range(column // SQUARE, (column + self.columns.extent) // SQUARE):
                        yield r, c

    @property
    def axis(self) -> str:
        """The axis of the grid that counts row blocks."""
        names = sorted(names_of_index(self.rows.start))
        if len(names) != 1 or self._grid[names[0]] > MOST_PROGRAMS:
            raise UnsupportedKernel("the rows of a program depend on several axes of the grid, or there are too many")
        return names[0]

    @property
    def programs(self) -> int:
        """The number of row blocks."""
        return self._grid[self.axis]

    @property
    def differ(self) -> bool:
        """Whether the tiles of a row block differ from head to head."""
        loop = self._loop
        names = set[str]() if loop is None else names_of_index(loop.start) | names_of_index(loop.stop)
        if not names <= self._grid.keys():
            raise UnsupportedKernel("the tiles of a program depend on more than its place in the grid")
        return not names <= {self.axis}

    def columns_of(self, number: int, head: int) -> Iterator[int]:
        """Where the tiles begin that the program of a row block visits for a head."""
        env, loop = {**self._envs[head], self.axis: number}, self._loop
        for step in [0] if loop is None else range(evaluate(loop.start, env), evaluate(loop.stop, env)):
            yield evaluate(self.columns.start, env if loop is None else {**env, loop.var: step})

    def _place(self, index: Any, dimension: int, tensor: str) -> Any:
        if not isinstance(index, ir.Slice):
            return ("at", self._outside(index, tensor))
        whole = index.start == ir.Int(0) and index.extent == self._program.tensor(tensor).shape[dimension]
        if whole and index.axis not in (self.rows.axis, self.columns.axis):  # (one tile may be all queries or keys)
            return "all"
        return self._element(index)

    def _outside(self, index: ir.IndexExpr, what: str) -> Any:
        """The term of an index that depends on no row and no column: its values for all heads."""
        names = names_of_index(index)
        if not names <= self._grid.keys() - names_of_index(self.rows) - names_of_index(self.columns):
            raise UnsupportedKernel(f"{what} is read at an index that moves with the tiles")
        return tuple(evaluate(index, env) for env in self._envs)

    def _position(self, index: ir.Slice) -> Any:
        """The term of positions: an element's, or that and a number."""
        for mine in (self.rows, self.columns):
            moved = affine(ir.Arith("-", index.start, mine.start))
            if index.axis == mine.axis and moved.constant and not moved.terms:
                place = ir.Slice(mine.start, index.extent, index.axis)
                return ("add", "int32", ("iota", self._element(place)), ("literal", repr(moved.constant), "int32"))
        return ("iota", self._element(index))

    def _element(self, index: ir.Slice) -> str:
        """Which of the pair's elements a slice runs over; on the diagonal, where both are the same, by its loop."""
        both = zip((self.rows, self.columns), self._names, strict=True)
        fitting = [(mine, n) for mine, n in both if same_index(ir.Slice(index.start, index.extent, mine.axis), mine)]
        if len(fitting) > 1:
            fitting = [(mine, name) for mine, name in fitting if mine.axis == index.axis]
        if len(fitting) != 1:
            raise UnsupportedKernel("a tile is read beside the pairs that a program visits")
        return fitting[0][1]


def _dimensions(index: tuple[Any, ...]) -> Iterator[Any]:
    """The entries of an index that are dimensions of the tensor."""
    return (i for i in index if not isinstance(i, ir.NewAxis))


def _same_elements(stored: ir.Access, read: ir.Access) -> bool:
    places = [*_dimensions(stored.index)], [*_dimensions(read.index)]
    return len(places[0]) == len(places[1]) and all(map(same_index, *places))


__all__ = ["SQUARE", "Terms"]
