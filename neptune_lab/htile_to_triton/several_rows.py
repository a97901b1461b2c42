"""The registers of a thread of programs that hold a row of each of two tensors during one reduction, such as those of a
softmax's gradient, which hold the weights and the cotangent.

Triton's compiler takes about 30 registers beside both rows, and can do with `BESIDE_TWO_ROWS`.  Of large programs, a
multiprocessor then often runs one more: on an H200 the gradient of a softmax of 8008 x 6962 takes 78.2 us so and 86.1
without, with three programs of 8 warps and with two; of 2807 x 13330 54.2 and 81.9, with two and with one.
"""

from __future__ import annotations

from math import prod

from neptune_lab.htile.held_rows import LANES
from neptune_lab.htile.nodes import Dot, Elementwise, Gather, Kernel, Permute, Program, Reduce, Store, TileExpr
from neptune_lab.htile.shapes import shape_of, shape_of_access
from neptune_lab.htile.walk import expressions, reads, tile_read, written_tensors
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import BESIDE_TWO_ROWS, NVIDIA_REGISTERS, registers_of_thread

# Rows that are held, and bytes of their elements, each of which takes a register of a lane, since it is converted.
ROWS, BYTES = 2, 2
# The most programs of a multiprocessor for which one more is a gain, and the registers that no thread has.
MOST, MOST_OF_THREAD = 4, 256


def registers_of_two_rows(program: Program, kernel: Kernel) -> int | None:
    """The registers of a thread of such a kernel; None of others, and if a multiprocessor runs one program or many.

    Formal statement: the kernel is a sequence of statements, of which one reduces.  What later statements read of rows
    that it or statements before it have read or made, is as much as two rows; and no expression of a row is in
    statements on both sides, which would be held too.
    """
    body = [stmt for stmt in kernel.body if isinstance(stmt, Store)]
    reducing = [n for n, s in enumerate(body) if any(isinstance(e, Reduce) for e in expressions(s))]
    if program.sizes or len(body) < len(kernel.body) or len(reducing) != 1 or kernel.num_warps is None:
        return None
    every = [e for s in body for e in expressions(s)]
    if any(isinstance(e, Dot | Gather | Permute) or (isinstance(e, Elementwise) and e.op == "again") for e in every):
        return None
    at, lanes = reducing[0] + 1, LANES * kernel.num_warps
    rows = [a for s in body for a in reads(s) if prod(shape_of_access(a)) >= lanes]
    stored = written_tensors(kernel)
    inputs = {a.tensor for a in rows if a.tensor not in stored}
    tensors = [program.tensor(name) for name in inputs]
    if len(tensors) != ROWS or any(len(t.shape) < 2 or itemsize(t.dtype) != BYTES for t in tensors):
        return None
    first = {tile_read(a): a for s in body[:at] for a in (s.target, *reads(s))}
    later = {tile_read(a) for s in body[at:] for a in reads(s)}
    held = sum(prod(shape_of_access(first[tile])) // lanes for tile in first.keys() & later)
    loaded = {tile_read(a): a for a in rows if a.tensor in inputs}
    whole = sum(prod(shape_of_access(a)) // lanes for a in loaded.values())
    computed = [[e for s in half for e in expressions(s) if _computes(e)] for half in (body[:at], body[at:])]
    shared = {e for e in computed[0] if e in {*computed[1]}}
    if held != whole or any(prod(shape_of(e, program)) >= lanes for e in shared):
        return None
    programs = NVIDIA_REGISTERS // (lanes * (held + BESIDE_TWO_ROWS))
    if not 1 < programs <= MOST:
        return None
    limit = registers_of_thread(kernel.num_warps, programs)
    return limit if limit < MOST_OF_THREAD else None


def _computes(expr: TileExpr) -> bool:
    """Whether an expression computes numbers, which a program would hold, and not where elements are."""
    return isinstance(expr, Elementwise) and expr.dtype != "bool"


__all__ = ["registers_of_two_rows"]
