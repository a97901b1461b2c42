"""Finds the singular points of g and h in a producer's value, and a regular value to replace it there.

Eq. 3 holds for every pair (r, r') of regular values, whether or not a producer ever takes them.  So over the reals, if
the producer is at a singular point p, a term may be computed with any fixed regular value s instead, and h(t, s, r')
repairs it to any r' (Def. 4.2).

In floats that is not enough: h(t, s, r') can overflow; and if the producer ends at p and g(p, c) is infinite or NaN,
the result must be so too.  So a program uses the replacement only if nothing needs a repair at p, and not in the last
iteration (`loop_schedule.singular_points`).  If g(p, c) is finite and only h cannot start from p (c*r at r = 0: all
terms are 0, and t = 0 contains no information about the inputs), a loop that ends at p needs one more h(t, s, p);
`Guard.final_repair` is true then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, compress
from typing import Any, cast

import sympy as sp
from sympy import Expr, Integer, Pow, Rational, S, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.check import Model, SamplePoints, draw
from neptune_lab.repair.column import Column
from neptune_lab.repair.functions import operation_of, pole
from neptune_lab.repair.invert import invert
from neptune_lab.repair.numeric import close, compute
from neptune_lab.repair.reducers import REDUCERS
from neptune_lab.repair.render import text

REPLACEMENTS = (S.Zero, S.One, S.NegativeOne, Integer(2), Integer(-2), Rational(1, 2), Rational(-1, 2))


@dataclass(frozen=True, slots=True)
class Guard:
    """A singular point of one producer.

    Attributes:
        producer: its name.
        point: the singular value of r, such as -oo or 0.
        replacement: a regular value to use instead, in g and in h.
        reason: why, in words.
        final_repair: g is finite at the point, so a loop that ends there needs one more h(t, replacement, point).
    """

    producer: str
    point: Expr
    replacement: Expr
    reason: str
    final_repair: bool

    def as_record(self) -> dict[str, Any]:
        """JSON form, expressions as text."""
        return {
            "producer": self.producer,
            "point": text(self.point),
            "stand_in": text(self.replacement),
            "reason": self.reason,
            "final_repair": self.final_repair,
        }


def reachable(guards: Iterable[Guard], producer_reducer: str) -> tuple[Guard, ...]:
    """The guards at points that a producer reaches with finite inputs, or with inputs masked by its identity: finite
    points, and its reducer's identity."""
    identity = REDUCERS[producer_reducer].identity
    return tuple(guard for guard in guards if guard.point == identity or guard.point.is_finite is not False)


def zeros(expr: Expr, producers: Sequence[Symbol], ignore: Sequence[Symbol] = ()) -> dict[Symbol, tuple[Expr, ...]]:
    """Finite values of each producer at which a denominator or a logarithm's argument in `expr` is 0.

    Denominators with a symbol of `ignore` (C or t) are left to the inverse.

    Raises:
        RepairError: step "guard": the zeros depend on several producers, or were not found.

    >>> r, s, eps = sp.symbols("r s", real=True) + (Symbol("eps", positive=True),)
    >>> zeros(1 / (r * (2*s - 1)), [r, s])
    {r: (0,), s: (1/2,)}
    >>> zeros(1 / (r**2 + eps), [r, s])
    {r: (), s: ()}
    >>> zeros(1 / (r - s), [r, s])
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: r - s can be 0 for many pairs of r and s, so no single value can be guarded
      help: ...
    """
    points: dict[Symbol, list[Expr]] = {symbol: [] for symbol in producers}
    for node in sp.preorder_traversal(expr):
        if isinstance(node, Pow) and node.exp.is_nonnegative is not True:
            bases = sp.Mul.make_args(node.base)
        else:
            row = operation_of(type(node))
            at = None if row is None else pole(row)
            if at is None:
                continue
            bases = sp.Mul.make_args(cast(Expr, node.args[0] - at))
        for base in bases:
            symbols = cast("set[Symbol]", base.free_symbols)
            mine = [symbol for symbol in producers if symbol in symbols]
            if mine and base.is_zero is not False and not symbols & set(ignore):
                points[mine[0]] += [p for p in _roots(cast(Expr, base), mine) if p not in points[mine[0]]]
    return {symbol: tuple(values) for symbol, values in points.items()}


def _roots(base: Expr, producers: list[Symbol]) -> list[Expr]:
    if len(producers) > 1:
        names = " and ".join(text(symbol) for symbol in producers)
        raise RepairError(
            f"{text(base)} can be 0 for many pairs of {names}, so no single value can be guarded",
            step="guard",
            expression=text(base),
            help=f"say what is known of {names}, so that {text(base)} cannot be 0",
        )
    symbol = producers[0]
    try:
        points = invert(base, symbol, S.Zero).branches
    except RepairError as error:
        raise RepairError(
            f"{text(base)} may be 0 somewhere, and where was not found: {error.reason}",
            step="guard",
            expression=text(base),
            help=f"say what is known of {text(symbol)}, so that {text(base)} cannot be 0",
        ) from error
    return [point for point in points if not excluded(point, symbol)]


def excluded(point: Expr, symbol: Symbol) -> bool:
    """Whether the symbol's assumptions exclude this value, which may be infinite.

    >>> excluded(S.Zero, Symbol("r", positive=True)), excluded(S.Infinity, Symbol("r", positive=True))
    (True, False)
    """
    gap = {
        "nonnegative": point.is_negative,
        "positive": point.is_nonpositive,
        "nonpositive": point.is_positive,
        "negative": point.is_nonnegative,
        "nonzero": point.is_zero,
        "integer": point.is_integer is False and point.is_finite,
    }
    ruled_out = any(getattr(symbol, f"is_{word}") and outside for word, outside in gap.items())
    return bool(ruled_out or point.is_extended_real is False or point.has(S.NaN, S.ComplexInfinity))


