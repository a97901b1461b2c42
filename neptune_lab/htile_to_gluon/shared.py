"""What lives in shared memory: tiles that stay, rings of tiles that the loop brings, and their barriers."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.htile.nodes import Access, Program
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile_to_gluon.rows import ROWS
from neptune_lab.htile_to_gluon.structure import Product, Structure
from neptune_lab.htile_to_triton.scope import Names


@dataclass(frozen=True, slots=True)
class Ring:
    """Slots that the producer fills and every consumer reads: names of the buffer and its barriers."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    slots: str
    full: str
    empty: str
    slot: str
    phase: str


@dataclass(frozen=True, slots=True)
class Held:
    """A tile that stays for the whole loop, one part for each consumer."""

    access: Access
    shape: tuple[int, ...]
    dtype: str
    buffer: str
    ready: str
    spent: str


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared memory of a kernel; rings stand in the order of the products of a part."""

    held: tuple[Held, ...]
    leading: tuple[Ring, ...]
    trailing: tuple[Ring, ...]
    persistent: bool

    @property
    def rings(self) -> tuple[Ring, ...]:
        """All rings."""
        return self.leading + self.trailing

    @property
    def parameters(self) -> list[str]:
        """What both kinds of warps get of it, in order."""
        out: list[str] = []
        for held in self.held:
            out += [held.buffer, held.ready, *([held.spent] if self.persistent else [])]
        for ring in self.rings:
            out += [ring.slots, ring.full, ring.empty]
        return out

    def holding(self, access: Access) -> Held:
        """The tile that stays and that `access` selects."""
        return next(held for held in self.held if held.access == access)


def left_access(structure: Structure, product: Product) -> Access:
    """The global tile that is the left operand of a leading product."""
    assert isinstance(product.a, Access)
    return structure.held.get(product.a.tensor, product.a)


def shared_memory(program: Program, structure: Structure, names: Names, *, persistent: bool) -> Shared:
    """The shared memory that a kernel of that structure needs."""
    held: dict[Access, Held] = {}
    first = structure.parts[0]
    for product in first.leading:
        access = left_access(structure, product)
        if access in held:
            continue
        held[access] = Held(
            access,
            (ROWS, shape_of(access, program)[1]),
            dtype_of(access, program),
            *(names.fresh(f"{access.tensor}_{what}") for what in ("tile", "ready", "spent")),
        )

    def ring(product: Product) -> Ring:
        b = product.b
        made = (names.fresh(f"{b.tensor}_{what}") for what in ("ring", "full", "empty", "slot", "phase"))
        return Ring(b.tensor, shape_of(b, program), dtype_of(b, program), *made)

    return Shared(
        tuple(held.values()),
        tuple(ring(product) for product in first.leading),
        tuple(ring(product) for product in first.trailing),
        persistent,
    )
