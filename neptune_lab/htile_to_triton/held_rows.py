"""Rows that a program holds in registers as they were loaded (`hold_rows_as_loaded`): how many registers a thread has,
so that a multiprocessor runs as many programs as have room, and which caches loads use.

The row passes the first-level cache, which keeps the vectors along rows: programs that run at the same time read them
too, at the same place if their rows begin alike in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from neptune_lab.htile.held_rows import LANES, held_row
from neptune_lab.htile.nodes import Kernel, Program, Store
from neptune_lab.htile.walk import reads, written_tensors
from neptune_lab.target import NVIDIA_REGISTERS, registers_of_thread

# Registers of a thread beside those that hold the row.
BESIDE = 32


def registers(warps: int, of_lane: int) -> int:
    """The registers of a thread of programs that hold so many elements for each lane.

    >>> registers(8, 56), registers(8, 96), registers(16, 64)
    (64, 80, 64)
    """
    programs = NVIDIA_REGISTERS // (LANES * warps * (of_lane // 2 + BESIDE))
    return registers_of_thread(warps, programs)


def caching(program: Program, kernel: Kernel) -> Mapping[str, str]:
    """The argument of loads, by tensor, of kernels that hold rows as they were loaded."""
    held = held_row(program, kernel)
    if held is None:
        return MappingProxyType({})
    others = {a.tensor for s in kernel.body if isinstance(s, Store) for a in reads(s)} - written_tensors(kernel)
    kept = {name: 'eviction_policy="evict_last"' for name in others if program.tensor(name).space != "chip"}
    return MappingProxyType({**kept, held[0]: 'cache_modifier=".cg"'})


__all__ = ["caching", "registers"]
