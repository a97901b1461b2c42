"""Whether a term has one value whatever a producer or all other inputs are: exact comparisons at random points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neptune_lab.loop_ir.nodes import Expr, Op, Program
from neptune_lab.loop_ir.reduction import IDENTITIES
from neptune_lab.loop_ir.walks import transform
from neptune_lab.loop_to_repair.evaluate import POINTS, Array, compute, draw, draw_leaves, generator

_TRIALS = 3


@dataclass(frozen=True, slots=True)
class ConstantTerm:
    """A term that does not change with a producer.

    Args:
        is_identity: the term is the identity of its reducer, or not finite.
        differs_at_point: with the producer at the singular point itself, the term has another value at some points.
        differs_unguarded: with the producer at the singular point and all guards removed, it has another value at all.
    """

    is_identity: bool
    differs_at_point: bool
    differs_unguarded: bool = True


def constant_term(
    program: Program,
    reducer: str,
    term: Expr,
    known: Mapping[Expr, float | bool],
    replacements: Mapping[Expr, float],
    point: float,
) -> ConstantTerm | None:
    """Whether a term does not change with a producer, at random values of all else.

    Formal statement: where the nodes `known` have their values, the term has exactly the same value with the reads of
    the producer at their replacements and at any other value; or it is finite at none of them, so the whole result is
    not finite either.

    Args:
        program: where the reads of the term come from; their ranges and dtypes are computed from it.
        reducer: of the reduction that folds the term, such as "sum".
        term: as scalar loop IR.
        known: values of some of its nodes.
        replacements: a regular value for each read of the producer.
        point: the producer's singular value.

    Returns:
        The facts, or None if the term changes with the producer.
    """
    rng = generator()
    fixed = _at_all_points(known)
    reads = [node for node in replacements if node not in known]
    leaves = draw_leaves(program, term, {*fixed, *reads}, rng)

    def at(values: Mapping[Expr, Array]) -> Array:
        return _broadcast(compute(term, {**leaves, **fixed, **values}))

    def at_unguarded(values: Mapping[Expr, Array]) -> Array:
        nodes = {transform(node, _unguarded): value for node, value in {**leaves, **fixed, **values}.items()}
        return _broadcast(compute(transform(term, _unguarded), nodes))

    regular = at({node: np.full((2, POINTS), replacements[node]) for node in reads})
    is_identity, finite = regular == IDENTITIES[reducer], np.isfinite(regular)
    for _ in range(_TRIALS):
        other = at({node: draw(program, node, rng) for node in reads})
        if not np.all((regular == other) | ~(is_identity | finite | np.isfinite(other))):
            return None
    singular = {node: np.full((2, POINTS), point) for node in reads}
    return ConstantTerm(
        bool(np.all(is_identity | ~finite)),
        bool(np.any(at(singular) != regular)),
        bool(np.all(at_unguarded(singular) != regular)),
    )


def is_always_nan(program: Program, term: Expr, known: Mapping[Expr, float | bool]) -> bool:
    """Whether the term is NaN where the nodes `known` have these values, at random values of all else."""
    return bool(np.isnan(_at_random(program, term, known)).all())


def becomes_nan(program: Program, term: Expr, known: Mapping[Expr, float]) -> bool:
    """Whether the term is NaN where the nodes `known` have these values, and a number at others, for some of all else.

    Args:
        program: where the reads of the term come from.
        term: as scalar loop IR.
        known: values of some of its nodes.
    """
    rng = generator()
    leaves = draw_leaves(program, term, known, rng)
    others = {node: draw(program, node, rng) for node in known}
    at_point = compute(term, {**leaves, **_at_all_points(known)})
    return bool(np.any(np.isnan(at_point) & ~np.isnan(compute(term, {**leaves, **others}))))


def is_always(program: Program, term: Expr, known: Mapping[Expr, float], value: float) -> bool:
    """Whether the term is `value` where the nodes `known` have these values, at random values of all else."""
    return bool((_at_random(program, term, known) == value).all())


def _at_random(program: Program, term: Expr, known: Mapping[Expr, float | bool]) -> Array:
    leaves = draw_leaves(program, term, known, generator())
    return compute(term, {**leaves, **_at_all_points(known)})


def same_where_finite(
    program: Program, value: Expr, guarded: Mapping[Expr, float], unguarded: Mapping[Expr, float]
) -> bool:
    """Whether an expression with its guards, and the same one without them, are equal or both not finite.

    Args:
        program: where its reads come from.
        value: the expression.
        guarded, unguarded: values of nodes in the first and in the second; all other inputs are random.
    """
    leaves = draw_leaves(program, value, {*guarded, *unguarded}, generator())

    def at(expr: Expr, values: Mapping[Expr, float]) -> Array:
        return _broadcast(compute(expr, {**leaves, **_at_all_points(values)}))

    a, b = at(value, guarded), at(transform(value, _unguarded), unguarded)
    return bool(np.all(np.where(np.isfinite(b), a == b, ~np.isfinite(a))))


def _at_all_points(values: Mapping[Expr, float | bool]) -> dict[Expr, Array]:
    return {node: np.full((2, POINTS), value) for node, value in values.items()}


def _broadcast(values: Array) -> Array:
    return np.broadcast_to(values, (2, POINTS)).astype(np.float64)


def _unguarded(e: Expr) -> Expr:
    return e.args[0] if isinstance(e, Op) and e.name == "guard" else e
