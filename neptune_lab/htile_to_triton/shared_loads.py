"""Which tiles a kernel's products read both as they are in memory and transposed: they are loaded once.

The gradient of the keys multiplies with a tile of q, and the scores with its transpose.  A matrix unit reads a tile in
shared memory in either order, so one load serves both; two would take twice the shared memory and its bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from neptune_lab.htile.nodes import Access, Cast, Dot, Index, Kernel, Permute, Slice, TileExpr
from neptune_lab.htile.walk import region, simplify, stores, subexpressions

Tile: TypeAlias = tuple[str, tuple[Index, ...]]


def tile_of(access: Access) -> Tile:
    """A tensor and the region that is read, whatever its axes are called and wherever it has `NewAxis`."""
    index = (Slice(simplify(i.start), i.extent, "") if isinstance(i, Slice) else i for i in region(access))
    return access.tensor, tuple(index)


def read_in_both_orders(kernel: Kernel) -> frozenset[Tile]:
    """The matrices that are factors of products both as they are and transposed.

    Args:
        kernel: any kernel.

    Returns:
        Their tiles.
    """
    orders: dict[Tile, set[tuple[int, ...]]] = {}
    for store in stores(kernel.body):
        for expr in subexpressions(store.value):
            for factor in (expr.a, expr.b) if isinstance(expr, Dot) else ():
                for tile, order in _reads(factor, (0, 1)):
                    orders.setdefault(tile, set()).add(order)
    return frozenset(tile for tile, found in orders.items() if len(found) > 1)


def _reads(expr: TileExpr, order: tuple[int, ...]) -> Iterator[tuple[Tile, tuple[int, ...]]]:
    """The read that a factor of rank 2 is, perhaps converted, and the order of its dimensions."""
    match expr:
        case Cast(arg=arg):
            yield from _reads(arg, order)
        case Permute(arg=arg, order=own) if len(own) == len(order):
            yield from _reads(arg, tuple(own[n] for n in order))
        case Access(index=index) if sum(isinstance(i, Slice) for i in index) == 2 == len(order):
            yield tile_of(expr), order


__all__ = ["Tile", "read_in_both_orders", "tile_of"]
