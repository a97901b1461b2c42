"""How many blocks of a kernel reside on one multiprocessor at once, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.machine_code.architectures import Architecture


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps that one multiprocessor holds.

    Args:
        blocks: at once; 0 if not even one fits.
        warps: of these blocks together.
        most_warps: that a multiprocessor holds of any kernel.
        limits: the most blocks that each resource admits, by resource.
    """

    blocks: int
    warps: int
    most_warps: int
    limits: tuple[tuple[str, int], ...]

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that admit no more blocks than there are."""
        return tuple(name for name, blocks in self.limits if blocks == self.blocks)

    @property
    def share(self) -> float:
        """Warps, as a share of the most."""
        return self.warps / self.most_warps


def occupancy(architecture: Architecture, registers: int, shared: int, warps: int) -> Occupancy:
    """The occupancy of a kernel.

    >>> from neptune_lab.machine_code.architectures import architecture_of
    >>> occupancy(architecture_of("sm_90"), registers=168, shared=100_000, warps=4).limits
    (('warps', 16), ('blocks', 32), ('registers', 3), ('shared memory', 2))

    Args:
        architecture: of the GPU.
        registers: 32-bit registers per thread (AMD: vector registers).
        shared: bytes of shared memory per block.
        warps: per block.
    """
    a = architecture
    allocated = _round_up(max(registers, 1), a.register_unit) * a.lanes
    by_registers = min(a.registers // allocated * a.partitions, a.warps) // warps
    taken = _round_up(shared + a.reserved, a.shared_unit)
    by_shared = a.blocks if not taken else 0 if shared > a.block_shared_memory else a.shared_memory // taken
    limits = (
        ("warps", a.warps // warps),
        ("blocks", a.blocks),
        ("registers", by_registers),
        ("shared memory", by_shared),
    )
    blocks = min(n for _, n in limits)
    return Occupancy(blocks, blocks * warps, a.warps, limits)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
