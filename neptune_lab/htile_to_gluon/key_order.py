"""The order of the keys of a tile of 8 bits: the one in which no weight has to move between threads.

A product leaves each thread two adjacent columns of every eight; as the left operand of the next product, floats of 8
bits, it needs four adjacent ones.  The keys of a tile are summed over in the end, in any order.  So the copy engine
loads the tile in two halves, the keys 0 and 1 of every four, then the keys 2 and 3:

    column c of scores      0 1 2 3 4 5 6 7 | n/2 n/2+1 ...        n columns
    is of key               0 1 4 5 8 9 ...  |  2  3  6  7 ...

A thread with the columns 2t and 2t+1 of the first eight and of the middle eight then has the keys 4t to 4t+3.
"""

from __future__ import annotations

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile_to_gluon.more_digits import LEAST_KEYS
from neptune_lab.htile_to_gluon.structure import LoopPart, Structure
from neptune_lab.htile_to_triton.addresses import steps
from neptune_lab.htile_to_triton.descriptors import leaves_matrix

# Columns of 8 bits that the copy engine loads as one row of shared memory.
WIDTHS = (64, 128)


def keys_in_halves(program: ir.Program, structure: Structure) -> str | None:
    """The axis of the keys if a kernel can have them in that order, else None.

    Formal statement: for a permutation k of a tile's columns, sum(p[c] * v[c]) = sum(p[k(c)] * v[k(c)]), and maxima and
    sums of rows are those of any order of their columns, but for rounding; pointwise operations and reads commute with
    k if everything that varies along columns is permuted by k.  Columns of scores come from one product, whose right
    operand is loaded in the order of k, and from positions along the same axis (`memory.vector`).

    The tile is loaded by fours of rows, so it must start at a multiple of four of them.
    """
    if not structure.promoted or not structure.eights:
        return None
    axes = {_axis(program, part) for part in (structure.first, *structure.parts)}
    return axes.pop() if len(axes) == 1 else None


def _axis(program: ir.Program, part: LoopPart) -> str | None:
    if len(part.leading) != 1 or not part.leading[0].transposed:
        return None
    b = part.leading[0].b
    slices = [index for index in b.index if isinstance(index, ir.Slice)]
    keys, width = shape_of(b, program)
    tensor = program.tensor(b.tensor)
    if keys % LEAST_KEYS or width not in WIDTHS or leaves_matrix(tensor, (keys, width)) or len(slices) != 2:
        return None
    axis = slices[0].axis
    summed = {index.axis for p in part.trailing for index in p.b.index if isinstance(index, ir.Slice)}
    return axis if axis in summed and _starts_at_four(tensor, b) else None


def _starts_at_four(tensor: ir.Tensor, access: ir.Access) -> bool:
    """Whether the rows of a tile start at a multiple of four, as rows of the tensor seen as one matrix."""
    every = steps(tensor)
    stride = every[-2]
    for n, (index, step) in enumerate(zip(access.index, every, strict=True)):
        if n == len(every) - 1 or step % stride:
            continue  # columns
        start = index.start if isinstance(index, ir.Slice) else index
        if isinstance(start, ir.NewAxis):
            return False
        form, rows = affine(start), step // stride
        if any(number * rows % 4 for number in (form.constant, *(k for _, k in form.terms))):
            return False
    return True


__all__ = ["keys_in_halves"]
