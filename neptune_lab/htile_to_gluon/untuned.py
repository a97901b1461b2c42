"""Choices for kernels that nobody tuned: whether their tiles fit the registers (one that spills is slower than the same
loop in Triton), and whether their programs are persistent."""

from __future__ import annotations

from math import prod

from neptune_lab.htile.bounds import grid_env
from neptune_lab.htile.nodes import Access, Elementwise, For, Kernel, Program
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import evaluate, reads, stores, subexpressions
from neptune_lab.htile_to_gluon.kernel import REGISTERS
from neptune_lab.htile_to_gluon.match import bound_points, match_structure
from neptune_lab.htile_to_gluon.rows import ROWS
from neptune_lab.htile_to_gluon.structure import LoopPart, Product, Structure, UnsupportedKernel
from neptune_lab.htile_to_gluon.widths import widened
from neptune_lab.htile_to_triton.descriptors import BYTES, leaves_rows
from neptune_lab.htile_to_triton.module import rounds_to_eights

THREADS = 128  # of a consumer
# A vector beside the columns of a product is held by every group of four threads.
VECTOR_THREADS = 4
REGISTER = 4  # bytes
# Registers of a thread that hold no tile: addresses, counters, and the state of its rows.
OTHERS = 49
# Of these, those that are needed while products run whose sums are promoted: no values of row work are live then.
OTHERS_OF_PRODUCTS = 24
# Programs of at most so many tiles are persistent: what a program does before and after its loop then overlaps.
SHORT_LOOP = 16


def fits_registers(program: Program) -> bool:
    """Whether no kernel of `program` that can be written in Gluon spills registers, by an estimate.

    Calibrated by ptxas 12.8 on 19 kernels of two consumers: of the 8 that fit, none spills; of the 11 others, 8 do, and
    one of the three that do not (attention with a pair bias at a head width of 64) was slower than Triton on an H200.
    """
    return all(_fits(program, kernel) for kernel in program.kernels)


def _fits(program: Program, kernel: Kernel) -> bool:
    program, kernel = widened(program, kernel)
    try:
        structure = match_structure(program, kernel)
    except UnsupportedKernel:
        return True
    return registers_of(program, structure) + OTHERS <= REGISTERS[structure.consumers][1]


def suits_persistence(program: Program) -> bool:
    """Whether persistent programs are faster, as far as measured on an H200: up to 33% if programs have few tiles, 28%
    slower for 48 tiles, and 10% slower if the row work computes tanh.  Not measured for products of 8 bits."""
    return all(
        _is_short(kernel) and not _computes_tanh(kernel) and not rounds_to_eights(kernel) for kernel in program.kernels
    )


def suits_tie(program: Program) -> bool:
    """Whether `tie` makes the loop faster: 1.3 to 1.6 times on an H200 if tiles do not divide the keys."""
    return any(_leaves_matrix(program, kernel) for kernel in program.kernels)


def _leaves_matrix(program: Program, kernel: Kernel) -> bool:
    program, kernel = widened(program, kernel)
    try:
        parts = match_structure(program, kernel).parts
    except UnsupportedKernel:
        return False
    loaded = (product.b for part in parts for product in (*part.leading, *part.trailing))
    return any(leaves_rows(program.tensor(b.tensor), shape_of(b, program)[0]) for b in loaded)


def _is_short(kernel: Kernel) -> bool:
    loops = tuple(stmt for stmt in kernel.body if isinstance(stmt, For))
    points = bound_points(loops, grid_env(kernel))
    return points is not None and all(_tiles(loops, at) <= SHORT_LOOP for at in points)


def _tiles(loops: tuple[For, ...], at: dict[str, int]) -> int:
    return sum(max(0, evaluate(loop.stop, at) - evaluate(loop.start, at)) for loop in loops)


def _computes_tanh(kernel: Kernel) -> bool:
    return any(
        isinstance(e, Elementwise) and e.op == "tanh" for s in stores(kernel.body) for e in subexpressions(s.value)
    )


def registers_of(program: Program, structure: Structure) -> int:
    """Registers per thread for the tiles that are live at once: accumulators, the products of scores, the left operands
    of the previous tile's products, and what the row work of a tile reads from global memory."""
    return max(_of_part(program, part) for part in structure.parts)


def _of_part(program: Program, part: LoopPart) -> int:
    leading = sum(_of_product(program, product) for product in part.leading)
    trailing = sum(_of_product(program, product) for product in part.trailing)
    operands = sum(_of_operand(program, product) for product in part.trailing)
    loaded = {access for stmt in (*part.middle, *part.after) for access in reads(stmt) if _is_global(program, access)}
    of_row_work = leading + trailing + operands + sum(_of_access(program, access) for access in loaded)
    if all(product.promotion is None for product in part.trailing):
        return of_row_work
    # (Trailing products and their accumulators have as many registers each.)
    return max(of_row_work, leading + 2 * trailing + operands - (OTHERS - OTHERS_OF_PRODUCTS))


def _of_product(program: Program, product: Product) -> int:
    return ROWS * shape_of(product.store.target, program)[1] // THREADS


def _of_operand(program: Program, product: Product) -> int:
    size = BYTES[dtype_of(product.b, program)]
    return ROWS * shape_of(product.a, program)[1] * size // (THREADS * REGISTER)


def _is_global(program: Program, access: Access) -> bool:
    return program.tensor(access.tensor).space != "chip"


def _of_access(program: Program, access: Access) -> int:
    shape = shape_of(access, program)
    if len(shape) == 2 and shape[0] > 1:
        # (An element of a dtype that the copy engine does not move, such as bool, has a register of its own.)
        return ROWS * shape[1] // THREADS * BYTES.get(dtype_of(access, program), REGISTER) // REGISTER
    # (A vector is converted to float32 as a whole, before it meets a tile.)
    return max(1, prod(shape) // VECTOR_THREADS)


__all__ = ["fits_registers", "registers_of", "suits_persistence", "suits_tie"]
