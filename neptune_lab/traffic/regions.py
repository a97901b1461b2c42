"""Boxes of a tensor that a statement touches, over all values of the loops around it, and how many elements they have.

A region is a list of loops and one interval for each dimension of the tensor.  Loops that share neither a bound, nor a
condition, nor a dimension are independent, so each group of connected loops is enumerated alone: the counts are exact,
and cost as many steps as the largest group has values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Values = Mapping[str, Ints]

# The most rows that are enumerated at once, and the most cells of a grid of boxes.
LIMIT = 1 << 23


class TooMany(Exception):
    """A region has more than `LIMIT` points or cells."""


@dataclass(frozen=True, eq=False)
class Formula:
    """An integer, or a condition, of loop variables: their names, and its value where they have values."""

    names: frozenset[str]
    at: Callable[[Values], Any]


@dataclass(frozen=True, eq=False)
class Span:
    """`for name in range(start, stop)`."""

    name: str
    start: Formula
    stop: Formula


@dataclass(frozen=True, eq=False)
class Region:
    """What one access touches.

    Args:
        loops: around it, outermost first.
        dims: per dimension of the tensor the first index, and how many follow each other from there.
        conditions: that must hold for it to be touched.
    """

    loops: tuple[Span, ...]
    dims: tuple[tuple[Formula, int], ...]
    conditions: tuple[Formula, ...] = ()


@dataclass(frozen=True, eq=False)
class _Group:
    """Connected loops of a region, and the dimensions that they move."""

    names: frozenset[str]
    dims: tuple[int, ...]


def rows(
    loops: Sequence[Span], names: frozenset[str], conditions: Iterable[Formula] = (), most: int | None = None
) -> dict[str, Ints]:
    """Every combination of values of the loops `names`, one array per loop; conditions on them hold.

    Raises:
        TooMany: there are more than `most`, or `LIMIT`.
    """
    values: dict[str, Ints] = {}
    count = 1
    for loop in loops:
        if loop.name not in names:
            continue
        start = np.broadcast_to(np.asarray(loop.start.at(values), np.int64), count)
        stop = np.broadcast_to(np.asarray(loop.stop.at(values), np.int64), count)
        lengths = np.maximum(stop - start, 0)
        count = int(lengths.sum())
        if count > (most or LIMIT):
            raise TooMany
        before = np.cumsum(lengths) - lengths
        values = {name: np.repeat(array, lengths) for name, array in values.items()}
        values[loop.name] = np.repeat(start - before, lengths) + np.arange(count)
    for condition in conditions:
        keep = np.broadcast_to(np.asarray(condition.at(values), bool), count)
        values = {name: array[keep] for name, array in values.items()}
        count = int(keep.sum())
    return values if values else {"": np.zeros(count, np.int64)}


def _groups(region: Region) -> list[_Group]:
    """The region's groups of connected loops; dimensions that no loop moves are a group of their own."""
    joined: list[tuple[set[str], set[int]]] = [({loop.name}, set()) for loop in region.loops]

    def join(names: Iterable[str], dims: Iterable[int]) -> None:
        new: tuple[set[str], set[int]] = (set(names), set(dims))
        for old in [g for g in joined if g[0] & new[0]]:
            joined.remove(old)
            new = (new[0] | old[0], new[1] | old[1])
        joined.append(new)

    for loop in region.loops:
        join({loop.name} | loop.start.names | loop.stop.names, ())
    for condition in region.conditions:
        join(condition.names, ())
    for n, (start, _) in enumerate(region.dims):
        join(start.names, (n,))
    return [_Group(frozenset(names), tuple(sorted(dims))) for names, dims in joined]


def _intervals(region: Region, dims: Sequence[int], values: Values, shape: Sequence[int]) -> tuple[Ints, Ints]:
    """First index and end along each of `dims`, one row per combination of loops, clipped to the tensor."""
    count = len(next(iter(values.values())))
    low = np.empty((count, len(dims)), np.int64)
    high = np.empty_like(low)
    for n, dim in enumerate(dims):
        start, extent = region.dims[dim]
        first = np.broadcast_to(np.asarray(start.at(values), np.int64), count)
        low[:, n] = np.clip(first, 0, shape[dim])
        high[:, n] = np.clip(first + extent, 0, shape[dim])
    return low, high


def _conditions(region: Region, group: _Group) -> list[Formula]:
    return [c for c in region.conditions if c.names & group.names or not c.names]


