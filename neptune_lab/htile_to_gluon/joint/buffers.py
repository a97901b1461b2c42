"""Buffers in shared memory of the kernel of two nests, and the descriptors through which it stores."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.sizes import product_of
from neptune_lab.htile_to_gluon.shared_memory import RingBuffer, ring_names
from neptune_lab.htile_to_gluon.structure import Product
from neptune_lab.htile_to_triton.context import Extent, HostDescriptor, sizes_of
from neptune_lab.htile_to_triton.descriptors import leaves_matrix, leaves_rows
from neptune_lab.htile_to_triton.scope import UniqueNames


@dataclass(frozen=True, slots=True)
class Held:
    """A tile of all keys of a program, which stays in shared memory.

    Args:
        buffer, ready: names of the tile and of its barrier; `own`: of a consumer's rows of it.
        of_matrix: as in `RingBuffer`.
    """

    access: ir.Access
    shape: tuple[int, ...]
    dtype: str
    buffer: str
    ready: str
    own: str
    of_matrix: bool

    @property
    def tile(self) -> str:
        """The whole tile."""
        return self.buffer + (f".reshape({[*self.shape]})" if self.of_matrix else "")


def held_tile(program: ir.Program, access: ir.Access, names: UniqueNames) -> Held:
    """Shared memory for a tile that a program keeps, with new names for the buffer and its barrier."""
    made = (names.fresh(f"{access.tensor}_{what}") for what in ("held", "ready", "own"))
    shape = shape_of(access, program)
    apart = leaves_rows(program.tensor(access.tensor), shape[0])
    return Held(access, shape, dtype_of(access, program), *made, of_matrix=apart)


def ring_of(program: ir.Program, product: Product, names: UniqueNames) -> RingBuffer:
    """The ring buffer of the right operand of a product, with new names."""
    shape, dtype = shape_of(product.b, program), dtype_of(product.b, program)
    apart = leaves_rows(program.tensor(product.b.tensor), shape[0])
    return RingBuffer(
        product.b.tensor, shape, dtype, *ring_names(product.b.tensor, names), of_matrix=apart, in_halves=False
    )


def through(tensor: ir.Tensor, block: tuple[int, int], tile: tuple[int, int], names: UniqueNames) -> HostDescriptor:
    """The descriptor through which programs store blocks: of one matrix, or if a tile may leave it, of one per head.

    Args:
        tile: rows and columns of the tile of which a block is a part.
    """
    *outer, rows, _ = sizes_of(tensor)
    width = tensor.shape[-1]
    matrices: tuple[Extent, Extent] | None = None
    if leaves_matrix(tensor, tile):
        matrices = _number(product_of(outer)), _number(product_of([rows, ir.Int(width)]))
    else:
        rows = product_of([*outer, rows])
    name = names.fresh(f"{tensor.name}_rows")
    return HostDescriptor(name, tensor.name, (_number(rows), width), width, block, matrices)


def _number(expr: ir.IndexExpr) -> Extent:
    return expr.value if isinstance(expr, ir.Int) else expr


__all__ = ["Held", "held_tile", "ring_of", "through"]
