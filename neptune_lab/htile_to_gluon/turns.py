"""The order in which persistent programs take their tiles, and how long the longest of them takes.

A persistent program takes one tile per turn: of every `programs` tiles in the order of `_locate`, one; back and forth,
so that a program that took a long one then takes a short one.  Tiles are in sections of `together` heads.  Either each
section begins with a turn of its own, from the first program or, every second one, from the last, or turns go on over
all tiles:

    sections   evens out long and short row blocks, but the last turn of each section leaves programs idle
    on         leaves none idle before the end, but may give a program long tiles again and again

Which of them is better follows from the numbers alone, so the time of the longest program is computed for both.  That
two sections even out does not count: on an H200, nine of ten orders that were chosen so took 1.00 to 1.06 of the time
(full attention of 16 x 64 x 312, widths 192 and 128, 206.7 us in sections and 195.1 on).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil

import numpy as np

from neptune_lab.htile.bounds import grid_env
from neptune_lab.htile.nodes import For, Kernel
from neptune_lab.htile.walk import evaluate, names_of_index
from neptune_lab.htile_to_gluon.launch_helpers import CACHE, EVEN
from neptune_lab.htile_to_gluon.structure import Structure
from neptune_lab.target import MOST_HOPPER_SMS

# What a program does before and after the loop of a tile and does not overlap with other tiles, in loop tiles.
SETUP = 0.5
# An order is replaced if another one takes less than this part of its time.
WORTH = 0.97
# What a tile takes if each row block reads keys and values from memory again, since those of the heads that are side by
# side do not fit the L2 cache: 1.3 on an H200, 1.6 on an H100, over a tile that they share.
MISSED = 1.4


@dataclass(frozen=True, slots=True)
class Order:
    """An order of tiles.

    Args:
        together: how many heads are in a section, a divisor of their number.
        sections: whether each section begins with a turn of its own.
    """

    together: int
    sections: bool = True


def row_block_tiles(structure: Structure, kernel: Kernel, rows: list[str]) -> tuple[int, ...] | None:
    """The number of loop tiles of each row block; None if it depends on more than the grid variables `rows`."""
    env = grid_env(kernel)
    loops = [part.loop for part in structure.parts if part.loop is not None]
    names = {name for loop in loops for name in names_of_index(loop.start) | names_of_index(loop.stop)}
    if not names <= set(rows) or any(axis.size is not None for axis in kernel.grid):
        return None
    alone = len(structure.parts) - len(loops)
    values = [range(env[var].lo, env[var].hi + 1) for var in reversed(rows)]  # (the first one varies fastest)
    points = (dict(zip(reversed(rows), chosen, strict=True)) for chosen in product(*values))
    return tuple(alone + sum(_tiles(loop, at) for loop in loops) for at in points)


def _tiles(loop: For, at: dict[str, int]) -> int:
    return max(0, evaluate(loop.stop, at) - evaluate(loop.start, at))


def usual_heads(blocks: int, heads: int, size: int, *, differ: bool) -> int:
    """How many heads run at the same time if each tile has a program: one if all row blocks have the same number of
    tiles, else enough to balance them, longest first, as long as what loops load fits the L2 cache.

    Args:
        blocks, heads: the numbers of row blocks and of heads.
        size: bytes that the loops of all heads load.
        differ: whether row blocks have different numbers of tiles.
    """
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    enough = next((n for n in divisors if n * blocks >= EVEN), heads)
    chosen = min(enough, CACHE * heads // size) if differ else 1
    return max((n for n in divisors if n <= chosen), default=1)


def usual_persistent(blocks: int, heads: int, fewest: int) -> int:
    """How many heads are usually in a section of persistent programs: at least `fewest`, and enough for a tile for each
    program of any Hopper GPU."""
    enough = (n for n in range(fewest, heads + 1) if heads % n == 0 and n * blocks >= MOST_HOPPER_SMS)
    return next(enough, heads)


@cache
def order_of(tiles: tuple[int, ...], heads: int, programs: int, usual: int, size: int = 0) -> Order:
    """The order of the tiles of `heads` heads: sections of `usual` heads, unless another order is much faster; of those
    that are about as fast, the one with the fewest heads at a time, which share the L2 cache.

    Args:
        tiles: of each row block.
        heads, programs, usual: their numbers, and that of the heads that are usually in a section.
        size: bytes that the loops of all heads load.

    >>> order_of((9, 8, 7), 128, 132, usual=64)
    Order(together=128, sections=True)
    >>> order_of((9, 8, 7), 128, 132, usual=64, size=68 << 20)  # of which the cache holds those of 60 heads
    Order(together=1, sections=False)
    >>> order_of((4, 3, 2, 1), 128, 132, usual=64)
    Order(together=64, sections=True)
    """
    first = Order(usual)
    times = {
        order: counted(tiles, heads, order, programs) * (MISSED if _misses(tiles, heads, order, size) else 1.0)
        for order in (first, *_orders(len(tiles), heads))
    }
    least = min(times.values())
    if least > WORTH * times[first]:
        return first
    return next(order for order, time in times.items() if order != first and WORTH * time <= least)


def _misses(tiles: tuple[int, ...], heads: int, order: Order, size: int) -> bool:
    """Whether the row blocks of a head come too far apart to find its keys and values in the L2 cache."""
    return len(tiles) > 1 and size * order.together > CACHE * heads


def _orders(blocks: int, heads: int) -> Iterator[Order]:
    """The orders with few heads at a time first.  A section has a tile for each program of any Hopper GPU."""
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    for n in divisors:
        if n * blocks >= MOST_HOPPER_SMS or n == heads:
            yield Order(n)
        yield Order(n, sections=False)


def counted(tiles: tuple[int, ...], heads: int, order: Order, programs: int) -> float:
    """The time that an order is chosen by, in loop tiles: of sections, that of one, as often as there are sections."""
    if not order.sections:
        return longest(tiles, heads, order, programs)
    return longest(tiles, order.together, order, programs) * (heads // order.together)


def longest(tiles: tuple[int, ...], heads: int, order: Order, programs: int) -> float:
    """The time of the longest persistent program, in loop tiles."""
    section = np.repeat(np.array(tiles) + SETUP, order.together)
    times = heads // order.together
    if not order.sections:
        section, times = np.tile(section, times), 1
    turns = ceil(len(section) / programs)
    taken = np.zeros(turns * programs)
    taken[: len(section)] = section
    taken = taken.reshape(turns, programs)
    taken[1::2] = taken[1::2, ::-1]
    each = taken.sum(0)
    both = each + each[::-1]  # (of two sections, one from each end)
    return float((both * (times // 2) + each * (times % 2)).max())


__all__ = ["Order", "counted", "longest", "order_of", "row_block_tiles", "usual_heads", "usual_persistent"]
