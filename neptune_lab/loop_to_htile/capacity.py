"""Refuses tiles that cannot fit on any known GPU, before a kernel is emitted.

The operands of a product are in shared memory as a whole: measured on an H200, a product of two loaded tiles takes the
bytes of both, in float16 and in float32, and more if loads are prefetched.  A computed operand may stay in registers,
so it is not counted; nor are other values that are live at the same time.  So a refused kernel does not fit on the GPU
with the most shared memory; an accepted kernel may still be too large for the local GPU, which the launch reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from neptune_lab.errors import TileError
from neptune_lab.htile.nodes import Access, Dot, Permute, Slice, TileExpr
from neptune_lab.htile.walk import subexpressions
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import MOST_SHARED_MEMORY

# The emitter pads the tiles of a product to at least this extent, so a smaller tile saves no memory.
SMALLEST = 16


def check_fits(
    program: Program, block: str, value: TileExpr, sizes: Mapping[str, int], limit: int = MOST_SHARED_MEMORY
) -> None:
    """Checks that the loaded operands of each product in `value` fit in shared memory together.

    Args:
        program: with the dtypes of the tensors.
        block: name of the block, for errors.
        value: the value that the block stores.
        sizes: extents of the block's inner loops, by name.
        limit: bytes of shared memory per thread block; default: the most of any known GPU.

    Raises:
        TileError: they do not fit; `help` has smaller sizes.
    """
    for dot in subexpressions(value):
        if not isinstance(dot, Dot):
            continue
        operands = [read for arg in (dot.a, dot.b) if (read := _loaded(program, arg)) is not None]
        inner = {s.axis: sizes[s.axis] for access in operands for s in _slices(access)}
        if not operands or 1 in inner.values():
            continue  # a product of a row or a column is no matrix product in Triton
        total = _bytes(program, operands, inner)
        if total <= limit:
            continue
        tensors = " and ".join(f"{a.tensor} ({_bytes(program, [a], inner)} bytes)" for a in operands)
        raise TileError(
            f"block {block!r} multiplies tiles of {tensors}, {total} bytes in all ({_shown(inner)}); at most {limit} "
            "bytes of shared memory are there",
            node=block,
            help=f"choose smaller tiles, for example {_shown(_smaller(program, operands, inner, limit))}, which take "
            f"{_bytes(program, operands, _smaller(program, operands, inner, limit))} bytes",
        )


def _loaded(program: Program, operand: TileExpr) -> Access | None:
    """The operand as a read of global memory; None if it is computed."""
    while isinstance(operand, Permute):
        operand = operand.arg
    if isinstance(operand, Access) and program.buffer(operand.tensor).scope == "global":
        return operand
    return None


def _slices(access: Access) -> list[Slice]:
    return [part for part in access.index if isinstance(part, Slice)]


def _bytes(program: Program, operands: list[Access], sizes: Mapping[str, int]) -> int:
    return sum(prod(sizes[s.axis] for s in _slices(a)) * itemsize(program.buffer(a.tensor).dtype) for a in operands)


def _smaller(program: Program, operands: list[Access], sizes: Mapping[str, int], limit: int) -> dict[str, int]:
    """Sizes that fit: the largest one is halved until the operands fit."""
    fitting = dict(sizes)
    while _bytes(program, operands, fitting) > limit and (axis := max(fitting, key=lambda v: fitting[v])):
        if fitting[axis] <= SMALLEST:
            break
        fitting[axis] = -(-fitting[axis] // 2)
    return fitting


def _shown(sizes: Mapping[str, int]) -> str:
    return " × ".join(f"{var} {size}" for var, size in sizes.items())
