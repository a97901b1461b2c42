"""Simplifies index expressions by the ranges of the loops around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from neptune_lab.loop_ir.float_range import converted_bounds
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op, Var, add, children, mul, rebuild
from neptune_lab.loop_ir.reach import as_sum
from neptune_lab.loop_ir.walks import transform, walk
from neptune_lab.scalar_ops import NEGATION

# The limits of a - b if a comparison of a with b holds: (least, greatest), None for no limit.
_SIGNS = {"lt": (None, -1), "le": (None, 0), "gt": (1, None), "ge": (0, None), "eq": (0, 0)}


# Expressions of which a comparison around a choice gives bounds, for sides that have none otherwise.
_MOST_ASSUMED = 4


def bounds(expr: Expr, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """Least and greatest value of an index expression over loops `0 <= v < extents[v]`; None if unknown."""
    return Bounds(extents).of(expr)


def bounds_where(conditions: Iterable[Expr], expr: Expr, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """As `bounds`, of the values that an index takes where all conditions hold; the least is above the greatest if they
    never do."""
    known = Bounds(extents)
    return reduce(_both, [known.where(condition, expr) for condition in conditions], known.of(expr))


class Bounds:
    """Bounds of expressions over the same loops.

    Each distinct part is bounded once. The bounds of a choice depend on its condition and on both sides, and each of
    these may be a choice again: without the dictionaries, the work is exponential in how deep choices are nested.
    """

    def __init__(self, extents: Mapping[str, int], assumed: Mapping[Expr, tuple[int, int]] | None = None) -> None:
        self.extents = extents
        self._assumed = dict(assumed or {})
        self._found: dict[Expr, tuple[int, int] | None] = {**self._assumed}
        self._without_conversions: dict[Expr, Expr] = {}

    def of(self, expr: Expr) -> tuple[int, int] | None:
        """Least and greatest value; None if unknown."""
        if isinstance(expr, Var) and expr not in self._assumed:
            return (0, self.extents[expr.name] - 1) if expr.name in self.extents else None
        if isinstance(expr, Const):
            return (int(expr.value), int(expr.value)) if isinstance(expr.value, int) else None
        if expr not in self._found:
            self._found[expr] = self._bounded(expr)
        return self._found[expr]

    def _bounded(self, expr: Expr) -> tuple[int, int] | None:
        match expr:
            case Op("neg", (a,)):
                x = self.of(a)
                return None if x is None else (-x[1], -x[0])
            case Op("abs", (a,)):
                x = self.of(a)
                return None if x is None else (max(0, x[0], -x[1]), max(-x[0], x[1]))
            case Op("select", (condition, a, b)):
                sides = [self._side(condition, a), self._side(Op("not", (condition,)), b)]
                taken = [x for x in sides if x is None or x[0] <= x[1]]
                if None in taken:
                    return None
                known = [x for x in taken if x is not None]
                return (min(x[0] for x in known), max(x[1] for x in known)) if known else self.of(a)
            case Cast(dtype, arg):
                return converted_bounds(dtype, arg, self.of)
            case Op(name, (a, b)):
                x, y = self.of(a), self.of(b)
                return None if x is None or y is None else _of_operation(name, x, y)
        return None

    def _side(self, condition: Expr, expr: Expr) -> tuple[int, int] | None:
        """The bounds of a choice's side, whose condition holds: also those that it has only then.

        `select(n < 4, n, int(log(n) * 2))` has no logarithm of 0: where n < 4 fails, n is at least 4.
        """
        found = self.where(condition, expr)
        if found is not None or len(self._assumed) >= _MOST_ASSUMED:
            return found
        assumed = self._compared(condition)
        if not assumed or assumed.items() <= self._assumed.items():
            return None
        return Bounds(self.extents, {**self._assumed, **assumed}).of(expr)

    def _compared(self, condition: Expr) -> dict[Expr, tuple[int, int]]:
        """The bounds of both sides of a comparison of integers where it holds."""
        match condition:
            case Op("not", (Op("not", (whole,)),)):
                return self._compared(whole)
            case Op("not", (Op(name, args),)) if name in NEGATION:
                condition = Op(NEGATION[name], args)
        match condition:
            case Op(name, (a, b)) if name in _SIGNS and (x := self.of(a)) is not None and (y := self.of(b)) is not None:
                least, greatest = _SIGNS[name]  # of a - b
                of_a = (
                    x[0] if least is None else max(x[0], y[0] + least),
                    x[1] if greatest is None else min(x[1], y[1] + greatest),
                )
                of_b = (
                    y[0] if greatest is None else max(y[0], x[0] - greatest),
                    y[1] if least is None else min(y[1], x[1] - least),
                )
                made = {a: of_a, self._unconverted(a): of_a, b: of_b, self._unconverted(b): of_b}
                return {e: limits for e, limits in made.items() if not isinstance(e, Const) and limits[0] <= limits[1]}
        return {}

    def where(self, condition: Expr, expr: Expr) -> tuple[int, int] | None:
        """The bounds of `expr` if `condition` holds; (1, 0) if it never does.  If j < 0, j + 8 is at most 7."""
        limits = self.of(expr)
        expr, condition = self._unconverted(expr), self._unconverted(condition)
        match condition:
            case Op("not", (Op("not", (whole,)),)):
                return self.where(whole, expr)
            case Op("not", (Op(name, args),)) if name in NEGATION:
                condition = Op(NEGATION[name], args)
            case Op("and", (a, b)):
                return _both(self.where(a, expr), self.where(b, expr))
            case Op("not", (Op("and", (a, b)),)):
                return _either(*(self.where(Op("not", (part,)), expr) for part in (a, b)))
        match condition:
            case Op(name, (a, b)) if limits is not None and name in _SIGNS:
                difference = Op("sub", (a, b))
                own, form, around = as_sum(expr), as_sum(difference), self.of(difference)
                least, greatest = _SIGNS[name]
                other = self.of(b)
                if expr == a and other is not None:
                    low = limits[0] if least is None else max(limits[0], other[0] + least)
                    high = limits[1] if greatest is None else min(limits[1], other[1] + greatest)
                    return (low, high) if low <= high else (1, 0)
                if own is None or form is None or around is None:
                    return limits
                low = around[0] if least is None else max(around[0], least)
                high = around[1] if greatest is None else min(around[1], greatest)
                if low > high:
                    return (1, 0)
                for sign in (1, -1):
                    rest = own.plus(form, -sign)
                    if not rest.terms:
                        ends = sorted((sign * low + rest.constant, sign * high + rest.constant))
                        return max(limits[0], ends[0]), min(limits[1], ends[1])
        return limits

    def _unconverted(self, expr: Expr) -> Expr:
        """The expression without conversions of integers to dtypes that hold them."""
        if expr not in self._without_conversions:
            operands = children(expr)
            plain = rebuild(expr, tuple([self._unconverted(c) for c in operands])) if operands else expr
            if isinstance(plain, Cast) and (own := self.of(plain.arg)) is not None and own == self.of(plain):
                plain = plain.arg
            self._without_conversions[expr] = plain
        return self._without_conversions[expr]

    def decided(self, condition: Expr) -> bool | None:
        """Whether a comparison of integers, or several, always or never hold; None if neither is shown."""
        match condition:
            case Op("and", (a, b)):
                parts = {self.decided(part) for part in (a, b)}
                return False if False in parts else None if None in parts else True
            case Op(name, (a, b)) if name in _SIGNS:
                around = self.of(Op("sub", (a, b)))
                least, greatest = _SIGNS[name]
                if around is None:
                    return None
                if (least is None or least <= around[0]) and (greatest is None or around[1] <= greatest):
                    return True
                if (least is not None and around[1] < least) or (greatest is not None and greatest < around[0]):
                    return False
        return None


def _of_operation(name: str, x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int] | None:
    """The bounds of an operation on two integers within x and y; None if unknown."""
    match name:
        case "add":
            return x[0] + y[0], x[1] + y[1]
        case "sub":
            return x[0] - y[1], x[1] - y[0]
        case "mul":
            corners = [p * q for p in x for q in y]
            return min(corners), max(corners)
        case "floordiv" if y[0] == y[1] and y[0] > 0:
            return x[0] // y[0], x[1] // y[0]
        case "floormod" if y[0] == y[1] and y[0] > 0:
            return x if x[0] >= 0 and x[1] < y[0] else (0, y[0] - 1)
        case "max":
            return max(x[0], y[0]), max(x[1], y[1])
        case "min":
            return min(x[0], y[0]), min(x[1], y[1])
        case "bitand":
            return _of_common_bits(x, y)
        case "bitor":  # not (not x and not y)
            return _complement(_of_common_bits(_complement(x), _complement(y)))
        case "bitxor":
            width = max(end.bit_length() for end in (*_complement(x), *_complement(y), *x, *y))
            return (0 if x[0] >= 0 and y[0] >= 0 else -(2**width)), 2**width - 1
        case "shl" if 0 <= y[0] <= y[1] < 64:
            corners = [p << q for p in x for q in y]
            return min(corners), max(corners)
        case "shr" if y[0] >= 0:
            corners = [p >> q for p in x for q in y]
            return min(corners), max(corners)
    return None


def _complement(x: tuple[int, int]) -> tuple[int, int]:
    """The limits of -v - 1 for v within x, which has the opposite bits."""
    return -x[1] - 1, -x[0] - 1


def _of_common_bits(x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
    """The limits of v & w for v within x and w within y."""
    high = max(x[1], y[1]) if x[0] < 0 and y[0] < 0 else min(side[1] for side in (x, y) if side[0] >= 0)
    low = 0 if x[0] >= 0 or y[0] >= 0 else -(2 ** max((-x[0] - 1).bit_length(), (-y[0] - 1).bit_length()))
    return low, high


def _both(x: tuple[int, int] | None, y: tuple[int, int] | None) -> tuple[int, int] | None:
    """The limits of what is within both; (1, 0) if nothing is, and None stands for no limits."""
    if x is None or y is None:
        return x or y
    low, high = max(x[0], y[0]), min(x[1], y[1])
    return (low, high) if low <= high else (1, 0)


def _either(x: tuple[int, int] | None, y: tuple[int, int] | None) -> tuple[int, int] | None:
    """The limits of what is within one of both, in the same form."""
    if x is None or y is None:
        return None
    known = [limits for limits in (x, y) if limits[0] <= limits[1]]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else (1, 0)


def without_choices(expr: Expr, extents: Mapping[str, int]) -> Expr:
    """The expression without selects of integers whose condition always or never holds; else the same object.

    >>> index = Op("select", (Op("lt", (Var("i"), Const(0))), Const(9), Var("i")))
    >>> without_choices(index, {"i": 4}), without_choices(index, {}) is index
    (Var(name='i'), True)
    """

    known = Bounds(extents)

    def chosen(part: Expr) -> Expr:
        match part:
            case Op("select", (condition, yes, no)) if (decided := known.decided(condition)) is not None:
                return yes if decided else no
        return part

    return transform(expr, chosen)


def in_int32(expr: Expr, extents: Mapping[str, int]) -> Expr:
    """An int64 index expression in int32 without its conversions, if no part of it leaves int32; else the same
    object."""

    def without(part: Expr) -> Expr:
        if isinstance(part, Cast) and part.dtype in ("int32", "int64"):
            return part.arg
        return Const(part.value) if isinstance(part, Const) and part.dtype == "int64" else part

    if not any(isinstance(part, Cast) for part in walk(expr)):
        return expr
    plain = transform(expr, without)
    known = Bounds(extents)
    ranges = [known.of(part) for part in walk(plain)]
    return plain if all(f is not None and -(2**31) <= f[0] <= f[1] < 2**31 for f in ranges) else expr


def simplify(expr: Expr, extents: Mapping[str, int]) -> Expr:
    """An equal index expression with constants folded; `(t * 4 + j1) // 4` becomes t if j1 < 4.

    Args:
        expr: an index over loops.
        extents: of the loops, by name; loops that are left out may take any value.
    """
    operands = children(expr)
    if not operands:
        return expr
    expr = rebuild(expr, tuple([simplify(c, extents) for c in operands]))
    if isinstance(expr, Op) and any(isinstance(c, Const) and c.dtype == "int64" for c in expr.args):
        return expr  # arithmetic of values that an index reads, whose constants keep their width
    match expr:
        case Op("add", (a, b)):
            return add(a, b)
        case Op("sub", (a, Const(0))):
            return a
        case Op("mul", (a, Const(k))) | Op("mul", (Const(k), a)) if isinstance(k, int):
            return _times(a, k)
        case Op("floordiv", (a, Const(1))):
            return a
        case Op("floordiv", (a, Const(k))) if isinstance(k, int) and k > 0:
            whole, rest = _multiples(a, k)
            range_ = bounds(rest, extents)
            if range_ is not None and range_[0] >= 0 and range_[1] < k:
                return whole
        case Op("floormod", (a, Const(k))) if isinstance(k, int) and k > 0:
            _, rest = _multiples(a, k)
            range_ = bounds(rest, extents)
            if range_ is not None and range_[0] >= 0 and range_[1] < k:
                return rest
    return expr


def _times(expr: Expr, k: int) -> Expr:
    """expr * k with sums multiplied out, so that equal indices have the same form: `(s * 3 + t) * 4` is s * 12 + t *
    4."""
    match expr:
        case Op("add", (a, b)):
            return add(_times(a, k), _times(b, k))
        case Op("mul", (a, Const(c))) if isinstance(c, int):
            return mul(a, c * k)
    return mul(expr, k)


def _multiples(expr: Expr, k: int) -> tuple[Expr, Expr]:
    """(w, r) with expr = w * k + r; w has the terms with a constant factor that is a multiple of k."""
    match expr:
        case Op("add", (a, b)):
            (wa, ra), (wb, rb) = _multiples(a, k), _multiples(b, k)
            return add(wa, wb), add(ra, rb)
        case Op("mul", (a, Const(c))) if isinstance(c, int) and c % k == 0:
            return mul(a, c // k), Const(0)
        case Const(c) if isinstance(c, int):
            return Const(c // k), Const(c % k)
    return Const(0), expr
