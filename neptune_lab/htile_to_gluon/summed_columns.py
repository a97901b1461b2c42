"""Which columns the products of scores sum over: of a widened tile (widths.py), only those that are in its tensor.

A head width of 192 has tiles of 256 columns, of which a quarter is 0.  The matrix unit multiplies them at the same
rate as any others, so a product is made of several, over 128 and over 64 columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.htile.nodes import Access, Int, Program, Slice
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import region
from neptune_lab.htile_to_gluon.shared_memory import left_access
from neptune_lab.htile_to_gluon.structure import Product, Structure
from neptune_lab.htile_to_triton.context import sizes_of
from neptune_lab.htile_to_triton.descriptors import BYTES
from neptune_lab.power_of_two import power_of_two


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the columns that a product sums over: the first one and how many there are; None: all of them."""

    columns: tuple[int, int] | None = None

    def of(self, tile: str, dim: int) -> str:
        """That part of a tile in shared memory, along a dimension."""
        return tile if self.columns is None else f"{tile}.slice({self.columns[0]}, {self.columns[1]}, {dim})"


WHOLE = Part()
# Bytes of the rows of a block in shared memory, in which parts begin, and of the least columns of a product.
BLOCK, LEAST = 128, 32


def summed_parts(program: Program, structure: Structure, product: Product) -> tuple[Part, ...]:
    """The parts of the sum of a leading product.

    Formal statement: the parts contain every column that is in the tensor of a factor.  In the others both factors lie
    past the end of their tensors, so they are 0, and the sum is the same.
    """
    columns = shape_of(product.a, program)[-1]
    left = left_access(structure, product)
    inside = max(_inside(program, left, -1), _inside(program, product.b, -1 if product.transposed else -2))
    size = BYTES[dtype_of(product.b, program)]
    parts = parts_of(columns, inside, BLOCK // size, LEAST // size)
    return tuple(map(Part, parts)) if len(parts) > 1 else (WHOLE,)


def parts_of(columns: int, inside: int, block: int, least: int) -> tuple[tuple[int, int], ...]:
    """The first column and the number of columns of parts that cover the first `inside` of so many columns: powers of
    two, each from a whole block on.

    >>> parts_of(256, 192, 64, 16), parts_of(128, 80, 64, 16), parts_of(128, 112, 64, 16), parts_of(64, 40, 64, 16)
    (((0, 128), (128, 64)), ((0, 64), (64, 16)), ((0, 128),), ((0, 64),))
    """
    whole, rest = divmod(inside, block)
    ends = [whole * block]
    if rest:
        ends.append(ends[0] + min(block, max(least, power_of_two(rest))))
    if ends[-1] >= columns:
        return ((0, columns),)
    parts: list[tuple[int, int]] = []
    start = 0
    for end in ends:
        while start < end:
            parts.append((start, 1 << ((end - start).bit_length() - 1)))
            start += parts[-1][1]
    return tuple(parts)


def _inside(program: Program, access: Access, dim: int) -> int:
    """How many of a tile's rows or columns are in its tensor, at most."""
    tensor = program.tensor(access.tensor)
    n, index = [(n, index) for n, index in enumerate(region(access)) if isinstance(index, Slice)][dim]
    size = sizes_of(tensor)[n]
    if not isinstance(size, Int) or not isinstance(index.start, Int):
        return index.extent
    return min(index.extent, size.value - index.start.value)


__all__ = ["WHOLE", "Part", "parts_of", "summed_parts"]
