"""Traffic and operations of an HTile program, which is what the kernels do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from neptune_lab.htile.nodes import (
    Access,
    Arith,
    Cast,
    Dot,
    Elementwise,
    For,
    Gather,
    Grouped,
    IndexExpr,
    Int,
    Kernel,
    Name,
    Permute,
    Program,
    Reduce,
    Slice,
    Stmt,
    Store,
    TileExpr,
)
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import is_exception, names_of_index, region, subexpressions
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.traffic.cache import Cache, CachedAccess, cell_sizes
from neptune_lab.traffic.record import StageTraffic, TensorTraffic, Traffic
from neptune_lab.traffic.regions import LIMIT, Formula, Region, Span, TooMany, Values, constant, distinct, touched


@dataclass(frozen=True, slots=True)
class Chip:
    """A GPU for the model of the L2 cache: blocks that reside on it at once, and bytes that the cache holds."""

    resident: int
    cache: float


@dataclass
class _Counts:
    """What is counted of one kernel."""

    accesses: list[CachedAccess] = field(default_factory=list)
    moved: dict[tuple[str, bool], int] = field(default_factory=lambda: defaultdict(int))
    gathered: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    chip: int = 0
    products: int = 0
    operations: int = 0


def of_tiles(program: Program, chip: Chip, most: int = LIMIT) -> Traffic:
    """Counts what the kernels of a program move and compute.

    Args:
        program: a verified program.
        chip: the GPU that runs it.
        most: touches of tiles that the model of the cache looks at. With more, each kernel reads a byte once, as from a
            cache that holds everything.
    """
    counted = [_count(program, kernel) for kernel in program.kernels]
    totals = {t.name: _tensor(program, t.name) for t in program.tensors if t.space != "chip"}
    stages: list[StageTraffic] = []
    for tiles, kernel, reads in zip(program.kernels, counted, _reads(program, counted, chip, most), strict=True):
        was = [sum(getattr(t, name) for t in totals.values()) for name in _MOVES]
        for name, total in totals.items():
            stores = [a.region for a in kernel.accesses if a.tensor == name and a.stores]
            gathered = kernel.gathered.get(name, 0)
            totals[name] = replace(
                total,
                loaded=total.loaded + kernel.moved.get((name, False), 0) + gathered,
                stored=total.stored + kernel.moved.get((name, True), 0),
                read=total.read + min(max(reads.get(name, 0), gathered), max(total.bytes, reads.get(name, 0))),
                written=total.written + _written(program, name, stores),
                exact=total.exact and not gathered,
            )
        read, written, loaded, stored = (
            sum(getattr(t, name) for t in totals.values()) - old for name, old in zip(_MOVES, was, strict=True)
        )
        stages.append(StageTraffic(tiles.name, read, written, loaded + stored, kernel.chip, kernel.operations))
    return Traffic(
        "kernel",
        None,
        "",
        tuple(t for t in totals.values() if t.loaded or t.stored),
        sum(k.chip for k in counted),
        sum(k.products for k in counted),
        sum(k.operations for k in counted),
        tuple(stages),
    )


_MOVES = ("read", "written", "loaded", "stored")


def _tensor(program: Program, name: str) -> TensorTraffic:
    tensor = program.tensor(name)
    return TensorTraffic(name, prod(tensor.shape) * itemsize(tensor.dtype))


def _written(program: Program, name: str, stores: list[Region]) -> int:
    tensor = program.tensor(name)
    try:
        return distinct(stores, tensor.shape) * itemsize(tensor.dtype)
    except TooMany:
        return prod(tensor.shape) * itemsize(tensor.dtype)


def _reads(program: Program, counted: list[_Counts], chip: Chip, most: int) -> list[dict[str, int]]:
    """Bytes that each kernel reads from HBM, by tensor; each once if there are too many tiles for the cache's model."""
    tensors = {t.name: (t.shape, itemsize(t.dtype)) for t in program.tensors if t.space != "chip"}
    every = [a for kernel in counted for a in kernel.accesses]
    try:
        ranks = {name: len(shape) for name, (shape, _) in tensors.items()}
        cells = {name: cell_sizes([a for a in every if a.tensor == name], rank, most) for name, rank in ranks.items()}
        cache = Cache(chip.cache, tensors, cells, most)
        grids = [_grid(kernel) for kernel in program.kernels]
        return [cache.run(grid, k.accesses, chip.resident) for grid, k in zip(grids, counted, strict=True)]
    except TooMany:
        return [
            {
                name: distinct([a.region for a in k.accesses if a.tensor == name and not a.stores], shape) * item
                for name, (shape, item) in tensors.items()
            }
            for k in counted
        ]


