"""Sizes at which programs for all sizes are made and checked: the samples, and every kind of small size."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise, permutations, product

from neptune_lab.htile.sizes import Sample
from neptune_lab.loop_schedule.templates.nest_shape import NestConfig

# Tiles along a size at the samples: enough that no loop is unrolled, and several that no other expression gives.
_TILES = (7, 9, 12, 17, 23)
# The samples of a size that no tile cuts, such as a number of sequences, are larger than this.
UNCUT = min(_TILES) - 1
# Orders of several sizes by length that are tried.
_MOST_ORDERS = 6
# Values at which a size that no tile cuts is checked, beside others.
_FEW = (1, 2, 3)
# How much of the last tile is there at the samples, of the parts that may be.
_FILLED = (0.0, 1.0, 0.4, 0.75, 0.2)
# Parts of a tile from which on a check of three whole tiles takes too long.
_MANY_PARTS = 8
# Splits that are not there at the samples, in tiles: the last split is shorter by so many.
_MISSING = (1, 2, 1, 4, 3)


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a size is cut into: tiles of `tile` elements, of which `part` are a tile of another loop, in splits.

    Loops of other nests may cut it into tiles of `between` elements, the larger first.
    """

    tile: int
    part: int
    splits: int
    between: tuple[int, ...] = ()

    def lengths(self, turn: int, above: int, shift_by: int = 0) -> tuple[int, ...]:
        """A length for each sample, larger than `above` and the larger the larger `turn`; none is whole tiles of any
        loop, and the last split is shorter in each.  Sizes with other `shift_by` have their lengths in another order.

        What the last tile lacks differs too, so that numbers of parts are no multiples of numbers of tiles; its last
        part is missing in each, so that in all of them a bound by parts is the smaller one.
        """
        shift = -(-above // self.tile)
        inside = (1 + self.part // 8, self.part - 3, self.part // 2 + 5, self.part * 3 // 4 + 1, self.part // 3 | 1)
        tiles = _TILES if turn == 1 else tuple(3 * turn + count + count // 2 for count in reversed(_TILES))
        tiles = (*tiles[shift_by:], *tiles[:shift_by])
        missing = (
            tuple(less + (less % self.splits == 0) for less in _MISSING) if self.splits > 1 else (0,) * len(_TILES)
        )
        whole = (self.tile * ((count + shift) * self.splits - less) for count, less in zip(tiles, missing, strict=True))
        return tuple(
            end - (self.tile - self.part) + self._parts_before(n) - min(max(1, left), self.part - 1)
            for n, (end, left) in enumerate(zip(whole, inside, strict=True))
        )

    def _parts_before(self, n: int) -> int:
        """Elements of the last tile in parts before its last part that is there, at sample `n`."""
        extents = (self.tile, *self.between, self.part)
        return sum(
            part * int(max(0, tile // part - 2) * _FILLED[(n + level) % len(_FILLED)])
            for level, (tile, part) in enumerate(pairwise(extents))
        )

    def small(self) -> tuple[int, ...]:
        """Lengths of every kind: parts of a tile, whole tiles, an element more; fewer tiles than splits, and more."""
        counts = {0, 1, 2, self.splits - 1, self.splits, 2 * self.splits, 2 * self.splits + 1}
        if self.splits == 1 and self.tile > _MANY_PARTS * self.part:
            counts -= {3}  # (rows are as many as columns, and the time is that of their product)
        return tuple(sorted({count * self.tile + end for count, end in product(counts, self.ends())}))

    def ends(self) -> tuple[int, ...]:
        """Elements of a last tile: one, a part, all."""
        parts = {end for part in (*self.between, self.part) for end in (part, min(part + 1, self.tile))}
        return tuple(sorted({1, *parts, max(self.tile - 1, 1), self.tile}))


def tiling_of(nests: tuple[NestConfig, ...], role: str) -> Tiling:
    """How the tiles of the nests cut a size.

    Args:
        role: of the size, as for `compile_for_sizes`.
    """
    if not role:
        return Tiling(1, 1, 1)
    rows = {nest.block_q for nest in nests if nest.block_q > 1}
    columns = {nest.block_kv for nest in nests}
    along = (rows if role != "columns" else set()) | (columns if role != "rows" else set())
    splits = max((nest.splits or 1 for nest in nests), default=1) if role != "rows" else 1
    tile = max(along, default=16)
    part = min(along, default=tile)
    return Tiling(tile, part, splits, tuple(sorted(along - {tile, part}, reverse=True)))


def lengths_of(tilings: Mapping[str, Tiling]) -> dict[str, tuple[int, ...]]:
    """The lengths of each size at which a kernel is checked, by name."""
    return {name: tiling.lengths(1, 0) for name, tiling in tilings.items()}


def sample_sets(tilings: Mapping[str, Tiling], above: int) -> Iterator[list[Sample]]:
    """Sets of samples: of two sizes, the one is larger in all samples of a set, or the other is.

    A bound that is the smaller one of two sizes is a minimum in the program of one set, and one of the sizes in that of
    the other.
    """
    names = list(tilings)
    orders: Iterable[tuple[int, ...]] = ((1,),) if len(names) == 1 else ((8, 1), (1, 8), (1, 2))
    if len(names) > 2:
        orders = permutations(range(1, 7 * len(names), 7))
    # (with more than two, several have their lengths in one order, unless that is shifted)
    for order in islice(orders, _MOST_ORDERS):
        lengths = {
            name: tilings[name].lengths(turn, 2 * above, n % len(_TILES) if len(names) > 2 else 0)
            for n, (name, turn) in enumerate(zip(names, order, strict=True))
        }
        yield [{name: values[n] for name, values in lengths.items()} for n in range(len(_TILES))]


def below_samples(tilings: Mapping[str, Tiling], farthest: int) -> Iterator[Sample]:
    """Every number of tiles below the samples of one size: with one element in the last tile, and whole."""
    ((name, tiling),) = tilings.items()
    above = min(tiling.lengths(1, 2 * farthest))
    yield from ({name: count * tiling.tile + end} for count in range(above // tiling.tile) for end in (1, tiling.tile))


def small_samples(tilings: Mapping[str, Tiling]) -> Iterator[Sample]:
    """Samples to check: the kinds of one size; of two, every pair of numbers of tiles, with ends drawn at random."""
    if len(tilings) == 1:
        ((name, tiling),) = tilings.items()
        yield from ({name: value} for value in tiling.small())
        return
    rng = random.Random(0)
    splits = max(tiling.splits for tiling in tilings.values())
    counts = sorted({0, 1, 2, splits - 1, splits, 2 * splits + 1})
    cut = {name: tiling for name, tiling in tilings.items() if tiling != Tiling(1, 1, 1)}
    if not cut:
        yield from (dict(zip(tilings, sizes, strict=True)) for sizes in product(_FEW, repeat=len(tilings)))
        return
    if len(cut) > 2:
        counts = [0, 1, 2]
    for pair in product(counts, repeat=len(cut)):
        found = {name: rng.choice(_FEW) for name in tilings}
        for (name, tiling), count in zip(cut.items(), pair, strict=True):
            found[name] = count * tiling.tile + rng.choice(tiling.ends())
        yield found


__all__ = ["UNCUT", "Tiling", "below_samples", "lengths_of", "sample_sets", "small_samples", "tiling_of"]
