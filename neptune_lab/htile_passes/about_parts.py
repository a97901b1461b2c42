"""Reductions about a number of the row, taken about a number of the part, so that they need not wait for the row's.

    sum over j of (e[j] - m)²    = sum over parts p of (sum over j in p of (e[j] - m_p)² + n_p (m_p - m)²)
    sum over j of exp(e[j] - m)  = sum over parts p of  sum over j in p of exp(e[j] - m_p) · exp(m_p - m)

with m_p the mean of e in the part, of n_p elements, and the largest e in the part.  The first holds for every m, since
e - m_p adds up to 0 in a part; it is used if the row's sum of e is needed too.  The second holds for every finite m_p;
it is used if m is the largest e of the row, so that no exponent is above 0: both sides are NaN or 0 together where an
element is infinite or NaN.  In a part of -inf, m_p is 0; m stays -inf in a row of them, whose sum is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal as Lit

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import simplify, subexpressions
from neptune_lab.htile_passes.cut_long_rows import Pieces

_F32, _I32 = "float32", "int32"


@dataclass(frozen=True, slots=True)
class AboutNumber:
    """A reduction of a row about a number of the row.

    Args:
        form: of the two in the module's text, its function.
        of: e, elements of the row.
        number: m.
    """

    form: Lit["square", "exp"]
    of: ir.TileExpr
    number: ir.Access

    @property
    def own(self) -> ir.Reduce:
        """The reduction that m_p is computed from."""
        return ir.Reduce("sum" if self.form == "square" else "max", self.of, 0)

    def reduced(self, number: ir.TileExpr) -> ir.Reduce:
        """The same reduction about another number."""
        away = ir.Elementwise("sub", (self.of, number), _F32)
        if self.form == "square":
            return ir.Reduce("sum", ir.Elementwise("mul", (away, away), _F32), 0)
        return ir.Reduce("sum", ir.Elementwise("exp", (away,), _F32), 0)

    def number_of(self, own: ir.TileExpr, count: ir.TileExpr) -> ir.TileExpr:
        """m_p, from what `own` reduces a part to and the number of its elements, in float32."""
        if self.form == "square":
            return ir.Elementwise("div", (own, ir.Elementwise("max", (count, ir.Literal(1.0, _F32)), _F32)), _F32)
        return _finite(own)

    def combined(self, parts: ir.TileExpr, own: ir.TileExpr, counts: ir.TileExpr) -> ir.TileExpr:
        """The reduction, from tiles of all parts: their reductions about m_p, what `own` reduces them to, and n_p."""
        if self.form == "square":
            away = ir.Elementwise("sub", (self.number_of(own, counts), self.number), _F32)
            moved = ir.Elementwise("mul", (counts, ir.Elementwise("mul", (away, away), _F32)), _F32)
            return ir.Reduce("sum", ir.Elementwise("add", (parts, moved), _F32), 0)
        return ir.Reduce("sum", moved_exponentials(parts, own, self.number), 0)


def moved_exponentials(sums: ir.TileExpr, largest: ir.TileExpr, number: ir.TileExpr) -> ir.TileExpr:
    """Sums of exponentials about the largest elements of parts, moved to another number that is not smaller."""
    away = ir.Elementwise("sub", (largest, number), _F32)
    return ir.Elementwise("mul", (ir.Elementwise("exp", (away,), _F32), sums), _F32)


def _finite(number: ir.TileExpr) -> ir.TileExpr:
    """A largest element, or 0 of a part in which all are -inf."""
    least = ir.Literal(float("-inf"), _F32)
    none = ir.Elementwise("eq", (number, least), "bool")
    return ir.Elementwise("where", (none, ir.Literal(0.0, _F32), number), _F32)


def about_number(reduction: ir.Reduce, made: Mapping[str, ir.TileExpr]) -> AboutNumber | None:
    """A reduction that can be taken about numbers of parts; None for any other.

    Args:
        reduction: of a row.
        made: the value of each number of the row, as its statement has it, by its tile.
    """
    if reduction.op != "sum":
        return None
    match reduction.arg:
        case ir.Elementwise(op="mul", args=(ir.Elementwise(op="sub", args=(of, ir.Access() as number)) as one, other)):
            found = AboutNumber("square", of, number) if one == other else None
        case ir.Elementwise(op="exp", args=(ir.Elementwise(op="sub", args=(of, ir.Access() as number)),)):
            largest = made.get(number.tensor) == ir.Reduce("max", of, 0)
            found = AboutNumber("exp", of, number) if largest else None
        case _:
            found = None
    if found is None or number.tensor not in made or any(isinstance(i, ir.Slice | ir.NewAxis) for i in number.index):
        return None
    # Only where the row's own sum or largest element is needed anyway: another sum might overflow.
    needed = (part for value in made.values() for part in subexpressions(value))
    return found if any(part == found.own for part in needed) else None


def count_of_part(row: Pieces, var: str) -> ir.TileExpr:
    """The number of elements of part `var`, in float32."""
    return ir.Cast(ir.Scalar(simplify(_count(row, ir.Name(var)))), _F32)


def counts_of_parts(row: Pieces, var: str) -> ir.TileExpr:
    """The numbers of elements of all parts, in float32."""
    part: ir.TileExpr = ir.Iota((ir.Slice(ir.Int(0), row.count, var),))

    def op(name: str, a: ir.TileExpr, b: ir.TileExpr) -> ir.TileExpr:
        return ir.Elementwise(name, (a, b), _I32)

    before = op("mul", part, ir.Literal(row.size, _I32))
    left = op("sub", ir.Scalar(simplify(_behind(row))), before)
    own = op("max", op("min", left, ir.Literal(row.size, _I32)), ir.Literal(0, _I32))
    if row.head is not None:
        is_last = ir.Elementwise("lt", (ir.Literal(row.count - 2, _I32), part), "bool")
        edges = ir.Elementwise("where", (is_last, ir.Scalar(simplify(_edges(row))), ir.Literal(0, _I32)), _I32)
        own = op("add", own, edges)
    return ir.Cast(own, _F32)


def _count(row: Pieces, part: ir.IndexExpr) -> ir.IndexExpr:
    left = ir.Arith("-", _behind(row), ir.Arith("*", part, ir.Int(row.size)))
    own = ir.Arith("max", ir.Arith("min", left, ir.Int(row.size)), ir.Int(0))
    if row.head is None:
        return own
    return ir.Arith("+", own, ir.Arith("*", _edges(row), ir.Arith("//", part, ir.Int(row.count - 1))))


def _behind(row: Pieces) -> ir.IndexExpr:
    """The elements of all parts without the edges."""
    return ir.Int(row.extent) if row.head is None else ir.Arith("-", row.end, row.head)


def _edges(row: Pieces) -> ir.IndexExpr:
    """The elements of both edges."""
    assert row.head is not None
    return ir.Arith("-", ir.Int(row.extent), ir.Arith("-", row.end, row.head))


__all__ = ["AboutNumber", "about_number", "count_of_part", "counts_of_parts", "moved_exponentials"]
