"""Rows that lanes reduce, and that are read again to be written (`htile_passes.reduce_in_lanes`): the registers of a
thread, and what the caches keep.

Results are stored with `.cs`, so that the caches keep the rows of the programs that run.  A multiprocessor runs one
program of 32 warps, whose row the first-level cache holds, or two of 8.

Of programs of 16 warps that only read rows, it runs two.  Without a limit, ptxas takes 54 to 72 registers, by where
rows begin and how many elements are behind the loop, and more than 64 leave room for one: on an H200, log-sum-exp of
2178 x 80001 in 16 warps takes 115.1 us so, and 90.0 with the limit.
"""

from __future__ import annotations

from neptune_lab.htile.nodes import For, Grouped, Kernel, Program
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import expressions, stores
from neptune_lab.target import registers_of_thread

# The programs of a multiprocessor, by their warps: of rows that are written, and of rows that are only read, in a loop.
PROGRAMS = {8: 2, 32: 1}
PROGRAMS_THAT_READ = {16: 2}


def writes_rows_in_lanes(program: Program, kernel: Kernel) -> bool:
    """Whether a kernel reduces rows lane by lane, and stores rows."""
    own = [*stores(kernel.body)]
    rows = any(program.tensor(s.target.tensor).space != "chip" and shape_of_access(s.target) for s in own)
    return rows and any(isinstance(e, Grouped) for s in own for e in expressions(s))


def registers_in_lanes(kernel: Kernel, warps: int, *, writes_rows: bool) -> int | None:
    """The most registers of a thread of a kernel that reduces rows lane by lane in a loop, so that a multiprocessor has
    room for its programs; None of others.

    Args:
        writes_rows: as `writes_rows_in_lanes` has it.
    """
    loops = [stmt for stmt in kernel.body if isinstance(stmt, For)]
    if not any(isinstance(e, Grouped) for loop in loops for s in stores(loop.body) for e in expressions(s)):
        return None
    programs = (PROGRAMS if writes_rows else PROGRAMS_THAT_READ).get(warps)
    return None if programs is None else registers_of_thread(warps, programs)


__all__ = ["registers_in_lanes", "writes_rows_in_lanes"]
