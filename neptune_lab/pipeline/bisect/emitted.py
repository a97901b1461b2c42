"""A run of an emitted Triton module in NumPy in which every assignment of a tile is kept."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import evaluate, names_of_access, region, stores
from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.pipeline.bisect.observed import Observed, TileWrite
from neptune_lab.pipeline.validate import numpy_tiles, triton_numpy


@dataclass(frozen=True, slots=True)
class _Assignment:
    """`name = ...` in the text: which HTile store it is, and the lines that it takes."""

    name: str
    line: int
    store: ir.Store


def observe_triton(
    source: EmittedModule,
    tiles: ir.Program,
    inputs: Mapping[str, np.ndarray],
    dtypes: Mapping[str, str],
    order: tuple[str, ...],
) -> Observed:
    """Every tile that the module's kernels assign to the variable of an HTile store, and every tensor it returns.

    Args:
        source: the module.
        tiles: the HTile program that it was written from.
        inputs, dtypes, order: as in `triton_numpy.run`.

    Raises:
        UnknownSpelling: as `triton_numpy.run`.
    """
    assignments = _assignments(source, tiles)
    shapes = {t.name: t.shape for t in tiles.tensors}
    writes: list[TileWrite] = []
    waiting: dict[int, _Assignment] = {}

    def finish(frame: FrameType) -> None:
        done = waiting.pop(id(frame), None)
        if done is not None:
            write = _write(done, frame.f_locals, shapes)
            if write is not None:
                writes.append(write)

    def inside(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        held = waiting.get(id(frame))
        if event == "line" and held is not None and held is assignments.get(frame.f_lineno):
            return inside  # a further line of the same statement
        if event in ("line", "return"):
            finish(frame)
        if event == "line" and (starts := assignments.get(frame.f_lineno)) is not None:
            waiting[id(frame)] = starts
        return inside

    def enter(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        return inside if frame.f_code.co_filename == f"<{source.name}>" else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        strides = {t.name: t.strides for t in tiles.tensors}
        outputs = triton_numpy.run(source, inputs, dtypes, order, strides)
    except IndexError as error:  # a load or a store outside its tensor
        frames = traceback.walk_tb(error.__traceback__)
        stopped = [line for frame, line in frames if frame.f_code.co_filename == f"<{source.name}>"]
        return Observed.of(writes, shapes, stopped[-1])
    finally:
        sys.settrace(before)
    for name, array in zip(tiles.outputs, outputs, strict=True):
        flat = np.asarray(array, np.float64).reshape(-1)
        writes.append(TileWrite("", name, (), np.arange(flat.size), flat))
    return Observed.of(writes, shapes)


def _assignments(source: EmittedModule, tiles: ir.Program) -> dict[int, _Assignment]:
    """Line -> the assignment that the line is part of, of those that are an HTile store into a tile on chip."""
    by_node = {s.node_id: s for kernel in tiles.kernels for s in stores(kernel.body)}
    nodes = {line.number: line.node_ids for line in source.lines}
    found = {}
    for stmt in ast.walk(ast.parse(source.text)):
        if not isinstance(stmt, ast.Assign) or not isinstance(target := stmt.targets[0], ast.Name):
            continue
        for node in nodes.get(stmt.lineno, ()):
            store = by_node.get(node)
            if store is not None and store.target.tensor == target.id:
                for line in range(stmt.lineno, (stmt.end_lineno or stmt.lineno) + 1):
                    found[line] = _Assignment(target.id, stmt.lineno, store)
    return found


def _write(done: _Assignment, scope: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> TileWrite | None:
    """What the assignment put into its tensor; None where the text does not name the variables of its index."""
    access = done.store.target
    env = {n: scope[n] for n in names_of_access(access) if isinstance(scope.get(n), int)}
    if set(names_of_access(access)) - set(env) or done.name not in scope:
        return None
    tile = np.asarray(scope[done.name])
    tile = tile[0] if isinstance(scope[done.name], numpy_tiles.Tile) else tile
    index = region(access)
    axes = [
        evaluate(i.start, env) + np.arange(i.extent) if isinstance(i, ir.Slice) else np.asarray([evaluate(i, env)])
        for i in index
    ]
    extents = tuple(i.extent for i in access.index if isinstance(i, ir.Slice))
    if tile.ndim != sum(not _selects(i) for i in access.index):
        return None
    shape = shapes[access.tensor]
    grid = np.meshgrid(*axes, indexing="ij") if axes else []
    exists = np.ones([len(axis) for axis in axes], bool)
    for position, size in zip(grid, shape, strict=True):
        exists &= position < size
    inside = tile[tuple(slice(0, i.extent) if isinstance(i, ir.Slice) else 0 for i in access.index if not _selects(i))]
    values = np.broadcast_to(inside, extents).reshape(exists.shape)[exists]  # a padded tile is larger
    elements = np.ravel_multi_index([p[exists] for p in grid], shape) if shape else np.zeros(1, int)
    loops = tuple((n, int(v)) for n, v in scope.items() if type(v) is int)
    return TileWrite(
        done.store.node_id, access.tensor, loops, elements, np.asarray(values, np.float64).reshape(-1), done.line
    )


def _selects(index: ir.Index) -> bool:
    """A scalar index: the tile has no dimension for it."""
    return not isinstance(index, ir.Slice | ir.NewAxis)


def statement_at(text: str, line: int) -> str:
    """The statement that a line of the module is part of, on one line; "" for line 0."""
    covering = [
        stmt
        for stmt in ast.walk(ast.parse(text))
        if isinstance(stmt, ast.stmt) and stmt.lineno <= line <= (stmt.end_lineno or stmt.lineno)
    ]
    if not line or not covering:
        return ""
    innermost = min(covering, key=lambda stmt: (stmt.end_lineno or stmt.lineno) - stmt.lineno)
    return ast.unparse(innermost).partition("\n")[0]
