"""Arguments that cut loops: which loops a value cuts, and what it becomes if these loops have other extents.

Validation and tag tables apply the steps of a schedule to the same operator at smaller sizes. The kinds of arguments
(`kinds`) have what that takes, so a primitive whose arguments have these kinds needs nothing of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class CutLoop:
    """A loop that a step cuts.

    Args:
        loop: "block.loop".
        size: iterations of the innermost of the new loops; 0 if the step works them out.
        parts: of three loops, the iterations of the middle one; None if there are two.
    """

    loop: str
    size: int
    parts: int | None = None


@dataclass(frozen=True, slots=True)
class Resized:
    """A loop with another extent than it had when the step was written.

    Args:
        before: its extent then, in iterations.
        now: its extent now.
        size: the iterations of an inner loop now, given those that it had.
    """

    before: int
    now: int
    size: Callable[[int], int]


# A loop, as "block.loop", by its extents.
ResizedLoop: TypeAlias = Callable[[str], Resized]
# The new size, given a loop as "block.loop" and the size that it is cut by.
NewSize: TypeAlias = Callable[[str, int], int]


@dataclass(frozen=True, slots=True)
class Cutting:
    """How the values of a kind cut loops. `at` below is the value of the argument that says where.

    Args:
        at: the control of that argument: "loop" for the loop itself, "block" for loops around a block.
        loops: the loops that a value cuts: `loops(value, at)`.
        with_sizes: the value with each size replaced: `with_sizes(value, at, new)`.
        resized: the value for loops with other extents, which keeps the number of loops: `resized(value, at, loop)`.
    """

    at: Literal["loop", "block"]
    loops: Callable[[Any, str], Iterator[CutLoop]]
    with_sizes: Callable[[Any, str, NewSize], Any]
    resized: Callable[[Any, str, ResizedLoop], Any]


# -- the size of a tile ----------------------------------------------------------------------------


def _size_cuts(value: int, loop: str) -> Iterator[CutLoop]:
    yield CutLoop(loop, value)


SIZE = Cutting("loop", _size_cuts, lambda value, at, new: new(at, value), lambda value, at, loop: loop(at).size(value))


# -- a tile's size for each loop -------------------------------------------------------------------


def _tiles_cut(value: Mapping[str, int], block: str) -> Iterator[CutLoop]:
    for var, size in value.items():
        yield CutLoop(f"{block}.{var}", size)


TILES = Cutting(
    "block",
    _tiles_cut,
    lambda value, at, new: {var: new(f"{at}.{var}", size) for var, size in value.items()},
    lambda value, at, loop: {var: loop(f"{at}.{var}").size(size) for var, size in value.items()},
)


# -- the factors of a split ------------------------------------------------------------------------


def _factors_cut(value: Sequence[int | None], loop: str) -> Iterator[CutLoop]:
    if len(value) == 3:
        yield CutLoop(loop, value[2] or 0, value[1])
    else:
        yield CutLoop(loop, prod(factor or 0 for factor in value[1:]))


def _resized_factors(value: Sequence[int | None], at: str, loop: ResizedLoop) -> list[int | None]:
    """As many whole tiles as fit; of three factors, the parts that they make, with tiles in each and elements of one.

    >>> halved = Resized(64, 32, lambda size: size // 2)
    >>> _resized_factors([None, 16], "s.j", lambda _: halved)
    [None, 8]
    >>> _resized_factors([4, None], "s.j", lambda _: halved)
    [4, None]
    >>> _resized_factors([2, 4, 8], "s.j", lambda _: halved)
    [4, 2, 4]
    """
    changed = loop(at)
    match list(value):
        case [None, int(inner)]:
            return [None, changed.size(inner)]
        case [int(outer), None]:
            return [-(-changed.now // changed.size(-(-changed.before // outer))), None]
        case [int(), int(middle), int(inner)]:
            tile, each = changed.size(inner), min(middle, 2)
            return [-(-changed.now // (tile * each)), each, tile]
        case factors if changed.before != changed.now:
            return [factor if factor is None else min(factor, 2) for factor in factors]
        case factors:
            return factors


FACTORS = Cutting(
    "loop",
    _factors_cut,
    lambda value, at, new: [factor and new(at, factor) for factor in value],
    _resized_factors,
)

__all__ = ["FACTORS", "SIZE", "TILES", "CutLoop", "Cutting", "NewSize", "Resized", "ResizedLoop"]
