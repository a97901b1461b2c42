"""Numbers of elements that a loop over tiles of a row has visited, where a vector repair needs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine
from neptune_lab.htile.walk import expressions, names_of_index, rewrite_store, simplify, subexpressions


@dataclass(frozen=True, slots=True)
class ElementsSeen:
    """How a loop `for var in range(…)` counts the `extent` elements of a row that it visits in tiles of `tile`.

    `var*tile` of them are visited before an iteration, and `min(extent, var*tile+tile)` up to its end; a divisor is
    `max(var*tile, 1)`.
    """

    var: str
    tile: int
    extent: int

    def may_count(self, own: Iterable[ir.Store], along: Iterable[ir.Store]) -> bool:
        """Whether each value of the loop's variable in statements is such a number.

        Formal statement.  A position that an operator's definition computes with is that of an element, so the
        statements on the elements of a tile (`along`) have it.  A statement without elements has the variable for one
        of two reasons: a vector repair counts, or a step of the schedule moved a factor that is the same in a tile
        out of its sum.  Such a factor multiplies what the tile's elements gave.  So the variable stands for a count if
        it has a count's form, in statements without elements, and multiplies or divides nothing that the statements
        with elements store.  If tiles divide the row, a definition may have blocks of just this size: then no.

        Args:
            own: the statements of the loop.
            along: those of them that read or store elements of a tile.
        """
        own, along = tuple(own), tuple(along)
        counting = [store for store in own if any(map(self._is_placed, expressions(store)))]
        if not counting:
            return True
        if self.extent % self.tile == 0 or any(store in along for store in counting):
            return False
        given = {store.target.tensor for store in along}
        return all(self._may_count(store, given) for store in counting)

    def _may_count(self, store: ir.Store, given: set[str]) -> bool:
        if any(self._is_placed(e) and self._at(e.value, ir.Int(0), ir.Int(0)) is None for e in _scalars(store)):
            return False
        return not any(
            isinstance(expr, ir.Elementwise)
            and expr.op not in ("add", "sub")
            and any(map(self._is_placed, subexpressions(expr)))
            and any(isinstance(e, ir.Access) and e.tensor in given for e in subexpressions(expr))
            for expr in expressions(store)
        )

    def _is_placed(self, expr: object) -> bool:
        return isinstance(expr, ir.Scalar) and self.var in names_of_index(expr.value)

    def moved(self, store: ir.Store, before: ir.IndexExpr, after: ir.IndexExpr) -> ir.Store:
        """A statement with other numbers of elements before and after the iteration."""

        def visit(expr: ir.TileExpr) -> ir.TileExpr:
            if not (isinstance(expr, ir.Scalar) and self._is_placed(expr)):
                return expr
            found = self._at(expr.value, before, after)
            assert found is not None  # (`may_count`)
            return ir.Scalar(simplify(found))

        return rewrite_store(store, visit)

    def _at(self, expr: ir.IndexExpr, before: ir.IndexExpr, after: ir.IndexExpr) -> ir.IndexExpr | None:
        """A number with others in place of both counts; None if it is none."""
        form = affine(simplify(expr))
        if form.terms == ((ir.Name(self.var), self.tile),) and form.constant == 0:
            return before
        match expr:
            case (
                ir.Arith(op="min", a=ir.Int(value=self.extent), b=last)
                | ir.Arith(op="min", a=last, b=ir.Int(value=self.extent))
            ):
                form = affine(simplify(last))
                return after if form.terms == ((ir.Name(self.var), self.tile),) and form.constant == self.tile else None
            case ir.Arith(op="max", a=first, b=ir.Int(value=1)) | ir.Arith(op="max", a=ir.Int(value=1), b=first):
                found = self._at(first, before, after)
                return None if found is None else ir.Arith("max", found, ir.Int(1))
            case _:
                return None


def _scalars(store: ir.Store) -> list[ir.Scalar]:
    return [e for e in expressions(store) if isinstance(e, ir.Scalar)]


__all__ = ["ElementsSeen"]