def _grid(kernel: Kernel) -> tuple[Span, ...]:
    return tuple(Span(axis.var, constant(0), constant(axis.extent)) for axis in kernel.grid)


def _count(program: Program, kernel: Kernel) -> _Counts:
    counts = _Counts()
    for order, top in enumerate(kernel.body):
        if is_exception(top, program):
            continue
        for loops, store in _stores((top,), _grid(kernel)):
            _count_store(program, store, loops, order, counts)
    return counts


# (A loop that the values of an input bound counts whole: nobody knows these values.)
def _stores(body: tuple[Stmt, ...], loops: tuple[Span, ...]) -> Iterator[tuple[tuple[Span, ...], Store]]:
    for stmt in body:
        if isinstance(stmt, For):
            yield from _stores(stmt.body, (*loops, Span(stmt.var, _formula(stmt.start), _formula(stmt.stop))))
        else:
            yield loops, stmt


def _count_store(program: Program, store: Store, loops: tuple[Span, ...], order: int, counts: _Counts) -> None:
    runs = touched(Region(loops, ()), ())
    products, others = operations(store.value, program)
    counts.products += runs * products
    counts.operations += runs * (products + others)
    roots = [store.value] + ([] if store.mask is None else [store.mask])
    nodes = [node for root in roots for node in subexpressions(root)]
    reads = dict.fromkeys(node for node in nodes if isinstance(node, Access))  # a tile is loaded once per store
    for access, stores in [*((read, False) for read in reads), (store.target, True)]:
        tensor = program.tensor(access.tensor)
        found = Region(loops, tuple(map(_dim, region(access))))
        bytes_ = touched(found, tensor.shape) * itemsize(tensor.dtype)
        if tensor.space == "chip":
            counts.chip += bytes_
        else:
            counts.moved[tensor.name, stores] += bytes_
            counts.accesses.append(CachedAccess(tensor.name, found, order, stores))
    for node in nodes:
        if isinstance(node, Gather):
            tensor = program.tensor(node.tensor)
            counts.gathered[tensor.name] += runs * prod(shape_of(node, program)) * itemsize(tensor.dtype)


def operations(expr: TileExpr, program: Program) -> tuple[int, int]:
    """Operations of matrix products, and others on values: conditions, indices and casts do not count."""
    match expr:
        case Dot(a=a, b=b, acc=acc):
            inside = [operations(e, program) for e in (a, b, acc) if e is not None]
            own = 2 * prod(shape_of(expr, program)) * shape_of(a, program)[-1]
            return own + sum(p for p, _ in inside), sum(o for _, o in inside)
        case Elementwise(op="where", args=(_, yes, no)):
            return _added(operations(yes, program), operations(no, program))
        case Elementwise(args=args):
            inner = _added(*(operations(arg, program) for arg in args))
            return inner[0], inner[1] + prod(shape_of(expr, program))
        case Reduce(arg=arg):
            products, others = operations(arg, program)
            return products, others + prod(shape_of(arg, program))
        case Cast(arg=arg) | Permute(arg=arg) | Grouped(arg=arg):
            return operations(arg, program)
        case _:
            return 0, 0


def _added(*pairs: tuple[int, int]) -> tuple[int, int]:
    return sum(p for p, _ in pairs), sum(o for _, o in pairs)


def _dim(index: IndexExpr | Slice) -> tuple[Formula, int]:
    return (_formula(index.start), index.extent) if isinstance(index, Slice) else (_formula(index), 1)


def _formula(index: IndexExpr) -> Formula:
    return Formula(names_of_index(index), lambda values: _value(index, values))


def _value(index: IndexExpr, values: Values) -> Any:
    match index:
        case Int(value=value):
            return value
        case Name(name=name):
            return values[name]
        case Arith(op=op, a=a, b=b):
            return _ARITH[op](_value(a, values), _value(b, values))


_ARITH: dict[str, Any] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "//": np.floor_divide,
    "%": np.mod,
    "min": np.minimum,
    "max": np.maximum,
}
