"""Whether a block has written all elements that another one reads, for each value of the loops around both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from neptune_lab.hashed import Hashed, hash_once
from neptune_lab.loop_ir.iteration_domain import Extents, always, connected, digits_of, in_digits, points
from neptune_lab.loop_ir.nodes import Const, Expr, Op, Var, add, mul
from neptune_lab.loop_ir.reach import Sum, as_sum, upper_limit, without_gaps
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.simplify import bounds, simplify
from neptune_lab.loop_ir.walks import substitute as put
from neptune_lab.loop_ir.walks import variables


@hash_once
@dataclass(frozen=True, slots=True)
class Side(Hashed):
    """An access: its indices and predicates over the loops around it."""

    indices: tuple[Expr, ...]
    predicates: tuple[Expr, ...]
    loops: Extents


@lru_cache(maxsize=8192)
def uncovered(wanted: Side, written: Side, shared: frozenset[str]) -> str | None:
    """Which positions of a read are not written, in words; None if there are none.

    Formal statement: for each value of the `shared` loops, all positions of `wanted` are among those of `written`.
    Dimensions that share no loop are checked separately: by their steps along the shared loops and their ranges inside
    these, or point by point.
    """
    if wanted.indices == written.indices and set(written.predicates) <= set(wanted.predicates):
        used = set().union(*(variables(e) for e in (*written.indices, *written.predicates)))
        there, here = dict(written.loops), dict(wanted.loops)
        if all(v in here and v in there and here[v] <= there[v] for v in used):
            return None
    extents = {**dict(written.loops), **dict(wanted.loops)}
    clash = {v for v, n in written.loops if v not in shared and v in dict(wanted.loops)}
    theirs = _renamed(written, clash)
    extents |= {f"{v}'": n for v, n in written.loops if v in clash}
    mine = [_short(e, extents) for e in wanted.indices]
    others = [_short(e, extents) for e in theirs.indices]
    p = [e for e in (_short(x, extents) for x in wanted.predicates) if not always(e, extents)]
    q = [e for e in (_short(x, extents) for x in theirs.predicates) if not always(e, extents)]
    wide = {v: n for v, n in extents.items() if n > 1}
    digits, extents = digits_of([*mine, *others, *p, *q], wide)
    mine, others, p, q = ([simplify(in_digits(e, digits), extents) for e in part] for part in (mine, others, p, q))
    shared = frozenset(name for v in shared for name in ([d for d, _, _ in digits[v]] if v in digits else [v]))
    count = len(mine)
    for numbers, _, _ in connected(_pairs(mine, others), [*p, *q]):
        if not numbers:
            continue
        dims = [n for n in numbers if n < count]
        names = set().union(*(variables(x) for n in dims for x in (mine[n], others[n])))
        reading, writing = _touching(p, names), _touching(q, names)
        if len(dims) == 1 and _line_covers(mine[dims[0]], others[dims[0]], reading, writing, shared, extents):
            continue
        missing = _points_missing([mine[n] for n in dims], [others[n] for n in dims], reading, writing, shared, extents)
        if missing is not None:
            return f"{missing} (dimension {', '.join(map(str, dims))})"
    return None


def _short(expr: Expr, extents: dict[str, int]) -> Expr:
    return simplify(put(expr, {v: Const(0) for v, n in extents.items() if n == 1}), extents)


def _renamed(side: Side, clash: set[str]) -> Side:
    env: dict[str, Expr] = {v: Var(f"{v}'") for v in clash}
    return Side(tuple(put(e, env) for e in side.indices), tuple(put(e, env) for e in side.predicates), side.loops)


def _pairs(mine: list[Expr], others: list[Expr]) -> list[Expr]:
    """One expression per dimension, with the variables of both sides."""
    return [Op("add", (a, b)) for a, b in zip(mine, others, strict=True)]


def _touching(predicates: Iterable[Expr], names: set[str]) -> list[Expr]:
    """The predicates that share variables with `names`, directly or through other predicates."""
    left, touching, grown = list(predicates), [], True
    names = set(names)
    while grown:
        grown = False
        for predicate in list(left):
            if variables(predicate) & names:
                left.remove(predicate)
                touching.append(predicate)
                names |= variables(predicate)
                grown = True
    return touching


def _line_covers(
    mine: Expr, other: Expr, reading: list[Expr], writing: list[Expr], shared: frozenset[str], extents: dict[str, int]
) -> bool:
    """Formal statement: mine = s + a and other = s + b, with s over shared loops, b over loops of the writer alone and
    without gaps, and the range of a inside the range of b.  Bounds on the writes bound only `other`, and the reads are
    below them."""
    a, b = as_sum(mine), as_sum(other)
    if a is None or b is None:
        return False
    along = Sum(tuple((name, k) for name, k in b.terms if name in shared), 0)
    if any(a.factor(name) != k for name, k in along.terms):
        return False
    reads, inside = a.plus(along, -1), b.plus(along, -1)
    theirs, span = without_gaps(inside, extents), bounds(_expr(reads), extents)
    if theirs is None or span is None:
        return False
    limits = [_limit(p, b) for p in writing]
    if None in limits:
        return False
    least = min((x for x in limits if x is not None), default=None)
    own = [x for p in reading if (x := _limit(p, a)) is not None]
    whole = bounds(mine, extents)
    below = least is None or (whole is not None and whole[1] < least) or (bool(own) and min(own) <= least)
    cut = min(span[1], min(own) - 1) if own and not along.terms else span[1]
    return below and theirs.low <= span[0] and cut <= theirs.high


def _limit(predicate: Expr, value: Sum) -> int | None:
    """c if the predicate is `value < c`; None if it is another one."""
    limit = upper_limit(predicate)
    if limit is None or (difference := limit[0].plus(value, -1)).terms:
        return None
    return limit[1] - difference.constant


def _expr(form: Sum) -> Expr:
    result: Expr = Const(form.constant)
    for name, k in form.terms:
        result = add(result, mul(Var(name), k))
    return result


def _points_missing(
    mine: list[Expr],
    others: list[Expr],
    reading: list[Expr],
    writing: list[Expr],
    shared: frozenset[str],
    extents: dict[str, int],
) -> str | None:
    """As `uncovered`, point by point."""
    text = ", ".join(expression(e) for e in mine)
    wanted_names = set().union(*(variables(e) for e in (*mine, *reading)))
    written_names = set().union(*(variables(e) for e in (*others, *writing)))
    both = sorted((wanted_names & written_names & shared) | ((wanted_names | written_names) & shared))
    keys: list[Expr] = [Var(name) for name in both]
    sizes = {name: extents[name] for name in both}
    a = points([*keys, *mine], reading, {**sizes, **{n: extents[n] for n in sorted(wanted_names - shared)}})
    b = points([*keys, *others], writing, {**sizes, **{n: extents[n] for n in sorted(written_names - shared)}})
    if a is None or b is None:
        return f"it cannot be shown that {text} is among {', '.join(expression(e) for e in others)}"
    if not len(a):
        return None
    low = np.minimum(a.min(axis=0), b.min(axis=0)) if len(b) else a.min(axis=0)
    high = np.maximum(a.max(axis=0), b.max(axis=0)) if len(b) else a.max(axis=0)
    spans = [int(x) for x in high - low + 1]
    if prod(spans) >= 1 << 62:
        return f"it cannot be shown that {text} is written"
    steps = np.array([prod(spans[n + 1 :]) for n in range(len(spans))], np.int64)
    codes_a, codes_b = (a - low) @ steps, (b - low) @ steps if len(b) else np.zeros(0, np.int64)
    absent = a[~np.isin(codes_a, codes_b)]
    if not len(absent):
        return None
    at = absent[:, len(keys) :]
    spread = ", ".join(
        f"{int(x)}" if x == y else f"{int(x)} to {int(y)}" for x, y in zip(at.min(axis=0), at.max(axis=0), strict=True)
    )
    return f"{text} takes {spread} there"


__all__ = ["Side", "uncovered"]
