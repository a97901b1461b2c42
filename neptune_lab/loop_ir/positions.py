"""Which integers of an input are positions: those below the size of what they index."""

from __future__ import annotations

from neptune_lab.loop_ir.nodes import Cast, Expr, Load, Op, Program, Var, loads, walk
from neptune_lab.loop_ir.tree import blocks


def positions_below(program: Program, name: str, most: int) -> int:
    """One more than the largest integer that an input may hold if its elements are positions.

    Args:
        program: a definition.
        name: the input, of integers.
        most: the result if nothing bounds them.

    Returns:
        The smallest of `most`, the size of each axis that the elements index, and the extent of each loop whose
        variable is compared with them for equality (as in a one-hot vector, or the logit of a label).
    """
    sizes = [most]
    for block in blocks(program):
        extents = {it.name: it.extent for it in block.iters}
        for read in loads(block.body.value):
            for index, size in zip(read.indices, program.buffer(read.buffer).shape, strict=True):
                if any(inner.buffer == name for inner in loads(index)):
                    sizes.append(size)
        for part in walk(block.body.value):
            match part:
                case Op("eq" | "ne", (a, b)):
                    match _unconverted(a), _unconverted(b):
                        case (Var(it), Load(buffer)) | (Load(buffer), Var(it)) if buffer == name and it in extents:
                            sizes.append(extents[it])
    return min(sizes)


def _unconverted(expr: Expr) -> Expr:
    while isinstance(expr, Cast):
        expr = expr.arg
    return expr


__all__ = ["positions_below"]
