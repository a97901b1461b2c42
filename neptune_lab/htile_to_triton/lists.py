"""Loops whose variable takes the values of a list."""

from __future__ import annotations

from neptune_lab.htile.nodes import Access, Arith, IndexExpr, Int, NewAxis, Slice, place_in_list
from neptune_lab.htile.walk import simplify
from neptune_lab.htile_to_triton.context import ADD, Context, sizes_of
from neptune_lab.htile_to_triton.scope import Scope


def entry_of_list(ctx: Context, var: str, entry: Access, scope: Scope) -> tuple[str, str]:
    """The name of the place in a list, and the load of the entry there.

    The load is a line of the loop's head, before all that its body defines: any of that may read the variable.

    Args:
        var: the loop's variable.
        entry: the list at `place_in_list(var)`.
        scope: of the loop's body.
    """
    place = ctx.name_for(("loop", place_in_list(var)), place_in_list(var), scope)
    sizes = sizes_of(ctx.program.tensor(entry.tensor))
    row: IndexExpr = Int(0)
    for index, size in zip(entry.index[:-1], sizes[:-1], strict=True):
        assert not isinstance(index, Slice | NewAxis), "an entry is one element"
        row = Arith("+", Arith("*", row, size), index)
    first = simplify(Arith("*", row, sizes[-1]))
    before = "" if first == Int(0) else f"{ctx.index(first, ADD)} + "
    return place, f"tl.load({ctx.pointers[entry.tensor]} + {before}{place})"


__all__ = ["entry_of_list"]
