"""Choices for kernels that nobody tuned: whether their tiles fit the registers (one that spills is slower than the same
loop in Triton), and whether their programs are persistent."""

from __future__ import annotations

from math import inf, prod

from neptune_lab.htile.bounds import grid_env
from neptune_lab.htile.loop_runs import bound_points
from neptune_lab.htile.nodes import Dot, Elementwise, For, Kernel, Program
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import evaluate, reads, stores, subexpressions
from neptune_lab.htile_to_gluon.key_order import keys_in_halves
from neptune_lab.htile_to_gluon.match import match_structure
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_gluon.registers import fits
from neptune_lab.htile_to_gluon.shared_memory import plan_shared_memory
from neptune_lab.htile_to_gluon.structure import Structure, UnsupportedKernel
from neptune_lab.htile_to_gluon.widths import enlarged
from neptune_lab.htile_to_triton.descriptors import BYTES, leaves_rows
from neptune_lab.htile_to_triton.module import rounds_to_eights
from neptune_lab.htile_to_triton.scope import UniqueNames
from neptune_lab.target import DEFAULT

# Programs of at most so many tiles are persistent: what a program does before and after its loop then overlaps.
SHORT_LOOP = 16


def fits_registers(program: Program) -> bool:
    """Whether no kernel of `program` that can be written in Gluon spills registers, by an estimate."""
    return all(_fits(program, kernel) for kernel in program.kernels)


def _matched(program: Program, kernel: Kernel) -> tuple[Program, Structure] | None:
    """The program with enlarged tiles, and the kernel's structure in it; None if it cannot be written in Gluon."""
    program, kernel = enlarged(program, kernel)
    try:
        return program, match_structure(program, kernel)
    except UnsupportedKernel:
        return None


def _fits(program: Program, kernel: Kernel) -> bool:
    matched = _matched(program, kernel)
    return matched is None or fits(*matched)


def suits_persistence(program: Program, short: int = SHORT_LOOP) -> bool:
    """Whether persistent programs are faster, as far as measured on an H200: up to 33% if programs have few tiles, 28%
    slower for 48 tiles, and 10% slower if the row work computes tanh.  Not measured for products of 8 bits.  Without
    room for an output tile beside those that are loaded ahead (heads of 256 columns), they take 12% to 37% longer.

    Args:
        short: programs of at most so many tiles are persistent.
    """
    return all(
        _is_short(kernel, short)
        and not _computes_tanh(kernel)
        and not rounds_to_eights(kernel)
        and _has_room_for_outputs(program, kernel)
        for kernel in program.kernels
    )


def _has_room_for_outputs(program: Program, kernel: Kernel) -> bool:
    """Whether shared memory holds what a persistent program loads ahead, and beside it the tiles that it stores."""
    matched = _matched(program, kernel)
    if matched is None:
        return True
    program, structure = matched
    shared = plan_shared_memory(program, structure, UniqueNames(()), GluonOptions(persistent=True), 1)
    stored = (s.target for s in structure.after if program.tensor(s.target.tensor).space != "chip")
    tiles = sum(prod(shape_of(a, program)) * BYTES.get(dtype_of(a, program), 0) for a in stored)
    return shared.size + tiles <= DEFAULT.shared_memory


def suits_wide_tiles(program: Program) -> bool:
    """Whether tiles of twice as many keys are faster if they fit: of products of 8 bits, where programs visit many.
    By 6% to 12% on an H100."""
    return all(rounds_to_eights(kernel) and not _is_short(kernel) for kernel in program.kernels)


def moves_no_weights(program: Program) -> bool:
    """Whether the weights of 8 bits of every kernel are in the threads that multiply them (key_order.py)."""
    return all(_has_keys_in_halves(program, kernel) for kernel in program.kernels if rounds_to_eights(kernel))


def _has_keys_in_halves(program: Program, kernel: Kernel) -> bool:
    matched = _matched(program, kernel)
    return matched is not None and keys_in_halves(*matched) is not None


def suits_tie(program: Program) -> bool:
    """Whether `tie` makes the loop faster: 1.3 to 1.6 times on an H200 if tiles do not divide the keys."""
    return any(_leaves_matrix(program, kernel) for kernel in program.kernels)


def _leaves_matrix(program: Program, kernel: Kernel) -> bool:
    matched = _matched(program, kernel)
    if matched is None:
        return False
    program, structure = matched
    loaded = (product.b for part in structure.parts for product in (*part.leading, *part.trailing))
    return any(leaves_rows(program.tensor(b.tensor), shape_of(b, program)[0]) for b in loaded)


def reads_pairs(program: Program) -> bool:
    """Whether row work in a loop reads an element of a tensor in global memory for each row and column of a tile."""
    loops = [stmt for kernel in program.kernels for stmt in kernel.body if isinstance(stmt, For)]
    row_work = [stmt for loop in loops for stmt in stores(loop.body) if not isinstance(stmt.value, Dot)]
    return any(
        program.tensor(access.tensor).space != "chip" and sum(extent > 1 for extent in shape_of(access, program)) == 2
        for stmt in row_work
        for access in reads(stmt)
    )


def _is_short(kernel: Kernel, short: int = SHORT_LOOP) -> bool:
    loops = tuple(stmt for stmt in kernel.body if isinstance(stmt, For))
    points = bound_points(loops, grid_env(kernel))
    return points is not None and all(_tiles(loops, at) <= short for at in points)


def visited_tiles(program: Program) -> float:
    """The tiles that the programs of the first kernel visit, on average; infinity if that is not known."""
    loops = tuple(stmt for stmt in program.kernels[0].body if isinstance(stmt, For))
    points = bound_points(loops, grid_env(program.kernels[0]))
    counts = [inf] if points is None else [_tiles(loops, at) for at in points]
    return sum(counts) / len(counts)


def _tiles(loops: tuple[For, ...], at: dict[str, int]) -> int:
    return sum(max(0, evaluate(loop.stop, at) - evaluate(loop.start, at)) for loop in loops)


def _computes_tanh(kernel: Kernel) -> bool:
    return any(
        isinstance(e, Elementwise) and e.op == "tanh" for s in stores(kernel.body) for e in subexpressions(s.value)
    )


__all__ = [
    "fits_registers",
    "moves_no_weights",
    "reads_pairs",
    "suits_persistence",
    "suits_tie",
    "suits_wide_tiles",
    "visited_tiles",
]