def touched(region: Region, shape: Sequence[int]) -> int:
    """Elements that the region touches, each as often as it is touched.

    Raises:
        TooMany: see `rows`.
    """
    total = 1
    for group in _groups(region):
        values = rows(region.loops, group.names, _conditions(region, group))
        low, high = _intervals(region, group.dims, values, shape)
        total *= int(np.maximum(high - low, 0).prod(axis=1).sum())
    return total


def distinct(regions: Sequence[Region], shape: Sequence[int]) -> int:
    """Elements of one tensor that at least one of the regions touches.

    Raises:
        TooMany: see `rows`; or the boxes have too many different bounds.
    """
    boxes = [found for region in regions if (found := _boxes(region, shape)) is not None]
    if not boxes:
        return 0
    parts = _joined(part for found in boxes for part in found)
    merged = [_boxes_along(found, parts) for found in boxes]
    unlike = [n for n in range(len(parts)) if len({_key(m[n]) for m in merged}) > 1]
    if len(unlike) > 1:  # the union of two products is one only if they differ along one part
        whole = tuple(d for n in unlike for d in parts[n])
        parts = [p for n, p in enumerate(parts) if n not in unlike] + [whole]
        merged = [_boxes_along(found, parts) for found in boxes]
    return prod(_union([m[n] for m in merged]) for n in range(len(parts)))


Boxes = dict[tuple[int, ...], tuple[Ints, Ints]]


def _boxes(region: Region, shape: Sequence[int]) -> Boxes | None:
    """The distinct boxes of each group's dimensions; None if the region is empty."""
    out: Boxes = {}
    for group in _groups(region):
        values = rows(region.loops, group.names, _conditions(region, group))
        low, high = _intervals(region, group.dims, values, shape)
        full = (high > low).all(axis=1)
        if not full.any():
            return None
        if group.dims:
            both = np.unique(np.hstack([low[full], high[full]]), axis=0)
            out[group.dims] = both[:, : len(group.dims)], both[:, len(group.dims) :]
    return out


def _joined(parts: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The finest split of dimensions of which each of `parts` lies within one piece."""
    joined: list[set[int]] = []
    for part in parts:
        new = set(part)
        for old in [p for p in joined if p & new]:
            joined.remove(old)
            new |= old
        joined.append(new)
    return [tuple(sorted(p)) for p in sorted(joined, key=min)]


def _boxes_along(boxes: Boxes, parts: Sequence[tuple[int, ...]]) -> list[tuple[Ints, Ints]]:
    """The boxes along each of `parts`, which are unions of the groups' dimensions."""
    out = []
    for part in parts:
        dims: list[int] = []
        low, high = np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int64)
        for own, (a, b) in boxes.items():
            if not set(own) <= set(part):
                continue
            if len(low) * len(a) > LIMIT:
                raise TooMany
            low = np.hstack([np.repeat(low, len(a), axis=0), np.tile(a, (len(low), 1))])
            high = np.hstack([np.repeat(high, len(b), axis=0), np.tile(b, (len(high), 1))])
            dims += own
        order = np.argsort(dims)
        out.append((low[:, order], high[:, order]))
    return out


def _key(boxes: tuple[Ints, Ints]) -> bytes:
    return np.unique(np.hstack(boxes), axis=0).tobytes()


def _union(sets: Sequence[tuple[Ints, Ints]]) -> int:
    """Points in the union of boxes: on the grid of all their bounds, by sums of corners."""
    low, high = (np.vstack([s[side] for s in sets]) for side in (0, 1))
    both = np.unique(np.hstack([low, high]), axis=0)
    rank = low.shape[1]
    low, high = both[:, :rank], both[:, rank:]
    cuts = [np.unique(np.concatenate([low[:, d], high[:, d]])) for d in range(rank)]
    if prod(len(c) for c in cuts) > LIMIT or len(low) << rank > 8 * LIMIT:
        raise TooMany
    corners = np.zeros([len(c) for c in cuts], np.int64)
    at = [(np.searchsorted(cuts[d], low[:, d]), np.searchsorted(cuts[d], high[:, d])) for d in range(rank)]
    for sides in np.ndindex(*[2] * rank):
        np.add.at(corners, tuple(at[d][side] for d, side in enumerate(sides)), (-1) ** sum(sides))
    for d in range(rank):
        corners = np.cumsum(corners, axis=d)
    sizes = np.ones([1] * rank, np.int64)
    for d in range(rank):
        lengths = np.array([b - a for a, b in pairwise(cuts[d].tolist())] + [0])
        sizes = sizes * lengths.reshape([-1 if n == d else 1 for n in range(rank)])
    return int((sizes * (corners > 0)).sum())


@lru_cache(maxsize=1024)
def constant(value: int) -> Formula:
    """A formula of no variable."""
    return Formula(frozenset(), lambda _: value)
