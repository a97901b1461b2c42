"""Rows that lanes reduce, and that are read again to be written (`htile_passes.reduce_in_lanes`): the registers of a
thread, and what the caches keep.

Results are stored with `.cs`, so that the caches keep the rows of the programs that run.  A multiprocessor runs one
program of 32 warps, whose row the first-level cache holds, or two of 8.
"""

from __future__ import annotations

from neptune_lab.htile.nodes import Grouped, Kernel, Program
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import expressions, stores
from neptune_lab.target import registers_of_thread

# The programs of a multiprocessor, by their warps.
PROGRAMS = {8: 2, 32: 1}


def writes_rows_in_lanes(program: Program, kernel: Kernel) -> bool:
    """Whether a kernel reduces rows lane by lane, and stores rows."""
    own = [*stores(kernel.body)]
    rows = any(program.tensor(s.target.tensor).space != "chip" and shape_of_access(s.target) for s in own)
    return rows and any(isinstance(e, Grouped) for s in own for e in expressions(s))


def registers_in_lanes(warps: int) -> int | None:
    """The most registers of a thread, so that a multiprocessor has room for its programs.

    >>> registers_in_lanes(8), registers_in_lanes(32), registers_in_lanes(4)
    (128, 64, None)
    """
    programs = PROGRAMS.get(warps)
    return None if programs is None else registers_of_thread(warps, programs)


__all__ = ["registers_in_lanes", "writes_rows_in_lanes"]
