"""What a run of a program wrote: every store of a tile, in the order of execution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

Index = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TileWrite:
    """A store of one tile.

    Args:
        statement: id of the statement: an HTile node, a block of the loop program.
        tensor: what it writes to.
        loops: the grid's and the loops' variables, outermost first.
        elements: positions in the flattened tensor, one for each value.
        values: what was written.
        line: number of the line in the emitted text, from 1; 0 for other programs.
    """

    statement: str
    tensor: str
    loops: tuple[tuple[str, int], ...]
    elements: np.ndarray
    values: np.ndarray
    line: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """A run: its writes in order, the shape of each tensor that was written, and where it stopped with an error.

    Args:
        stopped: the line of the emitted text, from 1; 0 where the run came to its end.
    """

    writes: tuple[TileWrite, ...]
    shapes: Mapping[str, tuple[int, ...]]
    stopped: int = 0

    def last(self, tensor: str) -> tuple[np.ndarray, np.ndarray]:
        """The last value of each element of a tensor, and the number of the write that made it; NaN and -1 where
        nothing was written."""
        size = int(np.prod(self.shapes[tensor], dtype=int))
        values, writer = np.full(size, np.nan), np.full(size, -1)
        for n, write in enumerate(self.writes):
            if write.tensor == tensor:
                values[write.elements] = write.values
                writer[write.elements] = n
        return values, writer

    def history(self, tensor: str, element: int) -> list[tuple[int, float]]:
        """(number of the write, value) of every write to one element."""
        found = []
        for n, write in enumerate(self.writes):
            if write.tensor == tensor:
                found += [(n, float(v)) for v in write.values[write.elements == element]]
        return found

    @staticmethod
    def of(writes: Iterable[TileWrite], shapes: Mapping[str, tuple[int, ...]], stopped: int = 0) -> Observed:
        """A run with these writes, and the shapes of what they write to."""
        kept = tuple(writes)
        return Observed(kept, {name: shapes[name] for name in dict.fromkeys(w.tensor for w in kept)}, stopped)
