"""The contents of shared memory: resident tiles, ring buffers of tiles that the loop loads, and their barriers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neptune_lab.htile.nodes import Access, Program
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_gluon.structure import Product, Structure
from neptune_lab.htile_to_triton.descriptors import BYTES, leaves_matrix
from neptune_lab.htile_to_triton.scope import UniqueNames


@dataclass(frozen=True, slots=True)
class Halves:
    """Beside the slots of a ring, tiles of float16 that are filled and read together with them, in two halves of their
    rows (key_order.py).

    Args:
        access: the first such tile.
        shape, dtype: of a tile.
        slots: the name of the buffer, which has two slots for each of the ring's.
    """

    access: Access
    shape: tuple[int, ...]
    dtype: str
    slots: str

    @property
    def tensor(self) -> str:
        """The tensor whose tiles it holds."""
        return self.access.tensor

    def half(self, slot: str, number: int) -> str:
        """A half of the tile in a slot of the ring."""
        rows, columns = self.shape
        return f"{self.slots}.index({slot} * 2 + {number}).reshape([{rows // 2}, {columns}])"


@dataclass(frozen=True, slots=True)
class RingBuffer:
    """Slots that the producer fills and every consumer reads.

    Args:
        tensor: the tensor whose tiles it holds.
        shape, dtype: of a tile.
        slots, full, empty: names of the buffer and its barriers.
        slot, phase: names of the variables with the current slot and the parity of its barriers.
        of_matrix: a tile is copied from one of several matrices, past whose end rows are 0.
        in_halves: its rows are in the order of key_order.py.
        halves: tiles that are filled and read together with its own.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    slots: str
    full: str
    empty: str
    slot: str
    phase: str
    of_matrix: bool
    in_halves: bool
    halves: Halves | None = None

    @property
    def tile(self) -> str:
        """The current slot."""
        return _slot(self.slots, self.slot, self.shape, self.of_matrix or self.in_halves)


def ring_names(tensor: str, names: UniqueNames) -> Iterator[str]:
    """New names of a ring's `slots`, `full`, `empty`, `slot` and `phase`, in this order."""
    return (names.fresh(f"{tensor}_{what}") for what in ("ring", "full", "empty", "slot", "phase"))


@dataclass(frozen=True, slots=True)
class ResidentTile:
    """A tile that stays in shared memory for the whole loop.

    It has a slot for each consumer; with persistent programs twice as many if memory allows, so that the next tile is
    copied while the current one is in use.

    Args:
        access: the tile of all consumers.
        shape, dtype: of one consumer's part.
        buffer, ready, spent: names of the buffer and its barriers.
        of_matrix: as in `RingBuffer`.
    """

    access: Access
    shape: tuple[int, ...]
    dtype: str
    buffer: str
    ready: str
    spent: str
    of_matrix: bool

    def tile(self, slot: str) -> str:
        """What is in a slot."""
        return _slot(self.buffer, slot, self.shape, self.of_matrix)


def _slot(buffer: str, slot: str, shape: tuple[int, ...], reshaped: bool) -> str:
    """A slot as a tile: the copy engine fills it with more dimensions if it is of one of several matrices, or in
    halves."""
    return f"{buffer}.index({slot})" + (f".reshape({[*shape]})" if reshaped else "")


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The shared memory of a kernel.

    Args:
        leading, trailing: the ring of each leading and each trailing product of a part.  Products of the same tiles
            share one.
        depth: for how many consecutive tiles of a persistent program there are resident tiles.
    """

    resident: tuple[ResidentTile, ...]
    leading: tuple[RingBuffer, ...]
    trailing: tuple[RingBuffer, ...]
    consumers: int
    stages: int
    persistent: bool
    depth: int

    @property
    def rings(self) -> tuple[RingBuffer, ...]:
        """All rings, each once."""
        return tuple(dict.fromkeys(self.leading + self.trailing))

    @property
    def parameters(self) -> list[str]:
        """The parameters of producer and consumers for it, in order."""
        out: list[str] = []
        for resident in self.resident:
            out += [resident.buffer, resident.ready, *([resident.spent] if self.persistent else [])]
        for ring in self.rings:
            out += [ring.slots, *([] if ring.halves is None else [ring.halves.slots]), ring.full, ring.empty]
        return out

    @property
    def names(self) -> set[str]:
        """Every name that a function uses for it."""
        return {*self.parameters, *(name for ring in self.rings for name in (ring.slot, ring.phase))}

    @property
    def resident_slots(self) -> int:
        """Slots of a resident tile."""
        return self.consumers * self.depth

    @property
    def size(self) -> int:
        """Bytes, without barriers."""
        resident = self.resident_slots * sum(tile_bytes(h.shape, h.dtype) for h in self.resident)
        tiles = [one for ring in self.rings for one in (ring, ring.halves) if one is not None]
        return resident + self.stages * sum(tile_bytes(one.shape, one.dtype) for one in tiles)

    def resident_slot(self, consumer: str) -> str:
        """The slot of a consumer's resident tiles; `done` counts a program's tiles."""
        return consumer if self.depth == 1 else f"done % {self.depth} * {self.consumers} + {consumer}"

    @property
    def resident_parity(self) -> str:
        """The parity of the barriers of a consumer's resident tiles."""
        return "0" if not self.persistent else "done & 1" if self.depth == 1 else f"done // {self.depth} & 1"

    def resident_tile(self, access: Access) -> ResidentTile:
        """The resident tile that `access` selects."""
        return next(resident for resident in self.resident if resident.access == access)


