"""Positions in definitions: integers of an input that index something, and iterations that are compared."""

from __future__ import annotations

from neptune_lab.loop_ir.nodes import Cast, Expr, Load, Op, Previous, Program, Var, children
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.walks import loads, walk

ORDERED = frozenset({"lt", "le", "gt", "ge"})
COMPARISONS = ORDERED | {"eq", "ne"}


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


def may_be_outside(index: Expr) -> bool:
    """Whether nothing bounds an index of a read: it is computed of data, or with floats.

    Such an index may leave its tensor, and the read is 0 there.

    >>> may_be_outside(Load("x", (Var("i"),))), may_be_outside(Cast("int32", Op("log", (Cast("float32", Var("i")),))))
    (True, True)
    >>> may_be_outside(Op("add", (Var("i"), Var("j"))))
    False
    """
    return any(isinstance(e, Load | Previous) or (isinstance(e, Cast) and "float" in e.dtype) for e in walk(index))


def _unconverted(expr: Expr) -> Expr:
    while isinstance(expr, Cast):
        expr = expr.arg
    return expr


def compares_positions(expr: Expr) -> bool:
    """Whether an expression compares iteration variables, as a mask does; those of an index of a read do not count.

    >>> compares_positions(Op("select", (Op("le", (Var("j"), Var("i"))), Var("x"), Var("y"))))
    True
    >>> compares_positions(Op("lt", (Load("x", (Var("i"),)), Load("y", (Var("i"),)))))
    False
    """
    if isinstance(expr, Load):
        return False
    inside = children(expr)
    if isinstance(expr, Op) and expr.name in COMPARISONS and any(map(_has_position, inside)):
        return True
    return any(map(compares_positions, inside))


def _has_position(expr: Expr) -> bool:
    return isinstance(expr, Var) or (not isinstance(expr, Load) and any(map(_has_position, children(expr))))


__all__ = ["compares_positions", "may_be_outside", "positions_below"]
