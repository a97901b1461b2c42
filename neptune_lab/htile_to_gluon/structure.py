"""The structure of a kernel for the Gluon emitter: resident tiles and loop parts, with products around row work."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.errors import EmitError
from neptune_lab.htile.nodes import Access, For, Store, TileExpr
from neptune_lab.htile.walk import reads
from neptune_lab.htile_to_gluon.rows import ROWS


class UnsupportedKernel(EmitError):
    """A kernel has not the form that can be emitted in Gluon; the message says in what it differs."""


@dataclass(frozen=True, slots=True)
class Product:
    """A store `target = dot(a, b, acc)` of a loop's body.

    Args:
        store: the whole statement.
        a: the left operand: for a leading product a loop-invariant tile, for a trailing one a value of the loop.
        b: the global tile that the loop loads for it.
        transposed: whether the product takes `b` transposed.
        acc: what the product is added to: a function of its own target; None for a leading product, and for a trailing
            one with `promotion`.
        promotion: the statement that adds the product to its accumulator in float32, if the matrix unit does not; it is
            no other's of the part.
        exact: of how many keys, the first ones of a tile, the left operand is a number of 8 bits and what rounding to
            it leaves; or, with `halves`, one of 16 bits (htile/rounded_weights.py).
        halves: the tile of values in float16 of the first keys, which weights of float16 multiply; `b` is then of the
            other keys.
    """

    store: Store
    a: TileExpr
    b: Access
    transposed: bool
    acc: TileExpr | None
    promotion: Store | None = None
    exact: int = 0
    halves: Access | None = None

    @property
    def target(self) -> str:
        """The tile that it computes."""
        return self.store.target.tensor

    @property
    def accumulator(self) -> str:
        """The tile that accumulates it over the loop."""
        return self.target if self.promotion is None else self.promotion.target.tensor


@dataclass(frozen=True, slots=True)
class LoopPart:
    """One part of the loop, or one unrolled tile of it (`loop` is None).

    Args:
        leading: products of loop-invariant tiles with tiles that the loop loads: they depend on nothing that the loop
            computes, so they can run one tile ahead.
        middle: row work: the statements between the products.
        trailing: products that accumulate over the loop.
        after: the statements after them in the body.
        certain: whether the part has at least one tile in every program.
    """

    loop: For | None
    leading: tuple[Product, ...]
    middle: tuple[Store, ...]
    trailing: tuple[Product, ...]
    after: tuple[Store, ...]
    certain: bool


@dataclass(frozen=True, slots=True)
class Unscaled:
    """Row work on products that are not scaled (unscaled.py).

    Args:
        scale: the tile of the scalar that scales them; if it is negative, the left operands of the leading products are
            negated.
        weight: the tile whose exponent is a product and a sum that round once.
        size: the tile of the magnitude of the scale.
        limit: if `size` is at most this, `small` is the kernel.
        small: the structure for scores that are so small that their differences need no operation of their own.
    """

    scale: str
    weight: str
    size: str
    limit: float
    small: Structure


@dataclass(frozen=True, slots=True)
class Structure:
    """The structure of a kernel that can be emitted in Gluon.

    Args:
        rows: rows of a program, a multiple of 64.
        resident: by name, on-chip tiles that are loaded once and are left operands only: they stay in shared memory.
        before, after: the other statements before and after the loop.
        first: the first tile that is visited; it is certain to exist.
        parts: in the order in which they are visited; the first part contains the first tile.
        downward: whether tiles are visited from the last to the first.
        eights: whether the products multiply floats of 8 bits; else of 16.
        unscaled: whether and how row work computes with products that are not scaled.
        in_halves: the axis of the keys if they are in the order of key_order.py.
        whole: whether one consumer computes all rows.
    """

    rows: int
    resident: dict[str, Access]
    before: tuple[Store, ...]
    first: LoopPart
    parts: tuple[LoopPart, ...]
    downward: bool
    after: tuple[Store, ...]
    eights: bool = False
    unscaled: Unscaled | None = None
    in_halves: str | None = None
    whole: bool = False

    @property
    def promoted(self) -> bool:
        """Whether products are added to their accumulators by statements of their own."""
        return any(product.promotion is not None for product in self.first.trailing)

    @property
    def warp_groups(self) -> int:
        """The number of groups of four warps that compute 64 rows each."""
        return self.rows // ROWS

    @property
    def consumers(self) -> int:
        """The number of consumers: one for each group of warps, or one of all."""
        return 1 if self.whole else self.warp_groups

    @property
    def each(self) -> int:
        """Rows of a consumer."""
        return self.rows // self.consumers

    @property
    def warps(self) -> int:
        """Warps of a consumer."""
        return 4 * self.warp_groups // self.consumers


def carried_tiles(parts: tuple[LoopPart, ...], after: tuple[Store, ...]) -> frozenset[str]:
    """On-chip tiles whose values one tile of the loop leaves to the next, or to the statements after the loop."""
    carried = {access.tensor for stmt in after for access in reads(stmt)}
    for this in parts:
        stored: set[str] = {product.target for product in this.leading}
        carried |= {product.accumulator for product in this.trailing}
        for stmt in this.middle:
            carried |= {access.tensor for access in reads(stmt)} - stored
            stored.add(stmt.target.tensor)
        for product in this.trailing:
            carried |= {access.tensor for access in reads(product.store)} - stored
            if product.promotion is not None:
                carried |= {access.tensor for access in reads(product.promotion)} - stored - {product.target}
        for stmt in this.after:
            carried |= {access.tensor for access in reads(stmt)} - stored
            stored.add(stmt.target.tensor)
    return frozenset(carried)
