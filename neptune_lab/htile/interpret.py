"""Interprets HTile IR in NumPy: the definition of its meaning, simple and slow.

Each tensor is one array of its full shape, and a tile is what its index selects.  On-chip tensors are arrays too, new
in each program instance and full of NaN, so that reading an element that was not stored, or is past the end, gives NaN
in the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from neptune_lab.errors import TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.rounding import AS_FLOAT32, round_to
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import evaluate, tile_dims, written_tensors
from neptune_lab.scalar_ops import NUMPY
from neptune_lab.strict.dtypes import FLOATS

Array = NDArray[Any]

_REDUCERS: dict[str, Callable[..., Array]] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


# Called with a store, the grid and loop variables, and the positions and values of the elements that it wrote.
Observer = Callable[[ir.Store, Mapping[str, int], tuple[Array, ...], Array], None]


def interpret(
    program: ir.Program,
    inputs: Mapping[str, np.ndarray],
    *,
    dtype: str | None = None,
    observer: Observer | None = None,
) -> dict[str, np.ndarray]:
    """Run every kernel over its whole grid.

    Args:
        program: a verified program.
        inputs: an array for each name in `program.inputs`, of the tensor's shape.
        dtype: a float dtype, "float64" for example, that replaces the program's float dtypes; None: as stated.
        observer: is called after every store.

    Returns:
        The outputs by name, of the tensors' shapes and dtypes; bfloat16 and floats of 8 bits as float32 with
        values of that dtype.

    Raises:
        TileError: an input is missing or has another shape.
    """
    for name in program.inputs:
        shape = None if name not in inputs else np.shape(inputs[name])
        if shape != program.tensor(name).shape:
            raise TileError(f"input {name} has shape {shape}; expected {program.tensor(name).shape}")
    machine = _Machine(program, inputs, dtype, observer)
    with np.errstate(all="ignore"):
        for kernel in program.kernels:
            machine.run(kernel)
    return {name: machine.arrays[name] for name in program.outputs}


def evaluator() -> Callable[[ir.TileExpr, dict[str, int]], Array]:
    """A function from an expression that reads no tensor, and the values of its variables, to its value."""
    machine = _Machine(ir.Program("", (), (), (), ()), {}, None, None)

    def value(expr: ir.TileExpr, env: dict[str, int]) -> Array:
        machine.env = env
        return machine.eval(expr)

    return value


class _Machine:
    def __init__(
        self,
        program: ir.Program,
        inputs: Mapping[str, np.ndarray],
        dtype: str | None,
        observer: Observer | None,
    ) -> None:
        self.program = program
        self.observer = observer
        self.float_dtype = dtype
        self.arrays: dict[str, Array] = {}
        for tensor in program.tensors:
            if tensor.space == "input":
                self.arrays[tensor.name] = self.convert(np.asarray(inputs[tensor.name]), tensor.dtype)
            elif tensor.space != "chip":
                self.arrays[tensor.name] = self.unknown(tensor.shape, tensor.dtype)
        self.env: dict[str, int] = {}

    # -- dtypes ---------------------------------------------------------------------------------------------

    def numpy_dtype(self, dtype: str) -> np.dtype[Any]:
        if dtype in FLOATS and self.float_dtype is not None:
            return np.dtype(self.float_dtype)
        return np.dtype("float32" if dtype in AS_FLOAT32 else dtype)

    def convert(self, array: Array, dtype: str) -> Array:
        converted = np.asarray(array).astype(self.numpy_dtype(dtype))
        rounds = dtype in AS_FLOAT32 and self.float_dtype is None
        return round_to(converted, dtype) if rounds else converted

    def unknown(self, shape: tuple[int, ...], dtype: str) -> Array:
        kind = self.numpy_dtype(dtype)
        return np.full(shape, np.nan if kind.kind == "f" else np.iinfo(kind).max if kind.kind in "iu" else True, kind)

    # -- statements -----------------------------------------------------------------------------------------

    def run(self, kernel: ir.Kernel) -> None:
        names = written_tensors(kernel)
        chip = [t for t in self.program.tensors if t.space == "chip" and t.name in names]
        for instance in itertools.product(*(range(axis.extent) for axis in kernel.grid)):
            self.env = {axis.var: n for axis, n in zip(kernel.grid, instance, strict=True)}
            for tensor in chip:
                self.arrays[tensor.name] = self.unknown(tensor.shape, tensor.dtype)
            self.body(kernel.body)

    def body(self, body: tuple[ir.Stmt, ...]) -> None:
        for stmt in body:
            match stmt:
                case ir.Store():
                    self.store(stmt)
                case ir.For(var=var, body=inner):
                    for value in self.iterations(stmt):
                        self.env[var] = value
                        self.body(inner)
                    self.env.pop(var, None)
                case _:
                    assert_never(stmt)

    def iterations(self, loop: ir.For) -> Iterator[int]:
        start, stop = self.index(loop.start), self.index(loop.stop)
        if loop.listed is not None:
            entry, count = loop.listed
            place = ir.place_in_list(loop.var)
            for n in range(int(self.eval(count))):
                self.env[place] = n
                value = int(self.eval(entry))
                assert start <= value < stop, f"{loop.var} = {value} is listed, and is not in range({start}, {stop})"
                yield value
            self.env.pop(place, None)
            return
        if loop.within is not None:
            first, last = (int(self.eval(bound)) for bound in loop.within)
            start, stop = max(start, first), min(stop, last)
        left_out = range(0)
        if loop.without is not None:
            left_out = range(*(int(self.eval(bound)) for bound in loop.without))
        yield from (value for value in range(start, stop) if value not in left_out)

    def store(self, store: ir.Store) -> None:
        target = self.program.tensor(store.target.tensor)
        shape = shape_of_access(store.target)
        value = np.broadcast_to(self.convert(self.eval(store.value), target.dtype), shape)
        whole = None if store.mask is not None else self.whole(store.target.index, target.shape)
        if whole is not None and self.observer is None:
            self.arrays[target.name][whole] = value
            return
        where, exists = self.positions(store.target.index, target.shape)
        keep = np.broadcast_to(exists, shape)
        if store.mask is not None:
            keep = keep & self.eval(store.mask)
        array = self.arrays[target.name]
        if target.shape:
            positions, values = tuple(np.broadcast_to(w, shape)[keep] for w in where), value[keep]
            array[positions] = values
        else:
            array[...] = np.where(keep, value, array)
            positions, values = (), array
        if self.observer is not None:
            self.observer(store, self.env, positions, values)

    # -- expressions ----------------------------------------------------------------------------------------

    def index(self, expr: ir.IndexExpr) -> int:
        return evaluate(expr, self.env)

    def whole(self, indices: tuple[ir.Index, ...], shape: tuple[int, ...]) -> tuple[Any, ...] | None:
        """NumPy's index of a tile whose elements all exist, which is faster than their positions; None of others."""
        selected: list[Any] = []
        sizes = iter(shape)
        for index in indices:
            if isinstance(index, ir.NewAxis):
                selected.append(None)
                continue
            tiled = isinstance(index, ir.Slice)
            start = self.index(index.start if tiled else index)
            if start < 0 or start + (index.extent if tiled else 1) > next(sizes):
                return None
            selected.append(slice(start, start + index.extent) if tiled else start)
        return (*selected, ...)  # (the ellipsis makes one element an array without dimensions, not a number)

    def positions(self, indices: tuple[ir.Index, ...], shape: tuple[int, ...]) -> tuple[list[Array], Array]:
        """Along each dimension of the tensor, the position of each element of the tile; and whether it exists."""
        rank = len(tile_dims(indices))
        where: list[Array] = []
        dim = 0
        for index in indices:
            match index:
                case ir.NewAxis():
                    dim += 1
                case ir.Slice(start=start, extent=extent):
                    column = [1] * rank
                    column[dim] = extent
                    where.append((self.index(start) + np.arange(extent)).reshape(column))
                    dim += 1
                case _:
                    where.append(np.full([1] * rank, self.index(index)))
        exists = np.full([1] * rank, True)
        for position, size in zip(where, shape, strict=True):
            exists = exists & (position >= 0) & (position < size)
        return where, exists

    def read(self, access: ir.Access) -> Array:
        tensor = self.program.tensor(access.tensor)
        whole = self.whole(access.index, tensor.shape)
        if whole is not None:
            return self.arrays[tensor.name][whole]
        where, exists = self.positions(access.index, tensor.shape)
        inside = [np.clip(w, 0, size - 1) for w, size in zip(where, tensor.shape, strict=True)]
        shape = shape_of_access(access)
        array = np.broadcast_to(self.arrays[tensor.name][tuple(inside)], shape)
        outside = self.unknown((), tensor.dtype) if tensor.space == "chip" else np.zeros((), array.dtype)
        return np.where(exists, array, outside)

    def gather(self, name: str, where: list[Array]) -> Array:
        array = self.arrays[name]
        exists = np.full((), True)
        for position, size in zip(where, array.shape, strict=True):
            exists = exists & (position >= 0) & (position < size)
        inside = [np.clip(w, 0, size - 1) for w, size in zip(where, array.shape, strict=True)]
        return np.where(exists, array[tuple(inside)], np.zeros((), array.dtype))

    def eval(self, expr: ir.TileExpr) -> Array:
        """The value of a tile expression, of its static shape."""
        match expr:
            case ir.Access():
                return self.read(expr)
            case ir.Gather(tensor=name, indices=indices):
                return self.gather(name, [self.eval(index) for index in indices])
            case ir.Iota(index=index):
                part = next(p for p in index if isinstance(p, ir.Slice))
                shape = [p.extent if isinstance(p, ir.Slice) else 1 for p in index]
                return (self.index(part.start) + np.arange(part.extent, dtype=np.int32)).reshape(shape)
            case ir.Scalar(value=value):
                return np.asarray(self.index(value), np.int32)
            case ir.Literal(value=value, dtype=dtype):
                return self.convert(np.asarray(value), dtype)
            case ir.Elementwise(op=op, args=args, dtype=dtype):
                return self.convert(NUMPY[op](*(self.eval(arg) for arg in args)), dtype)
            case ir.Cast(arg=arg, dtype=dtype):
                return self.convert(self.eval(arg), dtype)
            case ir.Permute(arg=arg, order=order):
                return np.transpose(self.eval(arg), order)
            case ir.Grouped(arg=arg, size=size):
                tile = self.eval(arg)
                return tile.reshape(*tile.shape[:-1], -1, size)
            case ir.Reduce(op=op, arg=arg, dim=dim):
                tile = self.eval(arg)
                wide = tile.astype(np.float32) if tile.dtype == np.float16 else tile
                return np.asarray(_REDUCERS[op](wide, axis=dim)).astype(tile.dtype)
            case ir.Dot(a=a, b=b, acc=acc):
                wide = self.numpy_dtype("float32")
                product = self.eval(a).astype(wide) @ self.eval(b).astype(wide)
                return product if acc is None else product + self.eval(acc)
            case _:
                assert_never(expr)
