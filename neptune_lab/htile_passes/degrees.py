"""How values of a kernel depend on a scale: the power of the scale that they are proportional to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from typing import TypeAlias

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import subexpressions, values_by_tensor
from neptune_lab.strict.dtypes import FLOATS

# The powers of the numbers that scales hold, by the number's number; `ANY` of 0, which is every power times 0.
Degree: TypeAlias = "frozenset[tuple[int, Fraction]] | str"
ANY, ZERO = "any", frozenset[tuple[int, Fraction]]()


def scales_of(every: Iterable[ir.Store], chip: Collection[str]) -> frozenset[str]:
    """The tiles that are maxima of magnitudes, also along a loop, or such a maximum with another number for some.

    A number in place of 0 or an infinity counts as a scale too: only positive finite scales are asked about.

    Args:
        every: the stores of a kernel.
        chip: names of the tiles on chip.
    """
    values = {name: given for name, given in values_by_tensor(every).items() if name in chip}
    found = set(values)
    while True:
        left = {name for name in found if all(_is_scale(value, found) for value in values[name])}
        if left == found:
            break
        found = left
    inside = {name: [e for value in values[name] for e in subexpressions(value)] for name in found}
    magnitudes = [e for every in inside.values() for e in every if isinstance(e, ir.Elementwise) and e.op == "abs"]
    if any(isinstance(e, ir.Access) and e.tensor in found for one in magnitudes for e in subexpressions(one)):
        return frozenset()
    # What only minus infinity starts is none.
    known = {name for name in found if any(e in magnitudes for e in inside[name])}
    while more := {
        name for name in found - known if any(isinstance(e, ir.Access) and e.tensor in known for e in inside[name])
    }:
        known |= more
    return frozenset(known)


def _is_scale(expr: ir.TileExpr, scales: Collection[str]) -> bool:
    match expr:
        case ir.Access(tensor=name):
            return name in scales
        case ir.Literal(value=value, dtype="float32"):
            return value == float("-inf")
        case ir.Elementwise(op="abs"):
            return True
        case ir.Elementwise(op="max", args=args):
            return all(_is_scale(arg, scales) for arg in args)
        case ir.Elementwise(op="where", args=(condition, a, b)) if selects_other(condition, scales):
            positive = isinstance(a, ir.Literal) and 0 < a.value < float("inf")
            return _is_scale(b, scales) and (positive or _is_scale(a, scales))
        case ir.Elementwise(op="where", args=(condition, a, b)):
            apart = not any(isinstance(e, ir.Access) for e in subexpressions(condition))
            return apart and _is_scale(a, scales) and _is_scale(b, scales)
        case ir.Reduce(op="max", arg=arg):
            return _is_scale(arg, scales)
        case _:
            return False


def selects_other(condition: ir.TileExpr, scales: Collection[str]) -> bool:
    """Whether a condition is false for every positive finite scale: it compares one with 0 or an infinity."""
    match condition:
        case ir.Elementwise(op="eq", args=(ir.Access(tensor=name), ir.Literal(value=value))):
            return name in scales and (value == 0 or value in (float("inf"), float("-inf")))
        case _:
            return False


def degree_of(body: Sequence[ir.Stmt], value: ir.TileExpr, scales: frozenset[str]) -> Degree | None:
    """The degree of a value after the statements of a kernel: the power of each number that a scale holds, for positive
    finite ones; `ANY` of 0; None if the value, or one before it, is not such powers times a number without scales.

    Formal statement.  Each store to a scale makes a new number m, unless the value is another scale, whose number it
    then shares.  Values are followed through the statements.  A loop is followed until an iteration leaves what the one
    before it left, up to the names of the numbers: so by induction it does after every iteration.
    """
    try:
        followed = _Followed(scales)
        followed.body(body)
        return followed.of(value)
    except _NoDegree:
        return None


# Of a tile whose degree is not known after a loop.
_LOST = "lost"


class _NoDegree(Exception):
    """A value that is no power of the scales times another number."""


# Iterations of a loop that are followed: tiles that it carries begin as 0, which has every degree.
_FOLLOWED = 4


class _Followed:
    def __init__(self, scales: frozenset[str]) -> None:
        self.scales = scales
        self.numbers: dict[str, int] = {}
        self.tiles: dict[str, Degree] = {}
        self.count = 0

    def body(self, body: Sequence[ir.Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, ir.Store):
                self.store(stmt)
            else:
                self.loop(stmt)

    def loop(self, loop: ir.For) -> None:
        before: dict[str, object] = {}
        for n in range(_FOLLOWED):
            self.body(loop.body)
            self.forget()
            if n and self.named() == before:
                return
            before = self.named()
        raise _NoDegree

    def forget(self) -> None:
        """Drops the degrees of tiles with powers of numbers that no scale holds any more."""
        held = set(self.numbers.values())
        for name, degree in self.tiles.items():
            if not isinstance(degree, str) and any(n not in held for n, _ in degree):
                self.tiles[name] = _LOST

    def store(self, store: ir.Store) -> None:
        name = store.target.tensor
        if name in self.scales:
            other = self.chosen(store.value)
            if isinstance(other, ir.Access) and other.tensor in self.numbers:
                self.numbers[name] = self.numbers[other.tensor]
            else:
                self.count += 1
                self.numbers[name] = self.count
        else:
            self.tiles[name] = self.of(store.value)

    def chosen(self, expr: ir.TileExpr) -> ir.TileExpr:
        """What a value is for positive finite scales."""
        match expr:
            case ir.Elementwise(op="where", args=(condition, _, other)) if selects_other(condition, self.scales):
                return self.chosen(other)
            case _:
                return expr

    def named(self) -> dict[str, object]:
        """The degrees of tiles, with the scales that hold each number in place of it."""
        holders = {n: tuple(sorted(k for k, m in self.numbers.items() if m == n)) for n in self.numbers.values()}
        return {
            name: degree if isinstance(degree, str) else frozenset((holders[n], power) for n, power in degree)
            for name, degree in self.tiles.items()
        }

    def of(self, expr: ir.TileExpr) -> Degree:
        """The degree of a value.

        Raises:
            _NoDegree: it has none.
        """
        match self.chosen(expr):
            case ir.Access(tensor=name):
                if name in self.scales:
                    return frozenset([(self.numbers[name], Fraction(1))])
                if (degree := self.tiles.get(name, ZERO)) == _LOST:
                    raise _NoDegree
                return degree
            case ir.Literal(value=value):
                return ANY if value == 0 else ZERO
            case ir.Elementwise(op="where", args=(condition, a, b)):
                if self.of(condition) not in (ZERO, ANY):
                    raise _NoDegree
                return _common_degree(self.of(a), self.of(b))
            case ir.Elementwise(op="mul", args=(a, b)):
                return _product(self.of(a), self.of(b), 1)
            case ir.Elementwise(op="div" | "div_rn", args=(a, b)):
                return _product(self.of(a), self.of(b), -1)
            case ir.Elementwise(op="add" | "sub", args=(a, b)):
                return _common_degree(self.of(a), self.of(b))
            case ir.Elementwise(op="sqrt" | "sqrt_rn", args=(arg,)):
                degree = self.of(arg)
                return degree if isinstance(degree, str) else frozenset((n, power / 2) for n, power in degree)
            case ir.Reduce(op="sum", arg=arg):
                return self.of(arg)
            case ir.Cast(arg=arg, dtype=dtype) if dtype in FLOATS:
                return self.of(arg)
            case ir.Scalar() | ir.Iota():
                return ZERO
            case ir.Elementwise(args=args) if all(self.of(arg) in (ZERO, ANY) for arg in args):
                return ZERO
            case _:
                raise _NoDegree


def _common_degree(a: Degree, b: Degree) -> Degree:
    if a in (ANY, b):
        return b
    if b == ANY:
        return a
    raise _NoDegree


def _product(a: Degree, b: Degree, sign: int) -> Degree:
    if isinstance(a, str):
        return ANY
    if isinstance(b, str):
        if sign < 0:
            raise _NoDegree
        return ANY
    powers = dict(a)
    for n, power in b:
        powers[n] = powers.get(n, Fraction(0)) + sign * power
    return frozenset((n, power) for n, power in powers.items() if power)


__all__ = ["ANY", "ZERO", "degree_of", "scales_of", "selects_other"]
