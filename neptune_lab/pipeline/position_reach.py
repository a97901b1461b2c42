"""How far apart the positions are that a definition tells from each other by numbers of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping

from neptune_lab.errors import TileError
from neptune_lab.htile.sizes import Sample
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, Var, children, walk
from neptune_lab.operators import Operator
from neptune_lab.pipeline.size_samples import UNCUT, Tiling, lengths_of
from neptune_lab.scalar_ops import rows

# Operations of which bounds of positions decide the result, so that the compiler may leave them out.
_DECIDED = frozenset(
    {
        *("lt", "le", "gt", "ge", "eq", "ne", "min", "max", "floordiv", "floormod", "floor", "ceil", "round", "trunc"),
        *(row.name for row in rows("loop") if row.kind == "bits"),
    }
)


def reach(expr: Expr) -> float:
    """The largest product of the numbers of one comparison, rounding or index of a read: how far apart the positions
    are that it tells from each other.  A factor below 1 counts as its inverse.  A comparison of values that are read,
    such as that of a maximum with the least float, tells no positions from each other, and neither does an index that
    is made of them alone, such as a row of an embedding."""
    inside = max(map(reach, children(expr)), default=1.0)
    if not isinstance(expr, Load) and not (isinstance(expr, Op) and expr.name in _DECIDED and _has_position(expr)):
        return inside
    return max(inside, math.prod(max(abs(c), 1 / abs(c)) for c in _numbers(expr)))


def _has_position(expr: Expr) -> bool:
    """Whether a position is in an expression, other than in an index of a read."""
    return isinstance(expr, Var) or (not isinstance(expr, Load) and any(map(_has_position, children(expr))))


def _numbers(expr: Expr) -> Iterator[float]:
    """The finite numbers in an expression other than 0, and other than those of indices that are read."""
    if isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value and math.isfinite(expr.value):
        yield float(expr.value)
    for child in children(expr):
        if not (isinstance(expr, Load) and _is_read(child)):
            yield from _numbers(child)


def _is_read(index: Expr) -> bool:
    """Whether an index is made of elements that are read, without a position."""
    return any(isinstance(part, Load) for part in walk(index)) and not _has_position(index)


def farthest_told(
    make: Callable[[Sample], Operator],
    roles: Mapping[str, str],
    tilings: Mapping[str, Tiling],
    limits: Collection[int],
    allowed: int,
) -> int:
    """How far apart the positions are that the definition tells from each other by numbers of its own; 0 if they are
    in two tiles of any sample.

    At sizes below the width of a window, no tile is outside of it: programs of such samples would not have its edge,
    and neither would the kernel, at sizes above.  So the samples are larger.  A number that grows with the sizes, such
    as the position of the last key, is not one of the definition's own.

    Raises:
        TileError: they are too far apart for samples of that size.
    """
    large = [{name: sizes[n] for name, sizes in lengths_of(tilings).items()} for n in (0, -1)]
    found = [_reach_of(make(sample)) for sample in (dict.fromkeys(tilings, 2), *large)]
    own = max(found[0], found[1] if found[1] == found[2] else 0.0) * max(limits, default=1)
    most = {name: 2 * tiling.part if roles[name] else UNCUT for name, tiling in tilings.items()}
    if own <= min(most.values()):
        return 0
    if own > allowed or len(roles) > 1 or not all(roles.values()):
        raise TileError(
            f"{make(large[0]).name} compares positions with {own:g}, or with a product that makes it; at sizes on "
            "both sides of such a number the programs differ",
            help="compile it for one size",
        )
    return math.ceil(own)


def _reach_of(op: Operator) -> float:
    return max(reach(block.body.value) for block in tree.blocks(op.program))
