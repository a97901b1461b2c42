"""Vectors beside rows of an odd number of elements: they are loaded as the rows are.

    x_base = x_ptr + i * 4001                             x_base = x_ptr + i * 4001
    x = tl.load(x_base + j)                        ⇒      zero = tl.program_id(1)
    gamma = tl.load(gamma_ptr + j)                        x = tl.load(x_base + j)
                                                          gamma = tl.load(gamma_ptr + j + zero)

Triton gives each load the lanes that suit its own addresses: neighbouring elements to a lane for a vector, which begins
at a multiple of 16 bytes, and every 32nd element for such a row.  So it moves the vector to the row's lanes through
shared memory, with two barriers.  The grid has no second axis, so `zero` is 0, but Triton does not know.  On an H200 a
layer_norm of 3000 x 2001 takes 8.5 us so and 14.7 without, of 55 x 4001 2.40 and 2.53.
"""

from __future__ import annotations

from math import prod

from neptune_lab.htile.nodes import Dot, Kernel, Program, Reduce, Slice, Store
from neptune_lab.htile.odd_rows import has_odd_rows, row_tiles
from neptune_lab.htile.walk import expressions, read_tensors

# The most programs that have pieces of vectors in the lanes that suit vectors: a layer_norm of 67 x 2065, in pieces of
# 512, takes 1.95 us so and 1.99 in the row's lanes, of 113 x 4527 2.40 and 2.60.
FEW_PROGRAMS = 512
# The longest rows in pieces whose vectors are in the row's lanes: an RMSNorm of 1900 x 2065, in five pieces, takes
# 5.8 us so and 6.1 otherwise; of 1200 x 3001, in six, 5.8 and 5.4, a layer_norm of 800 x 3501 6.1 and 5.7.
LONGEST_IN_PIECES = 2304
# The most axes of a grid.
_MOST_AXES = 3


def vectors_beside_rows(program: Program, kernel: Kernel) -> frozenset[str]:
    """The vectors that a straight kernel reads beside such rows, if it waits for both together (`read_vectors_first`):
    behind a barrier, many loads of one element take longer than two barriers more."""
    own = [stmt for stmt in kernel.body if isinstance(stmt, Store)]
    dots = any(isinstance(expr, Dot) for store in own for expr in expressions(store))
    if len(own) < len(kernel.body) or dots or program.sizes or len(kernel.grid) == _MOST_AXES:
        return frozenset()
    if not has_odd_rows(program, kernel):
        return frozenset()
    tiles = [*row_tiles(program, kernel)]
    whole = all(isinstance(i := a.index[-1], Slice) and i.extent == program.tensor(a.tensor).shape[-1] for a in tiles)
    longest = max((program.tensor(access.tensor).shape[-1] for access in tiles), default=0)
    if not whole and (prod(axis.extent for axis in kernel.grid) <= FEW_PROGRAMS or longest > LONGEST_IN_PIECES):
        return frozenset()
    vectors = frozenset(access.tensor for access in tiles if len(program.tensor(access.tensor).shape) == 1)
    first = next((n for n, s in enumerate(own) if any(isinstance(e, Reduce) for e in expressions(s))), len(own))
    return frozenset() if any(read_tensors(store) & vectors for store in own[first + 1 :]) else vectors


__all__ = ["FEW_PROGRAMS", "vectors_beside_rows"]
