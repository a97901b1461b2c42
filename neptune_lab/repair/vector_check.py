"""Checks a vector repair numerically, and finds the singular points of its producer; in NumPy, without a simplifier.

The counterpart of `check.py` and `guard.py` for several sums that are carried together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import sympy as sp
from sympy import Expr, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.check import TAGS, TRIALS
from neptune_lab.repair.guard import REPLACEMENTS, Guard, excluded
from neptune_lab.repair.numeric import Array, close, compute_all, generator, sample
from neptune_lab.repair.reducers import REDUCERS
from neptune_lab.repair.render import text

_FEWEST = 8


@dataclass(frozen=True, slots=True)
class VectorModel:
    """The functions of a vector repair that are evaluated: the components over r and the inputs, A over r and r'."""

    components: tuple[Expr, ...]
    matrix: sp.ImmutableMatrix
    previous: Symbol
    current: Symbol
    inputs: tuple[Symbol, ...]
    constants: tuple[Symbol, ...]

    def terms(self, r: Array, c: dict[Symbol, Array], fixed: dict[Symbol, Array]) -> Array:
        """All components at r and c: an array (components, ...)."""
        return np.stack(compute_all(self.components, {self.previous: r, **c, **fixed}))

    def transport(self, r: Any, r_now: Any, fixed: dict[Symbol, Array]) -> Array:
        """A(r, r'): an array (components, components, ...)."""
        size = len(self.components)
        entries = compute_all(self.matrix.flat(), {self.previous: r, self.current: r_now, **fixed})
        return np.stack(entries).reshape(size, size, *entries[0].shape)


def applied(matrix: Array, vector: Array) -> Array:
    """A times T at every point; an entry 0 of A also removes values that are not finite."""
    with np.errstate(all="ignore"):
        products = np.where(matrix == 0, 0.0, matrix * vector[None])
        return products.sum(axis=1)


@dataclass(frozen=True, slots=True)
class Points:
    """Seeded random points: TAGS rows of r and of each input over TRIALS columns; constants have columns only."""

    r: Array
    c: tuple[dict[Symbol, Array], ...]
    fixed: dict[Symbol, Array]

    @staticmethod
    def of(model: VectorModel) -> Points:
        """Points of the model's domain."""
        rng = generator()
        fixed = {symbol: sample(symbol, (TRIALS,), rng) for symbol in model.constants}
        rows = [{symbol: sample(symbol, (TRIALS,), rng) for symbol in model.inputs} for _ in range(TAGS)]
        return Points(sample(model.previous, (TAGS, TRIALS), rng), tuple(rows), fixed)


def check_vector(model: VectorModel) -> tuple[str, ...]:
    """Checks a model at random points; the sentences say what was compared.

    Formal statement, at random points: A(r, r') G(r, c) = G(r', c); A(r', r'') A(r, r') = A(r, r''); and after a
    sequence of tags, T := A(r_prev, r) T + G(r, c) equals the plain sums of G at the last r.
    """
    points = Points.of(model)
    old, new, last = points.r[0], points.r[1], points.r[2]
    here = model.terms(old, points.c[0], points.fixed)
    there = model.terms(new, points.c[0], points.fixed)
    first, second = model.transport(old, new, points.fixed), model.transport(new, last, points.fixed)
    _compare(model, "A(r, r') G(r, c) = G(r', c)", applied(first, here), there, _size(first, here))
    both = np.einsum("ij...,jk...->ik...", second, first)
    scale = np.einsum("ij...,jk...->ik...", np.abs(second), np.abs(first))
    direct = model.transport(old, last, points.fixed)
    _compare(model, "A(r', r'') A(r, r') = A(r, r'')", both, direct, scale)
    carried, size = here, np.abs(here)
    for row in range(1, TAGS):
        step = model.transport(points.r[row - 1], points.r[row], points.fixed)
        size = np.maximum(size, _size(step, carried))
        carried = applied(step, carried) + model.terms(points.r[row], points.c[row], points.fixed)
    plain = np.stack([model.terms(points.r[-1], c, points.fixed) for c in points.c])
    _compare(model, "the rolled sums", carried, plain.sum(axis=0), size + np.abs(plain).sum(axis=0))
    return (
        f"A(r, r') G(r, c) = G(r', c) and A(r', r'') A(r, r') = A(r, r'') hold at {TRIALS} random points",
        f"rolling over {TAGS} tags gives the plain sums at {TRIALS} random points",
    )


