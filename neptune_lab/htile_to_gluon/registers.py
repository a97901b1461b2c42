"""Registers of the consumers: how many a thread has, and an estimate of how many it needs."""

from __future__ import annotations

from math import prod

from neptune_lab.htile.nodes import Access, Gather, Program
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import reads
from neptune_lab.htile_to_gluon.gather import diagonal_reads
from neptune_lab.htile_to_gluon.rows import ROWS
from neptune_lab.htile_to_gluon.structure import LoopPart, Product, Structure
from neptune_lab.htile_to_triton.descriptors import BYTES

# By number of groups of warps: registers per thread at the launch, and registers per thread of a consumer. With the
# producer's, they use all 65536 of a multiprocessor (half for one consumer, so that two programs share it).
REGISTERS = {1: (128, 232), 2: (168, 240), 3: (128, 160)}
THREADS = 128  # of a consumer
# A vector beside the columns of a product is held by every group of four threads.
VECTOR_THREADS = 4
REGISTER = 4  # bytes
# Registers of a thread that hold no tile: addresses, counters, and the state of its rows.
OTHERS = 49
# The same if all tiles are alike, so that no positions are compared, and what row work reads has 16 bits: by ptxas
# 12.8, attention of width 128 with such a bias per pair does not spill, and spills 8 bytes under a causal mask. On an
# H200, at 1 x 16 x 4096 x 128, it takes 323 us in Gluon, 344 us in Triton, and 420 us in Gluon with tiles of 64 keys.
OTHERS_OF_ALIKE_TILES = 48
# The same if no product runs during row work. (By ptxas 12.8, none of eight persistent kernels of 256 keys that fit
# spills.)
OTHERS_OF_ROW_WORK = 48
# Of these, those that are needed while products run whose sums are promoted: no values of row work are live then.
OTHERS_OF_PRODUCTS = 24


def fits(program: Program, structure: Structure) -> bool:
    """Whether a kernel does not spill registers, by an estimate.

    Calibrated by ptxas 12.8 on 34 kernels of two consumers: of the 12 that fit, none spills; of the 22 others, 17
    do, and one of the five that do not (attention with a pair bias at a head width of 64) was slower than Triton on an
    H200.
    """
    apart = structure.promoted and not products_fit_together(program, structure)
    alike = len(structure.parts) == 1 and _reads_halves(program, structure.first)
    others = OTHERS_OF_ALIKE_TILES if alike else OTHERS
    others = OTHERS_OF_ROW_WORK if apart else others
    return registers_of(program, structure) + others <= REGISTERS[structure.warp_groups][1]


def registers_of(program: Program, structure: Structure) -> int:
    """Registers per thread for the tiles that are live at once: accumulators, the products of scores, the left operands
    of the previous tile's products, and what the row work of a tile reads from global memory."""
    together = products_fit_together(program, structure)
    return max(_of_part(program, part, together) for part in structure.parts)


def products_fit_together(program: Program, structure: Structure) -> bool:
    """Whether products whose sums are promoted leave registers for the leading products of the next tile."""
    leading, trailing, operands = _of_products(program, structure.first)
    needed = leading + 2 * trailing + operands + OTHERS_OF_PRODUCTS
    return needed <= REGISTERS[structure.warp_groups][1]


def _of_part(program: Program, part: LoopPart, together: bool) -> int:
    leading, trailing, operands = _of_products(program, part)
    loaded = {access for stmt in (*part.middle, *part.after) for access in reads(stmt) if _is_global(program, access)}
    of_loads = sum(_of_access(program, access) for access in loaded)
    read = {read for stmt in (*part.middle, *part.after) for read in diagonal_reads(stmt)}
    of_loads += sum(_of_gather(program, one) for one in read)
    if all(product.promotion is None for product in part.trailing):
        return leading + trailing + operands + of_loads
    # (Trailing products and their accumulators have as many registers each. Operands take the place of scores.)
    of_products = 2 * trailing + operands + (leading if together else 0)
    of_row_work = leading + trailing + of_loads + (operands if together else 0)
    return max(of_row_work, of_products - (OTHERS - OTHERS_OF_PRODUCTS))


def _reads_halves(program: Program, part: LoopPart) -> bool:
    """Whether all that the row work of a tile reads from global memory has 16 bits."""
    loaded = [
        a for stmt in part.middle for a in reads(stmt) if _is_global(program, a) and len(shape_of(a, program)) == 2
    ]
    return all(BYTES.get(dtype_of(access, program)) == 2 for access in loaded)


def _of_products(program: Program, part: LoopPart) -> tuple[int, int, int]:
    """Registers for the leading products, the trailing ones, and the left operands of these."""
    return (
        sum(_of_product(program, product) for product in part.leading),
        sum(_of_product(program, product) for product in part.trailing),
        sum(_of_operand(program, product) for product in part.trailing),
    )


def _of_product(program: Program, product: Product) -> int:
    return ROWS * shape_of(product.store.target, program)[1] // THREADS


def _of_operand(program: Program, product: Product) -> int:
    size = BYTES[dtype_of(product.b, program)]
    elements = shape_of(product.a, program)[1] * size
    if product.halves is not None:
        elements += product.exact * (BYTES[dtype_of(product.halves, program)] - size)
    return ROWS * elements // (THREADS * REGISTER)


def _is_global(program: Program, access: Access) -> bool:
    return program.tensor(access.tensor).space != "chip"


def _of_gather(program: Program, read: Gather) -> int:
    """Of the elements that a thread reads along diagonals: a row's, and a pair of those of the row after the next
    seven."""
    columns = shape_of(read, program)[1]
    return (columns // VECTOR_THREADS + 2) * BYTES[dtype_of(read, program)] // REGISTER


def _of_access(program: Program, access: Access) -> int:
    shape = shape_of(access, program)
    if len(shape) == 2 and shape[0] > 1:
        # (An element of a dtype that the copy engine does not move, such as bool, has a register of its own.)
        return ROWS * shape[1] // THREADS * BYTES.get(dtype_of(access, program), REGISTER) // REGISTER
    # (A vector is converted to float32 as a whole, before it meets a tile.)
    return max(1, prod(shape) // VECTOR_THREADS)


__all__ = ["REGISTERS", "fits", "products_fit_together", "registers_of"]
