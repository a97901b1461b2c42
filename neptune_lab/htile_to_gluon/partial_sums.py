"""Sums of rows that each thread computes of its own columns: the four threads of a row add theirs after the loop only.

A sum over a tile's columns needs two exchanges between threads, each of which waits for the one before.
"""

from __future__ import annotations

from collections.abc import Iterable

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import accesses, reads
from neptune_lab.htile_to_gluon.structure import LoopPart, Structure


def summed_after_loop(structure: Structure) -> dict[str, str]:
    """By sum of rows of a tile, the total that only it is added to.

    Before => after, for columns c of the four threads t of a row:

        total = 0                              =>  total[t] = 0
        each tile: s = sum(e)                  =>  s[t] = sum(e[c] for c of t)
                   total = a * total + s       =>  total[t] = a * total[t] + s[t]
        after the loop: total                  =>  sum(total[t])

    Formal statement: let total and s be read by that statement only while the loop runs, and let `a` be the same for
    all columns of a row.  Then sum(a * total[t] + s[t]) = a * sum(total[t]) + sum(s[t]), by distributivity.
    """
    found = [_of_part(structure, part) for part in (structure.first, *structure.parts)]
    return found[0] if all(other == found[0] for other in found) else {}


def _of_part(structure: Structure, part: LoopPart) -> dict[str, str]:
    values = {stmt.target.tensor: stmt.value for stmt in part.middle}
    if len(values) < len(part.middle):
        return {}
    out: dict[str, str] = {}
    for name, value in values.items():
        match value:
            case ir.Reduce(op="sum", dim=1):
                totals = [total for total, update in values.items() if factor(update, total, name) is not None]
                if len(totals) == 1 and _starts_at_zero(structure, totals[0]) and _read_once(part, name, totals[0]):
                    out[name] = totals[0]
            case _:
                pass
    return out


def factor(update: ir.TileExpr, total: str, summed: str) -> ir.TileExpr | None:
    """a, if `update` is `a * total + summed`, and `a` reads neither."""
    match update:
        case ir.Elementwise(op="add", args=(ir.Elementwise(op="mul", args=(a, b)), ir.Access(tensor=name))):
            pass
        case ir.Elementwise(op="add", args=(ir.Access(tensor=name), ir.Elementwise(op="mul", args=(a, b)))):
            pass
        case _:
            return None
    for one, other in ((a, b), (b, a)):
        if name == summed and isinstance(other, ir.Access) and other.tensor == total:
            return None if {total, summed} & {access.tensor for access in accesses(one)} else one
    return None


def _starts_at_zero(structure: Structure, total: str) -> bool:
    values = [stmt.value for stmt in structure.before if stmt.target.tensor == total]
    return len(values) == 1 and isinstance(values[0], ir.Literal) and values[0].value == 0


def _read_once(part: LoopPart, summed: str, total: str) -> bool:
    """Whether one statement of a part's tile reads the two, and no product does."""
    readers = [stmt for stmt in _statements(part) if {summed, total} & {access.tensor for access in reads(stmt)}]
    return len(readers) == 1 and readers[0].target.tensor == total


def _statements(part: LoopPart) -> Iterable[ir.Store]:
    yield from (*part.middle, *part.after)
    for product in (*part.leading, *part.trailing):
        yield product.store
        if product.promotion is not None:
            yield product.promotion


__all__ = ["factor", "summed_after_loop"]
