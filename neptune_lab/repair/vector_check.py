"""Checks a vector repair numerically, and finds the singular points of its producer; without a simplifier.

The counterpart of `check.py` and `guard.py` for several sums that are carried together.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import compress
from typing import NoReturn, TypeAlias

import sympy as sp
from sympy import Expr, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.check import FEWEST, TAGS, TRIALS
from neptune_lab.repair.column import Column, largest, maximum, total
from neptune_lab.repair.guard import REPLACEMENTS, Guard, excluded
from neptune_lab.repair.numeric import Values, close, compute_all
from neptune_lab.repair.points import Generator, sample, samples
from neptune_lab.repair.reducers import REDUCERS
from neptune_lab.repair.render import text

Vector: TypeAlias = Sequence[Column]
Matrix: TypeAlias = Sequence[Vector]
"""Rows."""


@dataclass(frozen=True, slots=True)
class VectorModel:
    """The functions of a vector repair that are evaluated: the components over r and the inputs, A over r and r'."""

    components: tuple[Expr, ...]
    matrix: sp.ImmutableMatrix
    previous: Symbol
    current: Symbol
    inputs: tuple[Symbol, ...]
    constants: tuple[Symbol, ...]

    def terms(self, r: Column | float, c: Values, fixed: Values) -> Vector:
        """All components at r and c."""
        return compute_all(self.components, {self.previous: r, **c, **fixed}, TRIALS)

    def transport(self, r: Column | float, r_now: Column | float, fixed: Values) -> Matrix:
        """A(r, r')."""
        return matrix_at(self.matrix, {self.previous: r, self.current: r_now, **fixed}, TRIALS)


def matrix_at(matrix: sp.ImmutableMatrix, at: Values, count: int | None = None) -> Matrix:
    """The entries of a square matrix at each point."""
    entries, size = compute_all(matrix.flat(), at, count), matrix.rows
    return [entries[start : start + size] for start in range(0, size * size, size)]


def applied(matrix: Matrix, vector: Vector) -> Vector:
    """A times T at every point; an entry 0 of A also removes values that are not finite."""
    return [total([_product(a, t) for a, t in zip(row, vector, strict=True)]) for row in matrix]


def _product(entry: Column, value: Column) -> Column:
    return Column(a * t if a else 0.0 for a, t in zip(entry, value, strict=True))


@dataclass(frozen=True, slots=True)
class Points:
    """Seeded random points: TAGS values of r and of each input at each of TRIALS points, and one of the constants."""

    r: tuple[Column, ...]
    c: tuple[dict[Symbol, Column], ...]
    fixed: dict[Symbol, Column]

    @staticmethod
    def of(model: VectorModel) -> Points:
        """Points of the model's domain."""
        draw = Generator()
        fixed = {symbol: sample(symbol, TRIALS, draw) for symbol in model.constants}
        inputs = tuple({symbol: sample(symbol, TRIALS, draw) for symbol in model.inputs} for _ in range(TAGS))
        return Points(samples(model.previous, TAGS, TRIALS, draw), inputs, fixed)


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
    both, scale = _matrix_product(second, first), _matrix_product(_sizes(second), _sizes(first))
    direct = model.transport(old, last, points.fixed)
    _compare(model, "A(r', r'') A(r, r') = A(r, r'')", _flat(both), _flat(direct), _flat(scale))
    carried, (size,) = here, _sizes([here])
    for row in range(1, TAGS):
        step = model.transport(points.r[row - 1], points.r[row], points.fixed)
        size = list(map(maximum, size, _size(step, carried)))
        carried = _sum(applied(step, carried), model.terms(points.r[row], points.c[row], points.fixed))
    plain = [model.terms(points.r[-1], c, points.fixed) for c in points.c]
    size = reduce(_sum, _sizes(plain), size)
    _compare(model, "the rolled sums", carried, reduce(_sum, plain), size)
    return (
        f"A(r, r') G(r, c) = G(r', c) and A(r', r'') A(r, r') = A(r, r'') hold at {TRIALS} random points",
        f"rolling over {TAGS} tags gives the plain sums at {TRIALS} random points",
    )


def _size(matrix: Matrix, vector: Vector) -> Vector:
    """The largest number that goes into A times T."""
    return [largest([abs(a * t) for a, t in zip(row, vector, strict=True)]) for row in matrix]


def _sizes(matrix: Matrix) -> list[Vector]:
    return [[abs(entry) for entry in row] for row in matrix]


def _sum(x: Vector, y: Vector) -> Vector:
    return [a + b for a, b in zip(x, y, strict=True)]


def _matrix_product(left: Matrix, right: Matrix) -> Matrix:
    columns = list(zip(*right, strict=True))
    return [[total([a * b for a, b in zip(row, column, strict=True)]) for column in columns] for row in left]


def _flat(matrix: Matrix) -> Vector:
    return [entry for row in matrix for entry in row]


def _compare(model: VectorModel, what: str, found: Vector, expected: Vector, scale: Vector) -> None:
    whole, size = Column.joined(expected), Column.joined(scale)
    inside = list(map(operator.and_, whole.finite, size.finite))
    if sum(inside) < FEWEST:
        _refuse(model, f"{what} could not be checked: the term is finite at too few of the points tried")
    if not all(compress(close(Column.joined(found), whole, size), inside)):
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
    here, away = Column.full(TRIALS, float(value)), points.r[0]
    at, there = (model.terms(r, points.c[0], points.fixed) for r in (here, away))
    leaves, arrives = model.transport(here, away, points.fixed), model.transport(away, here, points.fixed)
    defined = _finite(there)
    if not all(all(compress(_finite(columns), defined)) for columns in (at, _flat(leaves), _flat(arrives))):
        return False

    def moves(matrix: Matrix, start: Vector, end: Vector) -> bool:
        pairs = zip(applied(matrix, start), end, _size(matrix, start), strict=True)
        return all(all(compress(close(found, wanted, size), defined)) for found, wanted, size in pairs)

    return moves(leaves, at, there) and moves(arrives, there, at)


def _finite(columns: Vector) -> list[bool]:
    """Whether all values of a point are finite."""
    return [all(seen) for seen in zip(*(column.finite for column in columns), strict=True)]


def _regular_start(model: VectorModel, identity: Expr, points: Points) -> bool:
    """Whether A is finite from the identity of the producer's own reducer, so that sums of 0 stay 0."""
    return all(_finite(_flat(model.transport(float(identity), points.r[0], points.fixed))))


def _guard(model: VectorModel, point: Expr, replacement: Expr, points: Points) -> Guard:
    at = model.terms(float(point), points.c[0], points.fixed)[0]
    finite = all(at.finite)
    where = f"{text(model.previous)} = {text(point)}"
    reason = f"the family is not finite at {where}"
    if finite:
        reason += (
            f", though the term is: a loop that ends there would need one more A({text(replacement)}, {text(point)})"
        )
    return Guard(model.previous.name, point, replacement, reason, finite)
