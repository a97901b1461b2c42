"""Factors that row work multiplies late are multiplied with each other early, so that fewer tiles stay in registers.

Before => after, where d depends on the second product of scores, and w and c on the first only:

    s = d * w                   p = w * c
    x = s * c                   x = d * p

So the derivative of a soft cap needs one tile of weights beside d, not two.  The product of three factors is rounded in
another order, in float32.
"""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of
from neptune_lab.htile.walk import accesses, reads, same_index
from neptune_lab.htile_to_gluon.structure import LoopPart


def regrouped(program: ir.Program, this: LoopPart, late: set[str], name: str) -> tuple[LoopPart, tuple[ir.Tensor, ...]]:
    """A part with its factors regrouped, and the on-chip tile that it then needs.

    Formal statement: s is read by x alone, so leaving it out changes nothing else; w and c depend on nothing late, so
    p can be computed where s was.

    Args:
        late: the tiles that depend on the second product of scores.
        name: of the tile; it is not taken.
    """
    for outer in this.middle:
        factors = _factors(outer, late)
        if factors is None or not isinstance(factors[0], ir.Access):
            continue
        inner = next((s for s in this.middle if _stores(s, factors[0])), None)
        again = None if inner is None else _factors(inner, late)
        if inner is None or again is None or _readers(this, inner.target.tensor) != 1:
            continue
        tensor = program.tensor(inner.target.tensor)
        if {dtype_of(e, program) for e in (again[1], factors[1])} != {"float32"} or tensor.dtype != "float32":
            continue
        target = replace(inner.target, tensor=name)
        factor = ir.Store(inner.node_id, target, ir.Elementwise("mul", (again[1], factors[1]), "float32"), inner.origin)
        product = replace(outer, value=ir.Elementwise("mul", (again[0], target), "float32"))
        # c may be computed after w, so p comes where x is.
        middle = [s for s in this.middle if s is not inner]
        place = middle.index(outer)
        middle[place : place + 1] = [factor, product]
        return replace(this, middle=tuple(middle)), (replace(tensor, name=name),)
    return this, ()


def _factors(stmt: ir.Store, late: set[str]) -> tuple[ir.TileExpr, ir.TileExpr] | None:
    """The late and the early factor of a product; None if it is none of such factors."""
    match stmt.value:
        case ir.Elementwise("mul", (a, b)) if stmt.mask is None:
            of_late = [any(x.tensor in late for x in accesses(e)) for e in (a, b)]
            if of_late == [True, False]:
                return a, b
            if of_late == [False, True]:
                return b, a
    return None


def _stores(stmt: ir.Store, read: ir.Access) -> bool:
    """Whether a statement stores the tile that is read, in whole."""
    mine, other = stmt.target, read
    if mine.tensor != other.tensor or len(mine.index) != len(other.index):
        return False
    pairs = zip(mine.index, other.index, strict=True)
    return all(not isinstance(a, ir.NewAxis) and not isinstance(b, ir.NewAxis) and same_index(a, b) for a, b in pairs)


def _readers(this: LoopPart, tensor: str) -> int:
    """How often a part reads a tile."""
    every = (*this.middle, *(p.store for p in this.trailing), *this.after)
    return sum(access.tensor == tensor for stmt in every for access in reads(stmt))


__all__ = ["regrouped"]