def _infinite_ends(symbol: Symbol, finite: bool) -> list[Expr]:
    if finite:
        return []
    low = [] if symbol.is_nonnegative else [S.NegativeInfinity]
    high = [] if symbol.is_nonpositive else [S.Infinity]
    return cast("list[Expr]", low + high)


@dataclass(frozen=True, slots=True)
class _Behaviour:
    g_finite: bool
    leaves: bool
    arrives: bool

    @property
    def regular(self) -> bool:
        return self.g_finite and self.leaves and self.arrives


def _behaviour(model: Model, symbol: Symbol, point: Expr, points: SamplePoints) -> _Behaviour:
    """Whether g and h are finite in IEEE arithmetic with a producer at the point, at random values of all else."""
    value = compute(point, points.fixed) if point.free_symbols else float(point)
    here = {**points.r[0], symbol: value}
    away = points.r[1]
    terms = [(model.term(here, c, points.fixed), model.term(away, c, points.fixed)) for c in points.c]
    at_point, at_away = (Column.joined(term) for term in zip(*terms, strict=True))
    left = Column.joined(model.repair(term, here, away, points.fixed) for _, term in terms)
    reached = Column.joined(model.repair(term, away, here, points.fixed) for _, term in terms)
    defined = at_away.finite

    def holds(each_point: list[bool]) -> bool:
        return all(compress(each_point, defined))

    g_finite, leaves, arrives = holds(at_point.finite), holds(left.finite), holds(reached.finite)
    # A wrong h is wrong everywhere, so it is only required to stay finite.
    if g_finite and model.proved:
        carried = Column.joined(model.repair(term, here, away, points.fixed) for term, _ in terms)
        leaves = leaves and holds(close(carried, at_away, abs(at_away)))
        arrives = arrives and holds(close(reached, at_point, abs(at_away)))
    return _Behaviour(g_finite, leaves, arrives)


def regular_value(model: Model, symbol: Symbol, taken: Sequence[Expr], points: SamplePoints | None = None) -> Expr:
    """The simplest value of a producer at which g and h are finite for every regular input."""
    points = draw(model) if points is None else points
    for value in REPLACEMENTS:
        if value in taken or excluded(value, symbol):
            continue
        if _behaviour(model, symbol, value, points).regular:
            return value
    raise RepairError(
        f"no value of {text(symbol)} was found at which g and h are finite",
        step="guard",
        expression=text(model.h),
        help=f"say what is known of {text(symbol)}",
    )


def find_guards(
    model: Model, known_zeros: Mapping[Symbol, Sequence[Expr]], finite: Sequence[Symbol] = ()
) -> tuple[tuple[Guard, ...], tuple[Expr, ...]]:
    """Guards of all producers, and one regular value of each.

    Candidates are the ends of the domain (unless the producer is in `finite`), 0, and `known_zeros`.
    """
    points = draw(model)
    guards: list[Guard] = []
    regular: list[Expr] = []
    for symbol in model.previous:
        candidates = [*_infinite_ends(symbol, symbol in finite), *dict.fromkeys([S.Zero, *known_zeros.get(symbol, ())])]
        singular = {
            point: behaviour
            for point in candidates
            if not excluded(point, symbol)
            for behaviour in (_behaviour(model, symbol, point, points),)
            if not behaviour.regular
        }
        replacement = regular_value(model, symbol, tuple(singular), points)
        regular.append(replacement)
        guards += [_guard(symbol, point, replacement, behaviour) for point, behaviour in singular.items()]
    return tuple(guards), tuple(regular)


def _guard(symbol: Symbol, point: Expr, replacement: Expr, behaviour: _Behaviour) -> Guard:
    where = f"{text(symbol)} = {text(point)}"
    last = behaviour.g_finite and behaviour.arrives
    if not behaviour.g_finite:
        reason = f"g is not finite at {where}"
    else:
        reason = f"g is finite at {where}, but h cannot start from it: what was accumulated there is lost"
        if last:
            reason += f"; if the loop ends there, apply h(t, {text(replacement)}, {text(point)}) once more"
    return Guard(symbol.name, point, replacement, reason, last)


def initial_values(model: Model, regular: Sequence[Expr]) -> tuple[tuple[str, str, Expr | None], ...]:
    """The value of each producer before the first tag, for each reducer that it may have.

    None if h keeps f's identity when the previous r is that reducer's identity (exp(-oo - r')*0 = 0), else a regular
    value.  Two producers may both start from identities; if h keeps f's identity for each alone but not for both
    (-oo + oo), both get regular values.

    Returns:
        (producer, reducer, value) for each pair.
    """
    points = draw(model)
    starts = [(symbol, name) for symbol in model.previous for name in REDUCERS]
    clean = {start for start in starts if _starts_clean(model, [start], points)}
    together = {
        pair: _starts_clean(model, pair, points)
        for pair in combinations(sorted(clean, key=starts.index), 2)
        if pair[0][0] != pair[1][0]
    }
    conflicting = {start for pair, good in together.items() if not good for start in pair}
    instead = dict(zip(model.previous, regular, strict=True))
    return tuple(
        (symbol.name, name, None if (symbol, name) in clean - conflicting else instead[symbol])
        for symbol, name in starts
    )


def _starts_clean(model: Model, starts: Sequence[tuple[Symbol, str]], points: SamplePoints) -> bool:
    """Whether h keeps f's identity when these producers' previous values are their reducers' identities."""
    identity = float(model.reducer.identity)
    before = {**points.r[0], **{symbol: float(REDUCERS[name].identity) for symbol, name in starts}}
    return all(kept == identity for kept in model.repair(identity, before, points.r[1], points.fixed))
