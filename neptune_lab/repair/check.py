"""Checks a derived h numerically, independently of SymPy's simplifier: Eq. 3, Eq. 4 and the tag-updating property.

The points are seeded, so an answer never changes from run to run.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import compress
from typing import NoReturn

from sympy import Expr, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.column import Column, largest, maximum, total
from neptune_lab.repair.numeric import Values, close, compute
from neptune_lab.repair.points import Generator, sample, samples
from neptune_lab.repair.reducers import Reducer
from neptune_lab.repair.render import text

TRIALS = 64
TAGS = 6
FEWEST = 8  # finite samples, without which a check says nothing


@dataclass(frozen=True, slots=True)
class Model:
    """The functions of a repair term that are evaluated: f, g, g0 with its variable C = g_c(c), and h.

    `proved` is false for a user-supplied h that was accepted without a proof.
    """

    reducer: Reducer
    g: Expr
    g0: Expr
    g_c: Expr
    variable: Symbol
    h: Expr
    t: Symbol
    previous: tuple[Symbol, ...]
    current: tuple[Symbol, ...]
    inputs: tuple[Symbol, ...]
    constants: tuple[Symbol, ...]
    proved: bool = True

    def term(self, r: Values, c: Column, fixed: Values) -> Column:
        """g0(r, C)."""
        return compute(self.g0, {**r, **fixed, self.variable: c})

    def repair(self, t: Column | float, r: Values, r_now: Values, fixed: Values) -> Column:
        """h(t, r, r'), with r and r' both keyed by the symbols of r."""
        now = {self.current[i]: r_now[symbol] for i, symbol in enumerate(self.previous)}
        return compute(self.h, {**r, **now, **fixed, self.t: t})


@dataclass(frozen=True, slots=True)
class SamplePoints:
    """At most TRIALS random points: TAGS values of all but the constants (`fixed`) at each."""

    fixed: dict[Symbol, Column]
    inputs: tuple[dict[Symbol, Column], ...]
    c: tuple[Column, ...]
    r: tuple[dict[Symbol, Column], ...]

    @property
    def count(self) -> int:
        """How many points there are."""
        return len(self.c[0])


def draw(model: Model) -> SamplePoints:
    """Seeded random points of a model's domain, at which C is finite; RepairError if there are too few."""
    source = Generator()
    wide = 4 * TRIALS
    fixed = {symbol: sample(symbol, wide, source) for symbol in model.constants}
    drawn = {symbol: samples(symbol, TAGS, wide, source) for symbol in model.inputs}
    inputs = [{symbol: rows[row] for symbol, rows in drawn.items()} for row in range(TAGS)]
    c = [compute(model.g_c, {**fixed, **row}, wide) for row in inputs]
    good = [point for point, seen in enumerate(zip(*(row.finite for row in c), strict=True)) if all(seen)][:TRIALS]
    if len(good) < FEWEST:
        _refuse("prove Eq. 3", model, f"C = {text(model.g_c)} is not a finite number at the points that were tried")
    r = tuple({symbol: sample(symbol, len(good), source) for symbol in model.previous} for _ in range(TAGS))

    def kept(values: Mapping[Symbol, Column]) -> dict[Symbol, Column]:
        return {symbol: column.at(good) for symbol, column in values.items()}

    return SamplePoints(kept(fixed), tuple(map(kept, inputs)), tuple(row.at(good) for row in c), r)


def check(model: Model) -> tuple[str, ...]:
    """Checks a model at random points; the sentences say what was compared.

    Formal statement, at random points: g = g0(r, g_c(c)); h(g(r, c), r, r') = g(r', c); h(f(x, y)) = f(h(x), h(y));
    h(identity) = identity; and after a sequence of tags, t := f(h(t, r_prev, r), g(r, c)) equals the plain reduction
    with the last r (Def. 4.2).

    Raises:
        RepairError: two sides differ, or too few points have finite terms.
    """
    points = draw(model)
    old, new = points.r[0], points.r[1]
    term_old, term_new = ([model.term(r, c, points.fixed) for c in points.c] for r in (old, new))
    direct = Column.joined(compute(model.g, {**old, **inputs, **points.fixed}) for inputs in points.inputs)
    moved = [model.repair(term, old, new, points.fixed) for term in term_old]
    all_old, all_new = Column.joined(term_old), Column.joined(term_new)
    size = maximum(abs(all_old), abs(all_new))
    _compare(model, "separate", "g and g0", all_old, direct, size)
    _compare(model, "prove Eq. 3", "Eq. 3", Column.joined(moved), all_new, size)
    f = model.reducer.folded
    both = model.repair(f(term_old[0], term_old[1]), old, new, points.fixed)
    _compare(model, "prove Eq. 4", "Eq. 4", both, f(moved[0], moved[1]), abs(term_new[0]) + abs(term_new[1]))
    _check_identity(model, points)
    check_tag_updating(model, points)
    return (
        f"Eq. 3 and Eq. 4 hold at {points.count} random points",
        f"rolling over {TAGS} tags gives the plain reduction at {points.count} random points",
    )


def _check_identity(model: Model, points: SamplePoints) -> None:
    """h(identity of f) = identity, since the loop starts from it."""
    identity = float(model.reducer.identity)
    kept = model.repair(identity, points.r[0], points.r[1], points.fixed)
    # A NaN compares unequal, so it is refused too.
    other = next((value for value in kept if value != identity), None)
    if other is not None:
        _refuse(
            "prove Eq. 4",
            model,
            f"h does not keep the identity {text(model.reducer.identity)} that {model.reducer.name} starts from: it "
            f"becomes {other}",
            "a g whose terms take all real values keeps it",
        )


def check_tag_updating(model: Model, points: SamplePoints) -> None:
    """Checks that a reduction repaired at each tag equals that of the last tag's terms (paper, Definition 4.2).

    Raises:
        RepairError: step "prove Eq. 4": the two differ, or too few points have finite terms.
    """
    f = model.reducer.folded
    t = model.term(points.r[0], points.c[0], points.fixed)
    size = abs(t)
    for row in range(1, TAGS):
        moved = model.repair(t, points.r[row - 1], points.r[row], points.fixed)
        t = f(moved, model.term(points.r[row], points.c[row], points.fixed))
        size = largest([size, abs(moved), abs(t)])
    terms = [model.term(points.r[-1], c, points.fixed) for c in points.c]
    size = size + total([abs(term) for term in terms])
    _compare(model, "prove Eq. 4", "the rolled reduction", t, reduce(f, terms), size)


def _compare(model: Model, step: str, what: str, found: Column, expected: Column, scale: Column) -> None:
    # Points outside the domain of the term (a root of a negative input) say nothing about h.
    inside = list(map(operator.and_, expected.finite, scale.finite))
    if sum(inside) < FEWEST:
        _refuse(step, model, f"{what} could not be checked: the term is finite at too few of the points tried")
    if not all(compress(close(found, expected, scale), inside)):
        _refuse(step, model, f"{what} fails by numbers although it was derived: h = {text(model.h)}")


def _refuse(step: str, model: Model, message: str, help: str | None = None) -> NoReturn:
    raise RepairError(message, step=step, expression=text(model.h), help=help)
