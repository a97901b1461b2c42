"""What a kernel is to the Gluon emitter: tiles that stay, loop parts, and in each part products around row work."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.errors import EmitError
from neptune_lab.htile.nodes import Access, For, Store, TileExpr


class UnsupportedKernel(EmitError):
    """A kernel has not the form that is written in Gluon; the message says in what."""


@dataclass(frozen=True, slots=True)
class Product:
    """A store `target = dot(a, b, acc)` of a loop's body.

    Args:
        store: the whole statement.
        a: the left operand: for a leading product a tile that stays, for a trailing one a value of the loop.
        b: the global tile that the loop brings for it.
        transposed: whether the product takes `b` transposed.
        acc: what the product adds to: a function of its own target; None for a leading product.
    """

    store: Store
    a: TileExpr
    b: Access
    transposed: bool
    acc: TileExpr | None

    @property
    def target(self) -> str:
        """The tile it computes."""
        return self.store.target.tensor


@dataclass(frozen=True, slots=True)
class LoopPart:
    """One part of the loop, or one tile of it that was written out (`loop` is None).

    Args:
        leading: products of tiles that stay with tiles that the loop brings: they wait for nothing that the loop
            computes, so they can run a tile ahead.
        middle: row work: the statements between the products.
        trailing: products that add up over the loop.
        after: what follows them in the body.
        certain: whether the part has at least one tile, whatever the program's number.
    """

    loop: For | None
    leading: tuple[Product, ...]
    middle: tuple[Store, ...]
    trailing: tuple[Product, ...]
    after: tuple[Store, ...]
    certain: bool


@dataclass(frozen=True, slots=True)
class Structure:
    """A kernel that fits.

    Args:
        rows: rows of a program, a multiple of 64.
        resident: on-chip tiles that are loaded once and are left operands only, by name: they stay in shared memory.
        before, after: the other statements before and after the loop.
        first: the first tile that is visited, which is certain to exist.
        parts: in the order in which they are visited; the first part has the first tile too.
        downward: whether that is from the last tile to the first.
    """

    rows: int
    resident: dict[str, Access]
    before: tuple[Store, ...]
    first: LoopPart
    parts: tuple[LoopPart, ...]
    downward: bool
    after: tuple[Store, ...]

    @property
    def consumers(self) -> int:
        """Groups of four warps that each take 64 rows."""
        return self.rows // 64