def _size(matrix: Array, vector: Array) -> Array:
    """The largest number that goes into A times T."""
    with np.errstate(all="ignore"):
        return np.abs(matrix * vector[None]).max(axis=1)


def _compare(model: VectorModel, what: str, found: Array, expected: Array, scale: Array) -> None:
    inside = np.isfinite(expected) & np.isfinite(scale)
    if inside.sum() < _FEWEST:
        _refuse(model, f"{what} could not be checked: the term is finite at too few of the points tried")
    if not np.all(close(found, expected, scale)[inside]):
        _refuse(model, f"{what} fails by numbers although it was derived")


def _refuse(model: VectorModel, message: str, help: str | None = None) -> NoReturn:
    raise RepairError(message, step="prove Eq. 3", expression=text(model.components[0]), help=help)


def find_vector_guards(
    model: VectorModel, candidates: Sequence[Expr]
) -> tuple[tuple[Guard, ...], tuple[tuple[str, Expr | None], ...]]:
    """Guards at those candidate points at which the components or A are not finite; and for each reducer that the
    producer may have, its previous value before the first tag, or None if the reducer's identity can be used.

    Any regular value is a correct replacement: the sums may be taken at any reference value, and A moves them to any
    other (see `guard.py`).

    Raises:
        RepairError: no regular value was found.
    """
    points = Points.of(model)
    replacement = next(
        (value for value in REPLACEMENTS if not excluded(value, model.previous) and _regular(model, value, points)),
        None,
    )
    if replacement is None:
        name = text(model.previous)
        _refuse(model, f"no value of {name} was found at which the family is finite", f"say what is known of {name}")
    guards = tuple(
        _guard(model, point, replacement, points)
        for point in candidates
        if not excluded(point, model.previous) and not _regular(model, point, points)
    )
    starts = tuple(
        (name, None if _regular_start(model, reducer.identity, points) else replacement)
        for name, reducer in REDUCERS.items()
    )
    return guards, starts


def _regular(model: VectorModel, value: Expr, points: Points) -> bool:
    """Whether the components are finite at the value, and A moves them correctly from it and to it."""
    here, away = np.full(TRIALS, float(value)), points.r[0]
    at, there = (model.terms(r, points.c[0], points.fixed) for r in (here, away))
    leaves, arrives = model.transport(here, away, points.fixed), model.transport(away, here, points.fixed)
    defined = np.isfinite(there).all(axis=0)
    if not all(np.isfinite(x)[..., defined].all() for x in (at, leaves, arrives)):
        return False
    back, forth = applied(leaves, at), applied(arrives, there)
    return bool(
        close(back, there, _size(leaves, at))[:, defined].all()
        and close(forth, at, _size(arrives, there))[:, defined].all()
    )


def _regular_start(model: VectorModel, identity: Expr, points: Points) -> bool:
    """Whether A is finite from the identity of the producer's own reducer, so that sums of 0 stay 0."""
    entries = model.transport(np.full(TRIALS, float(identity)), points.r[0], points.fixed)
    return bool(np.isfinite(entries).all())


def _guard(model: VectorModel, point: Expr, replacement: Expr, points: Points) -> Guard:
    at = model.terms(np.full(TRIALS, float(point)), points.c[0], points.fixed)[0]
    finite = bool(np.isfinite(at).all())
    where = f"{text(model.previous)} = {text(point)}"
    reason = f"the family is not finite at {where}"
    if finite:
        reason += (
            f", though the term is: a loop that ends there would need one more A({text(replacement)}, {text(point)})"
        )
    return Guard(model.previous.name, point, replacement, reason, finite)
