"""Limits of columns that `or` joins, such as `kv > q - 64 or kv < 4`, and the tiles of a loop that they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import conjuncts
from neptune_lab.htile_passes.position_limits import Around, Ends, Limit, Tiles, ends_of, limit_of, reads_inputs

# Each alternative by its limits, of which all hold where it does.
Alternatives = tuple[tuple[Limit, ...], ...]


def alternatives_of(conjunct: ir.TileExpr, around: Around, *, whole: bool = False) -> Alternatives | None:
    """A conjunct of a mask as alternatives, each with limits of the columns for which it may hold; None if it has no
    `or`, or an alternative without limits.

    Args:
        conjunct: of a mask.
        around: what is known of its place.
        whole: also None if an alternative reads inputs for anything but limits.
    """
    parts = tuple(disjuncts(conjunct))
    if len(parts) < 2:
        return None
    found: list[tuple[Limit, ...]] = []
    for part in parts:
        own = [(one, limit_of(one, around, by_data=False)) for one in conjuncts(part)]
        if whole and any(limit is None and reads_inputs(one) for one, limit in own):
            return None
        found.append(tuple(limit for _, limit in own if limit is not None))
    return tuple(found) if all(found) else None


def has_gap(found: Alternatives) -> bool:
    """Whether some of the alternatives only end, and others begin: there may be tiles between them, which no single
    range of tiles leaves out."""
    begins = {any(limit.op in ("ge", "gt", "eq") for limit in limits) for limits in found}
    return len(begins) == 2


def disjuncts(condition: ir.TileExpr) -> Iterator[ir.TileExpr]:
    """What `or` joins in a condition; it alone if it has none."""
    if isinstance(condition, ir.Elementwise) and condition.op == "or":
        for arg in condition.args:
            yield from disjuncts(arg)
    else:
        yield condition


def ends_of_alternatives(
    found: Alternatives, tiles: Callable[[ir.Slice], Tiles | None], program: ir.Program
) -> Ends | None:
    """The tiles in which one of the alternatives may hold for some row; None if `tiles` has none for some columns.

    Formal statement: alternative n may hold in the tiles [f_n, l_n) alone, where the ends of its limits meet.  Let L be
    the largest l_n of the alternatives that only end, [0, l_n), and let [F, E) reach from the least f_n of the others
    to their largest l_n, to the end of all tiles if one has none.  Every tile of an alternative is in [0, L) or in
    [F, E), so in [0, max(L, E)), and not in [L, F).
    """
    low: list[ir.TileExpr] = []
    first: list[ir.TileExpr] = []
    last: list[ir.TileExpr | None] = []
    for limits in found:
        own = [ends_of(limit, at, program) for limit in limits if (at := tiles(limit.columns)) is not None]
        if len(own) < len(limits):
            return None
        begins, ends = [e.first for e in own if e.first is not None], [e.last for e in own if e.last is not None]
        if begins:
            first.append(_extremum("max", begins))
            last.append(_extremum("min", ends) if ends else None)
        else:
            low.append(_extremum("min", ends))
    known = [end for end in last if end is not None]
    until = _extremum("max", known) if known and len(known) == len(last) else None
    if not first:
        return Ends(None, _extremum("max", low))
    begin = _extremum("min", first)
    if not low:
        return Ends(begin, until)
    under = _extremum("max", low)
    return Ends(None, None if until is None else _extremum("max", [under, until]), (under, begin))


def _extremum(op: str, numbers: Sequence[ir.TileExpr]) -> ir.TileExpr:
    return reduce(lambda a, b: ir.Elementwise(op, (a, b), "int32"), dict.fromkeys(numbers))


__all__ = ["Alternatives", "alternatives_of", "disjuncts", "ends_of_alternatives", "has_gap"]