def left_access(structure: Structure, product: Product) -> Access:
    """The global tile that is the left operand of a leading product."""
    assert isinstance(product.a, Access)
    return structure.resident.get(product.a.tensor, product.a)


def tile_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a tile."""
    return math.prod(shape) * BYTES[dtype]


def by_ring(rings: tuple[RingBuffer, ...], products: tuple[Product, ...]) -> dict[RingBuffer, Product]:
    """The first product that reads each ring, in the order of the products."""
    first: dict[RingBuffer, Product] = {}
    for ring, product in zip(rings, products, strict=True):
        first.setdefault(ring, product)
    return first


def plan_shared_memory(
    program: Program, structure: Structure, names: UniqueNames, options: GluonOptions, depth: int
) -> SharedMemory:
    """The shared memory of a kernel with that structure; `depth` as in `SharedMemory`."""
    resident = _resident_tiles(program, structure, names)
    leading, trailing = (
        list(zip(*parts, strict=True))
        for parts in ((part.leading for part in structure.parts), (part.trailing for part in structure.parts))
    )
    return SharedMemory(
        resident,
        _rings(program, leading, names, in_halves=structure.in_halves is not None),
        _rings(program, trailing, names),
        structure.consumers,
        options.ring_stages,
        options.persistent,
        depth,
    )


def _resident_tiles(program: Program, structure: Structure, names: UniqueNames) -> tuple[ResidentTile, ...]:
    """The left operands of the leading products, which stay while a program runs."""
    resident: dict[Access, ResidentTile] = {}
    for product in structure.parts[0].leading:
        access = left_access(structure, product)
        if access in resident:
            continue
        resident[access] = ResidentTile(
            access,
            (structure.each, shape_of(access, program)[1]),
            dtype_of(access, program),
            *(names.fresh(f"{access.tensor}_{what}") for what in ("tile", "ready", "spent")),
            of_matrix=leaves_matrix(program.tensor(access.tensor), (structure.rows, shape_of(access, program)[1])),
        )
    return tuple(resident.values())


def _rings(
    program: Program, products: Sequence[tuple[Product, ...]], names: UniqueNames, *, in_halves: bool = False
) -> tuple[RingBuffer, ...]:
    """A ring for each product, the same for products that load the same tiles.

    Args:
        products: for each product, what it is in each part of the loop.
        in_halves: whether a slot holds the halves of a tile apart.
    """
    made: dict[tuple[Access, ...], RingBuffer] = {}
    for of_parts in products:
        loaded = tuple(product.b for product in of_parts)
        if loaded not in made:
            b, beside, halves = loaded[0], of_parts[0].halves, None
            shape = shape_of(b, program)
            of_matrix = leaves_matrix(program.tensor(b.tensor), shape)
            if beside is not None:
                slots = names.fresh(f"{beside.tensor}_ring")
                halves = Halves(beside, shape_of(beside, program), dtype_of(beside, program), slots)
            made[loaded] = RingBuffer(
                b.tensor,
                shape,
                dtype_of(b, program),
                *ring_names(b.tensor, names),
                of_matrix=of_matrix,
                in_halves=in_halves,
                halves=halves,
            )
    return tuple(made[tuple(product.b for product in of_parts)] for of_parts in products)
