"""How far apart the positions are that a definition tells from each other by numbers of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from neptune_lab.errors import TileError
from neptune_lab.htile.sizes import Sample
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, Var, children
from neptune_lab.loop_ir.positions import COMPARISONS
from neptune_lab.loop_ir.walks import walk
from neptune_lab.operators import Operator
from neptune_lab.pipeline.size_samples import UNCUT, Tiling, lengths_of, sample_sets
from neptune_lab.scalar_ops import rows
from neptune_lab.tensor_spec import LARGEST

# Operations of which bounds of positions decide the result, so that the compiler may leave them out.
_DECIDED = frozenset(
    {
        *("lt", "le", "gt", "ge", "eq", "ne", "min", "max", "floordiv", "floormod", "floor", "ceil", "round", "trunc"),
        *(row.name for row in rows("loop") if row.kind == "bits"),
    }
)


@dataclass(frozen=True)
class Told:
    """How far apart the positions are that a definition tells from each other.

    Args:
        farthest: 0 if they are in two tiles of any sample.
        most: the largest sizes for which that holds; 0: any.  Up to them, comparisons with larger numbers than those
            that are told are true at all positions, or at none.
    """

    farthest: int
    most: int = 0


@dataclass(frozen=True)
class _Difference:
    """`constant` and positions, by their coefficients and extents: what a comparison compares with 0."""

    constant: float
    terms: tuple[tuple[str, float], ...]

    @property
    def most(self) -> int:
        """The largest extent of positions up to which the sign is the same at all of them, and not 0; 0 if that takes
        no positions at all."""
        against = sum(abs(c) for _, c in self.terms if (c > 0) != (self.constant > 0))
        if not against:
            return LARGEST
        return int(max(0, math.ceil(abs(self.constant) / against)))


def _difference(expr: Expr) -> _Difference | None:
    """What a comparison of positions compares with 0, if that is a sum of multiples of positions."""
    if not isinstance(expr, Op) or expr.name not in COMPARISONS or len(expr.args) != 2:
        return None
    left, right = map(_linear, expr.args)
    if left is None or right is None:
        return None
    both = {name: left.get(name, 0.0) - right.get(name, 0.0) for name in left | right}
    constant = both.pop("", 0.0)
    return _Difference(constant, tuple(sorted((name, c) for name, c in both.items() if c)))


def _linear(expr: Expr) -> dict[str, float] | None:
    """The coefficient of each position, and of "" the constant; None if an expression is no such sum."""
    match expr:
        case Var():
            return {expr.name: 1.0}
        case Const() if not isinstance(expr.value, bool) and math.isfinite(expr.value):
            return {"": float(expr.value)}
        case Op(name="add" | "sub", args=(one, other)):
            left, right = _linear(one), _linear(other)
            sign = 1 if expr.name == "add" else -1
            if left is None or right is None:
                return None
            return {name: left.get(name, 0.0) + sign * right.get(name, 0.0) for name in left | right}
    return None


def reach(expr: Expr, without: Collection[_Difference] = ()) -> float:
    """The largest product of the numbers of one comparison, rounding or index of a read: how far apart the positions
    are that it tells from each other.  A factor below 1 counts as its inverse.  A comparison of values that are read,
    such as that of a maximum with the least float, tells no positions from each other, and neither does an index that
    is made of them alone, such as a row of an embedding.

    Args:
        without: comparisons that are left out.
    """
    if without and _difference(expr) in without:
        return 1.0
    inside = max((reach(child, without) for child in children(expr)), default=1.0)
    if not isinstance(expr, Load) and not (isinstance(expr, Op) and expr.name in _DECIDED and _has_position(expr)):
        return inside
    divisor = _common_divisor(expr)
    return max(inside, math.prod(max(abs(c), 1 / abs(c)) for c in _numbers(expr)) / divisor)


def _common_divisor(expr: Expr) -> float:
    """The number by which both sides of a comparison are quotients, which tell positions apart that are so far from
    each other, not so far times so far; else 1.

    >>> q, kv = Var("q"), Var("kv")
    >>> reach(Op("eq", (Op("floordiv", (q, Const(12, "int32"))), Op("floordiv", (kv, Const(12, "int32"))))))
    12.0
    """
    match expr:
        case Op(args=(Op(name="floordiv", args=(_, Const() as one)), Op(name="floordiv", args=(_, Const() as other)))):
            if expr.name in COMPARISONS and one.value == other.value and one.value >= 1:
                return float(one.value)
    return 1.0


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
    *,
    bounded: bool = False,
) -> Told:
    """How far apart the positions are that the definition tells from each other by numbers of its own.

    At sizes below the width of a window, no tile is outside of it: programs of such samples would not have its edge,
    and neither would the kernel, at sizes above.  So the samples are larger.  A number that grows with the sizes, such
    as the position of the last key, is not one of the definition's own.

    Args:
        bounded: whether the kernel may be for sizes up to such a number alone, if they are too far apart otherwise.

    Raises:
        TileError: they are too far apart for samples of that size.
    """
    large = [{name: sizes[n] for name, sizes in lengths_of(tilings).items()} for n in (0, -1)]
    ops = [make(sample) for sample in (dict.fromkeys(tilings, 2), *large)]

    def told(without: Collection[_Difference] = ()) -> float:
        found = [_reach_of(op, without) for op in ops]
        return max(found[0], found[1] if found[1] == found[2] else 0.0) * max(limits, default=1)

    own = told()
    most = {name: 2 * tiling.part if roles[name] else UNCUT for name, tiling in tilings.items()}
    if own <= min(most.values()):
        return Told(0)
    one = len(roles) == 1 and all(roles.values())
    if own <= allowed and one:
        return Told(math.ceil(own))
    if bounded and not limits and all(roles.values()):
        far = _far(ops, max(allowed, *most.values()))
        up_to = min((difference.most for difference in far), default=0)
        own = told(far)
        sizes = [n for samples in sample_sets(tilings, 0) for sample in samples for n in sample.values()]
        extents = [it.extent for op in ops for block in tree.blocks(op.program) for it in block.iters]
        if own <= min(most.values()) and up_to > max(*sizes, *extents):  # (a size that stays may be larger)
            return Told(0, up_to)
    raise TileError(
        f"{ops[1].name} compares positions with {told():g}, or with a product that makes it; at sizes on "
        "both sides of such a number the programs differ",
        help="compile it for one size",
    )


def _far(ops: Collection[Operator], beyond: float) -> frozenset[_Difference]:
    """The comparisons with a larger number, the same at all of these sizes."""
    found = []
    for op in ops:
        every = (_difference(part) for block in tree.blocks(op.program) for part in walk(block.body.value))
        found.append({d for d in every if d is not None and d.terms and abs(d.constant) > beyond})
    return frozenset(set.intersection(*found))


def _reach_of(op: Operator, without: Collection[_Difference] = ()) -> float:
    return max(reach(block.body.value, without) for block in tree.blocks(op.program))
