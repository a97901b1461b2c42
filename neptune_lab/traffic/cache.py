"""Which bytes of a kernel come from HBM: a model of the L2 cache over waves of blocks.

The blocks of a kernel run in launch order in *waves*, as many as reside on the GPU at once.  Blocks of one wave run
side by side, one top-level loop or statement of the body (a *pass*) after the other.  A byte comes from HBM in the
first wave and pass that touches it.  Later it comes from the L2 cache if no more bytes than the cache holds were
touched since the last pass that touched it began; otherwise it comes from HBM again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod

import numpy as np
import numpy.typing as npt

from neptune_lab.traffic.regions import LIMIT, Formula, Ints, Region, Span, TooMany, rows


@dataclass(frozen=True, eq=False)
class CachedAccess:
    """An access of a kernel: its tensor, region (grid axes are its first loops) and pass, and whether it stores."""

    tensor: str
    region: Region
    order: int
    stores: bool


def cell_sizes(accesses: Sequence[CachedAccess], rank: int, most: int = LIMIT) -> tuple[int, ...]:
    """The sizes of the largest cells on which all boxes of one tensor begin and end.

    Raises:
        TooMany: see `rows`.
    """
    sizes = [0] * rank
    for access in accesses:
        region = access.region
        for dim, (start, extent) in enumerate(region.dims):
            values = rows(region.loops, _closed(region.loops, start.names), most=most)
            firsts = np.unique(np.asarray(start.at(values), np.int64))
            sizes[dim] = gcd(sizes[dim], extent, *firsts.tolist())
    return tuple(sizes)


@dataclass(eq=False)
class Cache:
    """The L2 cache, empty at first; it keeps what one kernel leaves for the next.

    Args:
        capacity: bytes that it holds.
        tensors: shape and bytes per element of each.
        cells: sizes of the cells in which each is looked at (`cell_sizes`).
        most: cells of a tensor, and touches of an access, that are looked at.
    """

    capacity: float
    tensors: Mapping[str, tuple[tuple[int, ...], int]]
    cells: Mapping[str, tuple[int, ...]]
    most: int = LIMIT
    clock: float = 0.0
    last: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    def run(self, grid: Sequence[Span], accesses: Sequence[CachedAccess], resident: int) -> dict[str, int]:
        """Bytes per tensor that one kernel reads from HBM.

        Args:
            grid: its axes, the fastest first.
            accesses: of tensors in HBM.
            resident: blocks per wave.

        Raises:
            TooMany: there are too many tiles to look at one by one.
        """
        touches = [(a, *self._touches(a, grid, self.cells[a.tensor], resident)) for a in accesses]
        read: dict[str, int] = dict.fromkeys((a.tensor for a in accesses if not a.stores), 0)
        waves = max((int(w[-1]) for _, w, _ in touches if len(w)), default=-1) + 1
        for wave in range(waves):
            for order in sorted({a.order for a in accesses}):
                here = [(a, _slice(w, c, wave)) for a, w, c in touches if a.order == order]
                self._step(here, read)
        return read

    def _touches(
        self, access: CachedAccess, grid: Sequence[Span], cell: tuple[int, ...], resident: int
    ) -> tuple[Ints, Ints]:
        """Waves and cells, each pair once, by wave."""
        region = access.region
        shape, _ = self.tensors[access.tensor]
        names = frozenset(axis.name for axis in grid)
        used = _closed(region.loops, frozenset().union(names, *(start.names for start, _ in region.dims)))
        values = rows(region.loops, used, [*region.conditions, *_not_empty(region.loops, used)], self.most)
        count = len(next(iter(values.values())))
        block = np.zeros(count, np.int64)
        step = 1
        for axis in grid:
            block += values[axis.name] * step
            step *= int(axis.stop.at({}))
        wave = block // resident
        grid_shape = [-(-size // c) for size, c in zip(shape, cell, strict=True)]
        codes = np.zeros((count, 1), np.int64)
        inside = np.ones((count, 1), bool)
        for dim, (start, extent) in enumerate(region.dims):
            first = np.broadcast_to(np.asarray(start.at(values), np.int64), count) // cell[dim]
            along = first[:, None] + np.arange(extent // cell[dim])
            if codes.size * along.shape[1] > self.most:
                raise TooMany
            ok = (along >= 0) & (along < grid_shape[dim])
            codes = (codes[:, :, None] * grid_shape[dim] + along[:, None, :]).reshape(count, -1)
            inside = (inside[:, :, None] & ok[:, None, :]).reshape(count, -1)
        pairs = np.stack([np.broadcast_to(wave[:, None], codes.shape)[inside], codes[inside]])
        size = prod(grid_shape)
        both = np.unique(pairs[0] * size + pairs[1])
        return both // size, both % size

    def _step(self, touches: Sequence[tuple[CachedAccess, Ints]], read: dict[str, int]) -> None:
        """One pass of one wave."""
        now: dict[str, Ints] = {}
        total = 0
        for name in {a.tensor for a, _ in touches}:
            found = np.unique(np.concatenate([c for a, c in touches if a.tensor == name]))
            now[name] = found
            total += int(self._bytes(name, found).sum())
            loads = [c for a, c in touches if a.tensor == name and not a.stores]
            if loads:
                loaded = np.unique(np.concatenate(loads))
                missing = self.clock - self._last(name)[loaded] > self.capacity
                read[name] += int(self._bytes(name, loaded[missing]).sum())
        # As if touched when the pass began: of a pass that touches more than the cache holds, nothing is left.
        for name, found in now.items():
            self._last(name)[found] = self.clock
        self.clock += total

    def _last(self, name: str) -> npt.NDArray[np.float64]:
        """When each cell was touched last, by the bytes that had been touched until then."""
        if name not in self.last:
            shape, _ = self.tensors[name]
            count = prod(-(-size // c) for size, c in zip(shape, self.cells[name], strict=True))
            if count > self.most:
                raise TooMany
            self.last[name] = np.full(count, -np.inf)
        return self.last[name]

    def _bytes(self, name: str, codes: Ints) -> Ints:
        """Bytes of each cell; the last along a dimension may be shorter."""
        shape, item = self.tensors[name]
        cell = self.cells[name]
        sizes = np.full(len(codes), item, np.int64)
        rest = codes
        for size, c in zip(shape[::-1], cell[::-1], strict=True):
            number = -(-size // c)
            sizes = sizes * np.minimum(c, size - rest % number * c)
            rest = rest // number
        return sizes


def _slice(waves: Ints, cells: Ints, wave: int) -> Ints:
    first, end = np.searchsorted(waves, [wave, wave + 1])
    return cells[first:end]


def _not_empty(loops: Sequence[Span], used: frozenset[str]) -> list[Formula]:
    """That the loops which are not enumerated run at all."""

    def runs(loop: Span) -> Formula:
        return Formula(loop.start.names | loop.stop.names, lambda v: loop.start.at(v) < loop.stop.at(v))

    return [runs(loop) for loop in loops if loop.name not in used]


def _closed(loops: Sequence[Span], names: frozenset[str]) -> frozenset[str]:
    """`names`, the loops that their bounds depend on, and those that bounds of loops further in depend on."""
    for loop in reversed(loops):
        names |= loop.start.names | loop.stop.names
    return names
