"""Check a repair as it is written into the program, by numbers and without SymPy.

`repair.check` computes the algebra's own expressions.  Here the loop IR is computed: g as the definition has it, and h
as the scalar expression that a primitive is about to store.  A slip on the way from one to the other (a symbol taken
for another, a wrong bracket, a branch of a root) shows here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Previous, Program, Var, transform
from neptune_lab.loop_ir.reduction import IDENTITIES, OPERATORS
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.sign import ValueRange, range_of
from neptune_lab.scalar_ops import NUMPY

Array = npt.NDArray[Any]

_SEED = 5081
_POINTS = 64
_FEWEST = 8
_TRIALS = 3
_TOLERANCE = 1e-9
_WRITTEN = "leave repair= out, and h is derived; a derived h that fails here is a mistake of the compiler"

UFUNCS: dict[str, np.ufunc] = {reducer: NUMPY[name] for reducer, name in OPERATORS.items()}


@dataclass(frozen=True, slots=True)
class Places:
    """Where one producer stands: its read in the term, and its previous and current value in h."""

    term: Expr
    previous: Expr
    current: Expr


def check_written(
    program: Program, reducer: str, term: Expr, h: Expr, carried: Expr, producers: Sequence[Places]
) -> str:
    """Refuse an h that does not do what Eqs. 3 and 4 ask of it; else say what was compared.

    Formal statement, at random points in float64: h(g(r, c), r, r') = g(r', c);
    h(f(x, y), r, r') = f(h(x, r, r'), h(y, r, r')) for terms x and y; h(identity of f, r, r') is that identity.

    Args:
        program: where the reads of the term come from; their ranges and dtypes are read off it.
        reducer: f, "sum", "prod", "max", "min", "any" or "all".
        term: g as scalar loop IR, with the maps in between written out.
        h: the repair as written; any nodes may stand for `carried` and the producers' two values, as long as they are
            different ones.
        carried: what stands for t in h.
        producers: the reads of the producers, in the term and in h.

    Raises:
        RepairError: step "prove Eq. 3" or "prove Eq. 4", with a point where it fails.
    """
    f = UFUNCS[reducer]
    rng = np.random.default_rng(_SEED)
    old, new = ([_sample(range_of(program, p.term), (_POINTS,), rng) for p in producers] for _ in range(2))
    leaves = {leaf: _draw(program, leaf, rng) for leaf in _leaves(term, {p.term for p in producers})}
    before = compute(term, leaves | {p.term: r for p, r in zip(producers, old, strict=True)})
    after = compute(term, leaves | {p.term: r for p, r in zip(producers, new, strict=True)})
    before, after = np.broadcast_to(before, (2, _POINTS)), np.broadcast_to(after, (2, _POINTS))
    around = {p.previous: r for p, r in zip(producers, old, strict=True)}
    around |= {p.current: r for p, r in zip(producers, new, strict=True)}
    # Constants that h reads (a scalar input such as eps) have the values that the term was computed with.
    around |= {leaf: value[0] for leaf, value in leaves.items() if np.ndim(value) == 2}

    def repair(t: Array) -> Array:
        return np.broadcast_to(compute(h, around | {carried: t}), np.shape(t))

    points = around | {p.term: r for p, r in zip(producers, new, strict=True)}
    _agree("prove Eq. 3", "Eq. 3", h, repair(before), after, np.abs(before.astype(float)) + np.abs(after), points)
    size = np.abs(after.astype(float)).sum(axis=0)
    both, each = repair(f(before[0], before[1])), f(repair(before[0]), repair(before[1]))
    _agree("prove Eq. 4", "Eq. 4", h, both, each, size, points)
    identity = IDENTITIES[reducer]
    kept = repair(np.full(_POINTS, identity))
    if not np.all(kept == identity):
        found = kept[kept != identity][0]
        raise RepairError(
            f"h as written does not keep {identity}, which {reducer} starts from: it becomes {found}",
            step="prove Eq. 4",
            expression=expression(h),
            help=_WRITTEN,
        )
    return f"as written, h satisfies Eq. 3, Eq. 4 and keeps the identity at {_POINTS} random points"


@dataclass(frozen=True, slots=True)
class Still:
    """A term that does not move with a producer.

    Args:
        identity: it is the identity of its reducer, or not finite. hidden: at the singular point itself it is another;
            plainly: and so it is whatever all else is, with no guard in it.
    """

    identity: bool
    hidden: bool
    plainly: bool = True


def stands_still(
    program: Program,
    reducer: str,
    term: Expr,
    known: Mapping[Expr, float | bool],
    stand_ins: Mapping[Expr, float],
    point: float,
) -> Still | None:
    """Whether the term has the same value, exactly, with the reads of a producer at their stand-ins and at any other
    value, where the nodes `known` have these values; or is finite at none of them, which spoils the whole result.

    All else is drawn at random.  None: it moves.
    """
    rng = np.random.default_rng(_SEED)
    given = {node: np.full((2, _POINTS), value) for node, value in known.items()}
    reads = [node for node in stand_ins if node not in known]
    leaves = {leaf: _draw(program, leaf, rng) for leaf in _leaves(term, {*given, *reads})}

    def at(values: Mapping[Expr, Array]) -> Array:
        return np.broadcast_to(compute(term, {**leaves, **given, **values}), (2, _POINTS)).astype(np.float64)

    def at_unguarded(values: Mapping[Expr, Array]) -> Array:
        every = {transform(node, _unguarded): value for node, value in {**leaves, **given, **values}.items()}
        return np.broadcast_to(compute(transform(term, _unguarded), every), (2, _POINTS)).astype(np.float64)

    found = at({node: np.full((2, _POINTS), stand_ins[node]) for node in reads})
    vanished, finite = found == IDENTITIES[reducer], np.isfinite(found)
    for _ in range(_TRIALS):
        other = at({node: _draw(program, node, rng) for node in reads})
        if not np.all((found == other) | ~(vanished | finite | np.isfinite(other))):
            return None
    end = {node: np.full((2, _POINTS), point) for node in reads}
    hidden, plainly = at(end) != found, at_unguarded(end) != found
    return Still(bool(np.all(vanished | ~finite)), bool(np.any(hidden)), bool(np.all(plainly)))


def is_never_a_number(program: Program, term: Expr, known: Mapping[Expr, float | bool]) -> bool:
    """Whether the term is NaN where the nodes `known` have these values, at random values of all else."""
    rng = np.random.default_rng(_SEED)
    given = {node: np.full((2, _POINTS), value) for node, value in known.items()}
    leaves = {leaf: _draw(program, leaf, rng) for leaf in _leaves(term, {*given})}
    return bool(np.isnan(compute(term, {**leaves, **given})).all())


def is_always(program: Program, term: Expr, known: Mapping[Expr, float], value: float) -> bool:
    """Whether the term is `value` where the nodes `known` have these values, at random values of all else."""
    rng = np.random.default_rng(_SEED)
    given = {node: np.full((2, _POINTS), x) for node, x in known.items()}
    leaves = {leaf: _draw(program, leaf, rng) for leaf in _leaves(term, {*given})}
    return bool((compute(term, {**leaves, **given}) == value).all())


def same_where_finite(program: Program, value: Expr, one: Mapping[Expr, float], other: Mapping[Expr, float]) -> bool:
    """Whether an expression is the same number, or not finite both times, with the nodes `one` and `other` at their
    values, and random ones elsewhere; in `other` guards are left out."""
    rng = np.random.default_rng(_SEED)
    leaves = {leaf: _draw(program, leaf, rng) for leaf in _leaves(value, {*one, *other})}

    def at(expr: Expr, values: Mapping[Expr, float]) -> Array:
        given = {node: np.full((2, _POINTS), x) for node, x in values.items()}
        return np.broadcast_to(compute(expr, {**leaves, **given}), (2, _POINTS)).astype(np.float64)

    a, b = at(value, one), at(transform(value, _unguarded), other)
    return bool(np.all(np.where(np.isfinite(b), a == b, ~np.isfinite(a))))


def _unguarded(e: Expr) -> Expr:
    return e.args[0] if isinstance(e, Op) and e.name == "guard" else e


def compute(expr: Expr, at: Mapping[Expr, Array], dtype: str = "float64") -> Array:
    """The value of a scalar expression over arrays of points, in float64 or float32 (the points' own then); whole
    numbers and conditions stay such.

    >>> x = Load("x", ())
    >>> compute(Op("div", (Const(1.0, "float32"), x)), {x: np.array([2.0, 0.0])}).tolist()
    [0.5, inf]
    """
    with np.errstate(all="ignore"):
        return _compute(expr, at, dtype)


def _compute(expr: Expr, at: Mapping[Expr, Array], precision: str) -> Array:
    if expr in at:
        return at[expr]
    match expr:
        case Const(value, dtype):
            return np.asarray(value, precision if "float" in dtype else None)
        case Cast(dtype, arg):
            return _compute(arg, at, precision).astype(precision if "float" in dtype else dtype)
        case Op(name, args):
            found = NUMPY[name](*(_compute(a, at, precision) for a in args))
            return found.astype(precision) if found.dtype.kind == "f" else found
    raise AssertionError(f"no value for {expr}")


def _leaves(expr: Expr, known: set[Expr]) -> list[Expr]:
    """Reads and variables, outermost only: the index of a read is not a value."""
    if expr in known:
        return []
    match expr:
        case Load() | Previous() | Var():
            return [expr]
        case Op(_, args):
            return list(dict.fromkeys(leaf for arg in args for leaf in _leaves(arg, known)))
        case Cast(_, arg):
            return _leaves(arg, known)
    return []


def _draw(program: Program, leaf: Expr, rng: np.random.Generator) -> Array:
    """Random values of an input, two rows of points."""
    shape = (2, _POINTS)
    if isinstance(leaf, Var):
        return rng.integers(0, 4, shape)
    assert isinstance(leaf, Load | Previous)
    dtype = program.buffer(leaf.buffer).dtype
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    values = _sample(range_of(program, leaf), shape, rng)
    return np.rint(values).astype(dtype) if dtype.startswith(("int", "uint")) else values


def _sample(within: ValueRange, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Moderate values of a range, away from 0 where it goes on beyond."""
    if within.low == within.high:
        return np.full(shape, within.low)  # may be an infinity: a score that is masked everywhere
    if within.low > 1 or within.high < -1 or within.high - within.low < 1:
        low = within.low if math.isfinite(within.low) else within.high - 2
        return rng.uniform(low, min(within.high, low + 2), shape)
    values = rng.uniform(0.3, 2.0, shape) * rng.choice([-1.0, 1.0], shape)
    values = np.where((values < within.low) | (values > within.high), -values, values)
    return np.clip(values, within.low, within.high)


def _agree(
    step: str, what: str, h: Expr, found: Array, expected: Array, scale: Array, points: Mapping[Expr, Array]
) -> None:
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    # Where the term itself is not finite (a root of a negative input) h has nothing to keep.
    inside = np.isfinite(expected) & np.isfinite(scale)
    if inside.sum() < _FEWEST:
        raise RepairError(
            f"{what} could not be checked on h as written: the term is finite at too few points",
            step=step,
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
            f"{what} fails for h as written: found {found[at]:.6g}, expected {expected[at]:.6g}, at {where}",
            step=step,
            expression=expression(h),
            help=_WRITTEN,
        )
