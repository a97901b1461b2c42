"""Positions that are counted from the start of a packed sequence, for mods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neptune_lab.operators.scalar import Scalar, apply


class Relative(Scalar):
    """A value x = whole - count * start, where `start` is where a query's packed sequence starts.

    Comparisons of two such values of one count are those of `whole`, in which no start is left, so that they are
    functions of positions alone.  For a query and a key of different sequences, whose starts differ, the comparison may
    have another result; a packed mask hides these.

        q - start <= kv - start - 5   ⇒   q <= kv - 5

    Args:
        value: x, as for `Scalar`.
        whole: x in terms of the positions in the packed tensor, as an integer `Scalar`.
        count: how often x has the start subtracted: 1 for a position, 0 for a difference of two.
    """

    __slots__ = ("_made", "count", "whole")

    def __init__(self, value: Any, whole: Scalar, count: int) -> None:
        super().__init__(value)
        self._made = value
        self.whole = whole
        self.count = count

    @property
    def changed(self) -> bool:
        """Whether a function such as `add_` has put another value in place of the one that `whole` belongs to."""
        return self.value is not self._made

    def __add__(self, other: Any) -> Scalar:
        return _sum("add", self, other)

    def __radd__(self, other: Any) -> Scalar:
        return _sum("add", other, self)

    def __sub__(self, other: Any) -> Scalar:
        return _sum("sub", self, other)

    def __rsub__(self, other: Any) -> Scalar:
        return _sum("sub", other, self)

    def __neg__(self) -> Scalar:
        return _sum("sub", 0, self)

    def __abs__(self) -> Scalar:
        plain = apply("abs", self)
        return plain if self.count or self.changed else Relative(plain.value, apply("abs", self.whole), 0)

    abs = __abs__


def _parts(x: Any) -> tuple[Any, int] | None:
    """`whole` and `count` of an operand; None if it is no integer."""
    if isinstance(x, Relative) and not x.changed:
        return x.whole, x.count
    whole_number = isinstance(x, int) and not isinstance(x, bool)
    return (x, 0) if whole_number or (isinstance(x, Scalar) and x.kind == "int") else None


def _sum(name: str, a: Any, b: Any) -> Scalar:
    """a + b or a - b."""
    plain = apply(name, a, b)
    first, second = _parts(a), _parts(b)
    if first is None or second is None or not isinstance(plain, Scalar):
        return plain
    count = first[1] + second[1] if name == "add" else first[1] - second[1]
    return Relative(plain.value, apply(name, first[0], second[0]), count)


def _compared(name: str, a: Relative, b: Any) -> Scalar:
    """A comparison, by name."""
    first, second = _parts(a), _parts(b)
    if first is None or second is None or first[1] != second[1]:
        return apply(name, a, b)
    return apply(name, first[0], second[0])


def _comparison(name: str) -> Callable[[Any, Any], Scalar]:
    return lambda a, b: _compared(name, a, b)


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Relative, f"__{_name}__", _comparison(_name))


__all__ = ["Relative"]
