"""The exact range of an index that is computed of positions, also with floats, such as a bucket of a logarithm."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

import numpy as np

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op, Var
from neptune_lab.loop_ir.positions import COMPARISONS
from neptune_lab.loop_ir.walks import transform, variables, walk
from neptune_lab.scalar_ops import NUMPY, OPERATIONS

# Positions that are enumerated.
LIMIT = 2**22
_DISTANCE = "distance"


def range_of(index: Expr, conditions: tuple[Expr, ...], extents: Mapping[str, int]) -> tuple[int, int] | None:
    """The least and the greatest value of an index at the positions where conditions hold, computed in float32.

    A kernel may round a function in another way, so the read keeps its guard; but a table that is too short is found.
    Where the index depends on the difference of two variables only, the differences are enumerated.

    Args:
        index: an index without reads.
        conditions: those under which it is computed.
        extents: the number of values of each variable, from 0 on.

    Returns:
        None if there are more than `LIMIT` positions or none at all, or if a variable has no extent.

    >>> distance = Cast("float32", Op("abs", (Op("sub", (Var("i"), Var("j"))),)))
    >>> range_of(Cast("int32", Op("sqrt", (distance,))), (), {"i": 9001, "j": 10_000})
    (0, 99)
    """
    used = variables(index).union(*map(variables, conditions))
    if not used <= extents.keys():
        return None
    ranges = {name: (0, extents[name]) for name in sorted(used)}
    for pair in {e.args for e in walk(index) if isinstance(e, Op) and e.name == "sub"}:
        match pair:
            case (Var(first), Var(second)) if first != second and _DISTANCE not in ranges:
                parts = [_by_distance(e, first, second) for e in (index, *conditions)]
                if not {first, second} & set().union(*map(variables, parts)):
                    index, *rest = parts
                    conditions = tuple(rest)
                    ranges[_DISTANCE] = 1 - ranges.pop(second)[1], ranges.pop(first)[1]
    return _range(index, conditions, tuple(ranges.items()))


def _by_distance(expr: Expr, first: str, second: str) -> Expr:
    """The expression with one variable for `first - second`."""

    def replaced(part: Expr) -> Expr:
        match part:
            case Op("sub", (Var(a), Var(b))) if (a, b) == (first, second):
                return Var(_DISTANCE)
            case Op("sub", (Var(a), Var(b))) if (b, a) == (first, second):
                return Op("neg", (Var(_DISTANCE),))
            case Op(name, (Var(a), Var(b))) if name in COMPARISONS and (a, b) == (first, second):
                return Op(name, (Var(_DISTANCE), Const(0)))
            case Op(name, (Var(a), Var(b))) if name in COMPARISONS and (b, a) == (first, second):
                return Op(name, (Const(0), Var(_DISTANCE)))
        return part

    return transform(expr, replaced)


@lru_cache(maxsize=256)
def _range(
    index: Expr, conditions: tuple[Expr, ...], ranges: tuple[tuple[str, tuple[int, int]], ...]
) -> tuple[int, int] | None:
    shape = tuple(end - start for _, (start, end) in ranges)
    if prod(shape) > LIMIT:
        return None
    env = {
        name: np.arange(start, end).reshape([-1 if n == axis else 1 for n in range(len(shape))])
        for axis, (name, (start, end)) in enumerate(ranges)
    }
    with np.errstate(all="ignore"):
        try:
            holds = np.ones(shape, bool)
            for condition in conditions:
                holds = holds & _evaluate(condition, env)
            values = np.broadcast_to(_evaluate(index, env), shape)[holds]
        except KeyError:
            return None
    return (int(values.min()), int(values.max())) if values.size else None


def _evaluate(expr: Expr, env: Mapping[str, np.ndarray]) -> np.ndarray:
    match expr:
        case Const(value):
            return np.asarray(value, np.float32) if isinstance(value, float) else np.asarray(value)
        case Var(name):
            return env[name]
        case Cast(dtype, arg):
            kept = "float32" if "float" in dtype and dtype != "float64" else dtype
            return np.asarray(_evaluate(arg, env)).astype(kept)
        case Op(name, args) if name in OPERATIONS:
            return np.asarray(NUMPY[name](*(_evaluate(arg, env) for arg in args)))
    raise KeyError(type(expr).__name__)


__all__ = ["range_of"]
