"""Which tiles of the scores a kernel visits, and on which of them it masks: read from its HTile program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from neptune_lab.errors import MeasureError
from neptune_lab.htile.nodes import Access, Elementwise, For, IndexExpr, Iota, Kernel, Program, Slice, Store
from neptune_lab.htile.walk import evaluate, names_of_index, reads, region, stores, subexpressions

LEFT_OUT, WHOLE, MASKED = 0, 1, 2

_ROLLING = "compile an operator with a rolling loop, such as attention.causal, by the template rolling_update"


@dataclass(frozen=True, slots=True, eq=False)
class TileMap:
    """The tiles of one head: a row a block of queries, a column a block of keys.

    Args:
        cells: (rows, columns), int8: `LEFT_OUT`, `WHOLE` (visited, no mask) or `MASKED` (visited, with a mask).
        block_q, block_kv: queries and keys of a tile.
    """

    cells: np.ndarray
    block_q: int
    block_kv: int

    @property
    def all(self) -> int:
        """How many tiles there are."""
        return self.cells.size

    @property
    def visited(self) -> int:
        """How many the kernel loads and multiplies."""
        return int((self.cells != LEFT_OUT).sum())

    @property
    def masked(self) -> int:
        """On how many of those it computes a mask."""
        return int((self.cells == MASKED).sum())

    def __str__(self) -> str:
        return f"{self.all} tiles per head, {self.visited} visited, {self.masked} of them masked"


def tile_map(program: Program) -> TileMap:
    """The map of an attention kernel with one rolling loop, such as `kernel.htile`.

    Raises:
        MeasureError: the program has several kernels, or no loop over tiles.
    """
    if len(program.kernels) != 1:
        raise MeasureError(
            f"{program.name} has {len(program.kernels)} kernels: expected one with a rolling loop", help=_ROLLING
        )
    (kernel,) = program.kernels
    loops = tuple(stmt for stmt in kernel.body if isinstance(stmt, For))
    if not loops:
        raise MeasureError(f"{program.name} has no loop over tiles", help=_ROLLING)
    straight = tuple(stmt for stmt in kernel.body if isinstance(stmt, Store))
    out = next(store.target for store in straight if program.tensor(store.target.tensor).space != "chip")
    axis, keys = kernel.grid[0], _loaded(program, loops[0])
    row, block_q, rows = _place(program, out, axis.var)
    column, block_kv, columns = _place(program, keys, loops[0].var)
    cells = np.zeros((rows, columns), dtype=np.int8)
    for env in _blocks(kernel):
        at = evaluate(row, env) // block_q
        for loop in loops:
            for value in range(evaluate(loop.start, env), evaluate(loop.stop, env)):
                cells[at, evaluate(column, {**env, loop.var: value}) // block_kv] = _state(tuple(stores(loop.body)))
        # A part of a single iteration stands outside of any loop.
        for access in {a for store in straight for a in reads(store) if a.tensor == keys.tensor}:
            alone = next(i for i, moving in zip(region(access), region(keys), strict=True) if _begins(moving, column))
            if isinstance(alone, Slice):
                cells[at, evaluate(alone.start, env) // block_kv] = _state(straight)
    return TileMap(cells, block_q, block_kv)


def _begins(index: IndexExpr | Slice, start: IndexExpr) -> bool:
    return isinstance(index, Slice) and index.start == start


def _state(body: tuple[Store, ...]) -> int:
    return MASKED if any(_has_mask(store) for store in body) else WHOLE


def _blocks(kernel: Kernel) -> Iterator[Mapping[str, int]]:
    """The values of the grid's variables, heads and batches at 0."""
    first, *others = kernel.grid
    for value in range(first.extent):
        yield {**{axis.var: 0 for axis in others}, first.var: value}


def _place(program: Program, access: Access, var: str) -> tuple[IndexExpr, int, int]:
    """Where along a dimension an access begins, its extent, and how many of them the dimension has."""
    for index, size in zip(region(access), program.tensor(access.tensor).shape, strict=True):
        if isinstance(index, Slice) and var in names_of_index(index.start):
            return index.start, index.extent, -(-size // index.extent)
    raise MeasureError(f"{access.tensor} does not depend on {var}")


def _loaded(program: Program, loop: For) -> Access:
    """An access to memory that moves with the loop."""
    for store in stores(loop.body):
        for access in reads(store):
            if program.tensor(access.tensor).space != "chip":
                return access
    raise MeasureError(f"the loop over {loop.var} loads nothing")


def _has_mask(store: Store) -> bool:
    """Whether it selects by positions, or stores under a mask."""
    chosen = (e.args[0] for e in subexpressions(store.value) if isinstance(e, Elementwise) and e.op == "where")
    return store.mask is not None or any(isinstance(e, Iota) for c in chosen for e in subexpressions(c))
