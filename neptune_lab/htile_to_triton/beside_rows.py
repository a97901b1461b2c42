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

from math import ceil, prod

from neptune_lab.htile.nodes import Access, Dot, Kernel, Program, Reduce, Slice, Store
from neptune_lab.htile.odd_rows import has_odd_rows, row_tiles
from neptune_lab.htile.walk import expressions, read_tensors

# The most programs that have pieces of vectors in the lanes that suit vectors: a layer_norm of 67 x 2065, in pieces of
# 512, takes 1.95 us so and 1.99 in the row's lanes, of 113 x 4527 2.40 and 2.60.
FEW_PROGRAMS = 512
# The most pieces of rows whose vectors are in the row's lanes: a layer_norm of 5000 x 2701, in six, takes 24.0 us so
# and 21.0 otherwise, of 800 x 3501, in seven, 6.0 and 5.7, of 1500 x 2305, in five, 6.2 and 6.4.
MOST_PIECES = 5
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
    pieces = max((_pieces(access, program) for access in tiles), default=1)
    few = prod(axis.extent for axis in kernel.grid) <= FEW_PROGRAMS
    if pieces > MOST_PIECES or (pieces > 1 and few):
        return frozenset()
    vectors = frozenset(access.tensor for access in tiles if len(program.tensor(access.tensor).shape) == 1)
    first = next((n for n, s in enumerate(own) if any(isinstance(e, Reduce) for e in expressions(s))), len(own))
    return frozenset() if any(read_tensors(store) & vectors for store in own[first + 1 :]) else vectors


def _pieces(access: Access, program: Program) -> int:
    """How many tiles like this one a row or vector has."""
    index = access.index[-1]
    return ceil(program.tensor(access.tensor).shape[-1] / index.extent) if isinstance(index, Slice) else 1


__all__ = ["FEW_PROGRAMS", "MOST_PIECES", "vectors_beside_rows"]
