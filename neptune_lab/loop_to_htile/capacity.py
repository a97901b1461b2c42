"""Tiles that surely cannot fit on a GPU, refused before anything is emitted.

A product multiplies tiles that are whole in shared memory: seen on an H200, a product of two loaded tiles takes the
bytes of both, in float16 and in float32, and more where loads run ahead.  An operand that is computed may stay in
registers, so it is not counted, and neither are other values that are live at the same time.  So what is refused here
does not fit on the GPU with the most shared memory; an accepted kernel may still be too large for the local GPU, which
the launch reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from neptune_lab.errors import TileError
from neptune_lab.htile.nodes import Access, Dot, Permute, Slice, TileExpr
from neptune_lab.htile.walk import subexpressions
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.target import MOST_SHARED_MEMORY

# What the emitter pads a product's tiles to at least; a smaller tile would gain nothing.
SMALLEST = 16


def check_fits(
    program: Program, block: str, value: TileExpr, sizes: Mapping[str, int], limit: int = MOST_SHARED_MEMORY
) -> None:
    """Raise TileError where the loaded operands of one product in `value` are larger than shared memory.

    Args:
        value: what `block` stores.
        sizes: extents of the block's inner loops, by name.
        limit: bytes of shared memory that a block can have; default: the most of any known GPU.
    """
    for dot in subexpressions(value):
        if not isinstance(dot, Dot):
            continue
        operands = [found for arg in (dot.a, dot.b) if (found := _loaded(program, arg)) is not None]
        inner = {s.axis: sizes[s.axis] for access in operands for s in _slices(access)}
        if not operands or 1 in inner.values():
            continue  # a product of a row or a column is no matrix product in Triton
        taken = _bytes(program, operands, inner)
        if taken <= limit:
            continue
        tensors = " and ".join(f"{a.tensor} ({_bytes(program, [a], inner)} bytes)" for a in operands)
        raise TileError(
            f"block {block!r} multiplies tiles of {tensors}, {taken} bytes in all ({_shown(inner)}); at most {limit} "
            "bytes of shared memory are there",
            node=block,
            help=f"choose smaller tiles, for example {_shown(_smaller(program, operands, inner, limit))}, which take "
            f"{_bytes(program, operands, _smaller(program, operands, inner, limit))} bytes",
        )


def _loaded(program: Program, operand: TileExpr) -> Access | None:
    """The read of global memory that an operand is; None where it is computed."""
    while isinstance(operand, Permute):
        operand = operand.arg
    if isinstance(operand, Access) and program.buffer(operand.tensor).scope == "global":
        return operand
    return None


def _slices(access: Access) -> list[Slice]:
    return [part for part in access.index if isinstance(part, Slice)]


def _bytes(program: Program, operands: list[Access], sizes: Mapping[str, int]) -> int:
    return sum(prod(sizes[s.axis] for s in _slices(a)) * _width(program.buffer(a.tensor).dtype) for a in operands)


def _width(dtype: str) -> int:
    return max(1, int("".join(c for c in dtype if c.isdigit()) or "8") // 8)


def _smaller(program: Program, operands: list[Access], sizes: Mapping[str, int], limit: int) -> dict[str, int]:
    """Sizes that fit: the largest one halved until the operands do."""
    fitting = dict(sizes)
    while _bytes(program, operands, fitting) > limit and (axis := max(fitting, key=lambda v: fitting[v])):
        if fitting[axis] <= SMALLEST:
            break
        fitting[axis] = -(-fitting[axis] // 2)
    return fitting


def _shown(sizes: Mapping[str, int]) -> str:
    return " × ".join(f"{var} {size}" for var, size in sizes.items())
