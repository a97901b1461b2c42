"""Intervals of tiles of integers that are computed from positions, which show whether a gather leaves its tensor."""

from __future__ import annotations

from collections.abc import Callable

from neptune_lab.htile.bounds import Env, Interval, interval
from neptune_lab.htile.nodes import Elementwise, Iota, Literal, Scalar, Slice, TileExpr
from neptune_lab.strict.values import INT32_MAX

INT32 = Interval(-INT32_MAX - 1, INT32_MAX)


def tile_interval(expr: TileExpr, env: Env, lanes: Callable[[int], int] = lambda extent: extent) -> Interval | None:
    """An interval that holds every element of a tile of int32.

    Formal statement: an element of a sum, difference or product of tiles is that of one element of each, so it lies
    between the sums, differences or products of their ends, if none of these leaves int32; and of elements from 0 on,
    the quotients by a positive number lie between those of the ends, and remainders below the number.

    Args:
        expr: the tile.
        env: the intervals of all index variables.
        lanes: by extent of a dimension, the lanes that are computed; more than the extent where it is padded.

    Returns:
        None if it is not known: the tile depends on values of tensors, or may leave int32.

    >>> from neptune_lab.htile.nodes import Int, Name, NewAxis
    >>> rows = Iota((Slice(Name("i0"), 64, "i"), NewAxis()))
    >>> columns = Iota((NewAxis(), Slice(Int(0), 32, "j")))
    >>> tile_interval(Elementwise("sub", (rows, columns), "int32"), {"i0": Interval(0, 192)})
    Interval(lo=-31, hi=255)
    >>> [tile_interval(Elementwise(op, (rows, Literal(48, "int32")), "int32"), {"i0": Interval(0, 192)})
    ...  for op in ("floordiv", "floormod")]
    [Interval(lo=0, hi=5), Interval(lo=0, hi=47)]
    """
    match expr:
        case Literal(value=int(value), dtype="int32") if not isinstance(value, bool):
            return Interval(value, value)
        case Scalar(value=value):
            return _in_int32(interval(value, env))
        case Iota(index=index):
            (part,) = (part for part in index if isinstance(part, Slice))
            start = interval(part.start, env)
            return _in_int32(Interval(start.lo, start.hi + lanes(part.extent) - 1))
        case Elementwise(op="add" | "sub" | "mul" as op, args=(first, second), dtype="int32"):
            a, b = tile_interval(first, env, lanes), tile_interval(second, env, lanes)
            return None if a is None or b is None else _in_int32(_interval_of_operation(op, a, b))
        case Elementwise(
            op="floordiv" | "floormod" as op, args=(first, Literal(value=int(by), dtype="int32")), dtype="int32"
        ) if by > 0:
            a = tile_interval(first, env, lanes)
            if a is None or a.lo < 0:
                return None
            return Interval(a.lo // by, a.hi // by) if op == "floordiv" else Interval(0, min(a.hi, by - 1))
        case _:
            return None


def _interval_of_operation(op: str, a: Interval, b: Interval) -> Interval:
    match op:
        case "add":
            return Interval(a.lo + b.lo, a.hi + b.hi)
        case "sub":
            return Interval(a.lo - b.hi, a.hi - b.lo)
        case _:
            corners = [p * q for p in (a.lo, a.hi) for q in (b.lo, b.hi)]
            return Interval(min(corners), max(corners))


def _in_int32(found: Interval) -> Interval | None:
    return found if INT32.lo <= found.lo and found.hi <= INT32.hi else None


__all__ = ["tile_interval"]
