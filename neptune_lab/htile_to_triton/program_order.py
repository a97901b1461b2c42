"""Which program instance computes which tile: several heads side by side where tiles have different amounts of work.

A GPU starts program instances in the order of their numbers, the first grid axis fastest: all row blocks of a head,
then those of the next.  If the blocks of a head have different numbers of tiles, the last head starts its longest
program when the others are nearly done, and most multiprocessors then wait for it.  So several heads go together: the
longest programs of all of them first.  As few as their tensors fit the L2 cache, since programs of one head read the
same tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from neptune_lab.htile.affine import affine
from neptune_lab.htile.nodes import Access, Arith, For, Kernel, Program, Slice, Stmt
from neptune_lab.htile.walk import names_of_index, reads, stores
from neptune_lab.strict.dtypes import itemsize

# Bytes of the L2 cache for what the loops of heads that go together read.
CACHE = 32 * 2**20
# Program instances that go together: about two per multiprocessor.
ENOUGH = 256


def heads_together(program: Program, kernel: Kernel) -> int:
    """How many indices of the second grid axis (heads) have their programs started together.

    Args:
        program: the kernel's.
        kernel: its grid's first axis numbers tiles of rows.

    Returns:
        A divisor of the second axis' extent; 1: the order of the grid, as of grids that run all at once.
    """
    sizes = [axis.extent for axis in kernel.grid]
    if len(sizes) < 2 or any(axis.size is not None for axis in kernel.grid) or math.prod(sizes) <= ENOUGH:
        return 1
    rows, heads = kernel.grid[:2]
    loops = dict(_loops(kernel.body))
    if rows.extent == 1 or not any(
        rows.var in names_of_index(loop.start) | names_of_index(loop.stop) for loop in loops
    ):
        return 1
    size = 0  # bytes that an innermost loop of one head reads while those around it are in one iteration
    for loop, times in loops.items():
        if any(isinstance(stmt, For) for stmt in loop.body):
            continue
        read = {a.tensor for s in stores(loop.body) for a in reads(s) if _moves(a, loop)}
        tensors = [t for t in program.tensors if t.name in read and t.space != "chip"]
        whole = sum(math.prod(t.shape) * itemsize(t.dtype) for t in tensors)
        size = max(size, whole // (math.prod(sizes[1:]) * times))
    enough = -(-ENOUGH // rows.extent)
    most = max(1, min(enough, CACHE // max(1, size)))
    return max(n for n in range(1, heads.extent + 1) if heads.extent % n == 0 and n <= most)


def _loops(body: Iterable[Stmt], times: int = 1) -> Iterator[tuple[For, int]]:
    """Each loop, and how often it runs in the loops around it, as far as their length is constant."""
    for stmt in body:
        if isinstance(stmt, For):
            yield stmt, times
            length = affine(Arith("-", stmt.stop, stmt.start))
            yield from _loops(stmt.body, times if length.terms else times * max(1, length.constant))


def _moves(access: Access, loop: For) -> bool:
    """Whether a loop reads another part of the tensor in each iteration."""
    return any(loop.var in names_of_index(i.start if isinstance(i, Slice) else i) for i in access.index)


def place_of(kernel: Kernel, together: int) -> str:
    """The number of a program instance among those of `together` heads, in Triton."""
    return f"tl.program_id(1) % {together} * {kernel.grid[0].extent} + tl.program_id(0)"


def at_place(place: str, together: int) -> list[str]:
    """The values of the first two grid variables, for the order of `heads_together`, in Triton.

    Formal statement: (program_id(0), program_id(1)) to these values is one to one.  `place_of` numbers the programs of
    `together` heads from 0 to blocks * together - 1, and each number is one row block of one head.

    >>> at_place("place", 4)
    ['place // 4', 'tl.program_id(1) // 4 * 4 + place % 4']
    """
    return [f"{place} // {together}", f"tl.program_id(1) // {together} * {together} + {place} % {together}"]


__all__ = ["at_place", "heads_together", "place_of"]
