"""Reductions of a loop that Triton's compiler rejects: their results are read more than once after the loop.

Triton's pass for thread locality moves a reduction to the end of its loop and expects one reader of the result; with
more readers, the compiler of Triton 3.6 and 3.7 fails.  Adding 0 to the result after the loop gives it one reader, and
costs one addition per row.
"""

from __future__ import annotations

from collections.abc import Sequence

from neptune_lab.htile.nodes import Access, Elementwise, For, Program, Reduce, Stmt, Store, TileExpr
from neptune_lab.htile.walk import reads, stores
from neptune_lab.strict.dtypes import FLOATS

_FOLDS = frozenset({"add", "mul", "max", "min"})


def rejected_reductions(loop: For, rest: Sequence[Stmt], program: Program) -> tuple[Store, ...]:
    """The stores of `loop` that fold a reduction into a float tile which `rest` reads more than once."""
    inside = tuple(stores(loop.body))
    read_after = [access.tensor for s in stores(rest) for access in reads(s)]
    return tuple(
        s
        for s in inside
        if program.tensor(s.target.tensor).space == "chip"
        and program.tensor(s.target.tensor).dtype in FLOATS
        and read_after.count(s.target.tensor) > 1
        and _folds_alone(s, inside)
    )


def _folds_alone(store: Store, inside: Sequence[Store]) -> bool:
    """Whether `store` is `X = op(X, reduce(...))`, in one statement or two, and no other store of the loop uses X."""
    name = store.target.tensor
    if sum(s.target.tensor == name for s in inside) > 1 or _readers(name, inside) > 1:
        return False
    match store.value:
        case Elementwise(op=op, args=(Access(tensor=first), other)) if op in _FOLDS and first == name:
            return _is_reduced(other, inside)
        case Elementwise(op=op, args=(other, Access(tensor=second))) if op in _FOLDS and second == name:
            return _is_reduced(other, inside)
    return False


def _is_reduced(expr: TileExpr, inside: Sequence[Store]) -> bool:
    if isinstance(expr, Access):
        made = [s.value for s in inside if s.target.tensor == expr.tensor]
        return len(made) == 1 and isinstance(made[0], Reduce) and _readers(expr.tensor, inside) == 1
    return isinstance(expr, Reduce)


def _readers(name: str, inside: Sequence[Store]) -> int:
    return sum(access.tensor == name for s in inside for access in reads(s))
