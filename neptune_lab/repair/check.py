"""Checks a derived h numerically, independently of SymPy's simplifier: Eq. 3, Eq. 4 and the tag-updating property.

The points are seeded, so an answer never changes from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from sympy import Expr, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.numeric import Array, close, compute, generator, sample
from neptune_lab.repair.reducers import Reducer
from neptune_lab.repair.render import text

TRIALS = 64
TAGS = 6
_FEWEST = 8


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

    def term(self, r: dict[Symbol, Any], c: Array, fixed: dict[Symbol, Any]) -> Array:
        """g0(r, C)."""
        return compute(self.g0, {**r, **fixed, self.variable: c})

    def repair(self, t: Any, r: dict[Symbol, Any], r_now: dict[Symbol, Any], fixed: dict[Symbol, Any]) -> Array:
        """h(t, r, r'), with r and r' both keyed by the symbols of r."""
        now = {self.current[i]: r_now[symbol] for i, symbol in enumerate(self.previous)}
        return compute(self.h, {**r, **now, **fixed, self.t: t})


@dataclass(frozen=True, slots=True)
class SamplePoints:
    """Random points: at most TRIALS columns, and TAGS rows of all but the constants (`fixed`)."""

    fixed: dict[Symbol, Array]
    inputs: dict[Symbol, Array]
    c: Array
    r: tuple[dict[Symbol, Array], ...]


def draw(model: Model) -> SamplePoints:
    """Seeded random points of a model's domain, at which C is finite; RepairError if there are too few."""
    rng = generator()
    wide = 4 * TRIALS
    fixed = {symbol: sample(symbol, (wide,), rng) for symbol in model.constants}
    inputs = {symbol: sample(symbol, (TAGS, wide), rng) for symbol in model.inputs}
    c = np.broadcast_to(compute(model.g_c, {**inputs, **fixed}), (TAGS, wide))
    good = np.flatnonzero(np.isfinite(c).all(axis=0))[:TRIALS]
    if len(good) < _FEWEST:
        _refuse("prove Eq. 3", model, f"C = {text(model.g_c)} is not a finite number at the points that were tried")
    r = tuple({symbol: sample(symbol, (len(good),), rng) for symbol in model.previous} for _ in range(TAGS))
    return SamplePoints(
        {symbol: values[good] for symbol, values in fixed.items()},
        {symbol: values[:, good] for symbol, values in inputs.items()},
        c[:, good],
        r,
    )


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
    term_old, term_new = (model.term(r, points.c, points.fixed) for r in (old, new))
    direct = compute(model.g, {**old, **points.inputs, **points.fixed})
    size = np.maximum(np.abs(term_old), np.abs(term_new))
    _compare(model, "separate", "g and g0", term_old, np.broadcast_to(direct, term_old.shape), size)
    _compare(model, "prove Eq. 3", "Eq. 3", model.repair(term_old, old, new, points.fixed), term_new, size)
    f = model.reducer.ufunc
    both = model.repair(f(term_old[0], term_old[1]), old, new, points.fixed)
    each = f(*(model.repair(term_old[row], old, new, points.fixed) for row in (0, 1)))
    _compare(model, "prove Eq. 4", "Eq. 4", both, each, np.abs(term_new[0]) + np.abs(term_new[1]))
    _check_identity(model, points)
    check_tag_updating(model, points)
    return (
        f"Eq. 3 and Eq. 4 hold at {points.c.shape[1]} random points",
        f"rolling over {TAGS} tags gives the plain reduction at {points.c.shape[1]} random points",
    )


def _check_identity(model: Model, points: SamplePoints) -> None:
    """h(identity of f) = identity, since the loop starts from it."""
    identity = float(model.reducer.identity)
    kept = model.repair(np.full(points.c.shape[1], identity), points.r[0], points.r[1], points.fixed)
    # A NaN compares unequal, so it is refused too.
    if not np.all(kept == identity):
        other = kept[kept != identity][0]
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
    f = model.reducer.ufunc
    t = model.term(points.r[0], points.c[0], points.fixed)
    size = np.abs(t)
    for row in range(1, TAGS):
        moved = model.repair(t, points.r[row - 1], points.r[row], points.fixed)
        t = f(moved, model.term(points.r[row], points.c[row], points.fixed))
        size = np.maximum(size, np.maximum(np.abs(moved), np.abs(t)))
    terms = model.term(points.r[-1], points.c, points.fixed)
    _compare(model, "prove Eq. 4", "the rolled reduction", t, f.reduce(terms, axis=0), size + np.abs(terms).sum(axis=0))


def _compare(model: Model, step: str, what: str, found: Array, expected: Array, scale: Array) -> None:
    # Points outside the domain of the term (a root of a negative input) say nothing about h.
    inside = np.isfinite(expected) & np.isfinite(scale)
    if inside.sum() < _FEWEST:
        _refuse(step, model, f"{what} could not be checked: the term is finite at too few of the points tried")
    if not np.all(close(found, expected, scale)[inside]):
        _refuse(step, model, f"{what} fails by numbers although it was derived: h = {text(model.h)}")


def _refuse(step: str, model: Model, message: str, help: str | None = None) -> NoReturn:
    raise RepairError(message, step=step, expression=text(model.h), help=help)
