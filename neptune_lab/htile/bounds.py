"""Intervals of index expressions, which show whether a tile can reach past the end of its tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias, assert_never

from neptune_lab.errors import TileError
from neptune_lab.htile.nodes import Arith, For, IndexExpr, Int, Kernel, Name
from neptune_lab.htile.walk import arith


@dataclass(frozen=True, slots=True)
class Interval:
    """All integers from `lo` to `hi`, both included."""

    lo: int
    hi: int


Env: TypeAlias = Mapping[str, Interval]


def grid_env(kernel: Kernel) -> dict[str, Interval]:
    """The interval of each grid variable of `kernel`."""
    return {axis.var: Interval(0, axis.extent - 1) for axis in kernel.grid}


def loop_interval(loop: For, env: Env) -> Interval:
    """The values that the variable of `loop` takes, over all values of the variables around it.

    For a loop that never runs it holds the lower bound, so that no interval is empty.
    """
    lo = interval(loop.start, env).lo
    return Interval(lo, max(lo, interval(loop.stop, env).hi - 1))


def interval(expr: IndexExpr, env: Env) -> Interval:
    """An interval that holds every value of `expr`; exact if each variable occurs once.

    Raises:
        TileError: a variable is not in `env`, or a divisor may be 0 or negative.

    >>> interval(Arith("+", Arith("*", Name("i0"), Int(128)), Int(3)), {"i0": Interval(0, 1)})
    Interval(lo=3, hi=131)
    """
    match expr:
        case Int(value=value):
            return Interval(value, value)
        case Name(name=name):
            if name not in env:
                raise TileError(f"index variable {name!r} is not bound here; bound are {', '.join(env) or 'none'}")
            return env[name]
        case Arith(op="%", a=a, b=b):
            return _modulo(interval(a, env), interval(b, env))
        case Arith(op="//", b=b) if not _is_positive(interval(b, env)):
            raise TileError(f"cannot bound a division by {interval(b, env)}: the divisor must be positive")
        case Arith(op=op, a=a, b=b):
            x, y = interval(a, env), interval(b, env)
            corners = [arith(op, p, q) for p, q in product((x.lo, x.hi), (y.lo, y.hi))]
            return Interval(min(corners), max(corners))
        case _:
            assert_never(expr)


def _is_positive(divisor: Interval) -> bool:
    return divisor.lo > 0


def _modulo(a: Interval, b: Interval) -> Interval:
    if not _is_positive(b):
        raise TileError(f"cannot bound a remainder by {b}: the divisor must be positive")
    if b.lo == b.hi and a.lo // b.lo == a.hi // b.lo:
        return Interval(a.lo % b.lo, a.hi % b.lo)
    return Interval(0, b.hi - 1)
