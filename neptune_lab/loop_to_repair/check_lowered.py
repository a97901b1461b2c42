"""Checks a lowered repair numerically, without SymPy.

`repair.check` computes the algebra's own expressions.  Here the loop IR is computed: g as the definition has it, and h
as the scalar expression that a primitive is about to store.  Only this check finds a mistake in the lowering itself: a
symbol taken for another, a wrong bracket, the wrong branch of a root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.nodes import Expr, Program
from neptune_lab.loop_ir.reduction import IDENTITIES
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.sign import range_of
from neptune_lab.loop_to_repair.evaluate import POINTS, UFUNCS, Array, compute, draw_leaves, generator, sample

_FEWEST = 8
_TOLERANCE = 1e-9
_DERIVE = "leave repair= out, and h is derived; a derived h that fails here is a mistake of the compiler"


@dataclass(frozen=True, slots=True)
class ProducerNodes:
    """The reads of one producer: in the term g, and its previous and current value in h."""

    term: Expr
    previous: Expr
    current: Expr


def check_lowered(
    program: Program,
    reducer: str,
    term: Expr,
    h: Expr,
    carried: Expr,
    producers: Sequence[ProducerNodes],
    constants: Sequence[Expr] = (),
) -> str:
    """Refuses an h that does not satisfy Eqs. 3 and 4; else says what was compared.

    Formal statement, at random points in float64: h(g(r, c), r, r') = g(r', c);
    h(f(x, y), r, r') = f(h(x, r, r'), h(y, r, r')) for terms x and y; h(identity of f, r, r') is that identity.

    Args:
        program: where the reads of the term come from; their ranges and dtypes are computed from it.
        reducer: f, "sum", "prod", "max", "min", "any" or "all".
        term: g as scalar loop IR, with the pointwise stages between it and the producers inlined.
        h: the lowered repair; any nodes may represent `carried` and the producers' two values, as long as they differ.
        carried: the node for t in h.
        producers: the reads of the producers, in the term and in h.
        constants: the reads of the term that have one value for a whole reduction, which h may read too.

    Raises:
        RepairError: step "prove Eq. 3" or "prove Eq. 4", with a point at which it fails.
    """
    f = UFUNCS[reducer]
    rng = generator()
    old, new = ([sample(range_of(program, p.term), (POINTS,), rng) for p in producers] for _ in range(2))
    leaves = draw_leaves(program, term, {p.term for p in producers}, rng)
    leaves |= {leaf: np.broadcast_to(leaves[leaf][:1], leaves[leaf].shape) for leaf in constants}
    before = compute(term, leaves | {p.term: r for p, r in zip(producers, old, strict=True)})
    after = compute(term, leaves | {p.term: r for p, r in zip(producers, new, strict=True)})
    before, after = np.broadcast_to(before, (2, POINTS)), np.broadcast_to(after, (2, POINTS))
    around = {p.previous: r for p, r in zip(producers, old, strict=True)}
    around |= {p.current: r for p, r in zip(producers, new, strict=True)}
    # Constants that h reads (a scalar input such as eps) have the values that the term was computed with.
    around |= {leaf: value[0] for leaf, value in leaves.items() if np.ndim(value) == 2}

    def repair(t: Array) -> Array:
        return np.broadcast_to(compute(h, around | {carried: t}), np.shape(t))

    points = around | {p.term: r for p, r in zip(producers, new, strict=True)}
    _compare("Eq. 3", h, repair(before), after, np.abs(before.astype(float)) + np.abs(after), points)
    size = np.abs(after.astype(float)).sum(axis=0)
    both, each = repair(f(before[0], before[1])), f(repair(before[0]), repair(before[1]))
    _compare("Eq. 4", h, both, each, size, points)
    identity = IDENTITIES[reducer]
    kept = repair(np.full(POINTS, identity))
    if not np.all(kept == identity):
        raise RepairError(
            f"h as written does not keep {identity}, which {reducer} starts from: it becomes "
            f"{kept[kept != identity][0]}",
            step="prove Eq. 4",
            expression=expression(h),
            help=_DERIVE,
        )
    return f"as written, h satisfies Eq. 3, Eq. 4 and keeps the identity at {POINTS} random points"


def _compare(equation: str, h: Expr, found: Array, expected: Array, scale: Array, points: Mapping[Expr, Array]) -> None:
    """Refuses h if two sides of an equation differ by more than rounding, relative to `scale`."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    # If the term itself is not finite (a root of a negative input), h has nothing to keep.
    inside = np.isfinite(expected) & np.isfinite(scale)
    if inside.sum() < _FEWEST:
        raise RepairError(
            f"{equation} could not be checked on h as written: the term is finite at too few points",
            step=f"prove {equation}",
            expression=expression(h),
            help="bound the argument of the root, logarithm or quotient in the definition, so that the term is finite",
        )
    with np.errstate(all="ignore"):
        right = np.abs(found - expected) <= _TOLERANCE * np.maximum(scale, 1.0)
    wrong = np.argwhere(inside & ~right)
    if len(wrong):
        at = tuple(wrong[0])
        where = ", ".join(f"{expression(node)} = {np.ravel(value)[at[-1]]:.6g}" for node, value in points.items())
        raise RepairError(
            f"{equation} fails for h as written: found {found[at]:.6g}, expected {expected[at]:.6g}, at {where}",
            step=f"prove {equation}",
            expression=expression(h),
            help=_DERIVE,
        )
