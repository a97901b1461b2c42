"""Evaluates scalar expressions of the loop IR over arrays of points, in NumPy, and draws random points for them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Previous, Program, Var
from neptune_lab.loop_ir.reduction import OPERATORS
from neptune_lab.loop_ir.sign import range_of
from neptune_lab.loop_ir.value_range import ValueRange
from neptune_lab.loop_ir.walks import walk_once
from neptune_lab.scalar_ops import NUMPY

Array = npt.NDArray[Any]

UFUNCS: dict[str, np.ufunc] = {reducer: NUMPY[name] for reducer, name in OPERATORS.items()}
"""The reducers in NumPy, by name."""

POINTS = 64
"""Random points of one check."""


def generator() -> np.random.Generator:
    """A fresh generator of a fixed seed: every answer is reproducible."""
    return np.random.default_rng(5081)


def compute(expr: Expr, at: Mapping[Expr, Array], dtype: str = "float64") -> Array:
    """The value of a scalar expression at arrays of points.

    Args:
        expr: the expression.
        at: the values of its reads and variables, and of any other node in it; shapes must broadcast.
        dtype: in which floats are computed, "float64" or "float32" (then the points are of that dtype too); integers
            and conditions keep their dtypes.

    >>> x = Load("x", ())
    >>> compute(Op("div", (Const(1.0, "float32"), x)), {x: np.array([2.0, 0.0])}).tolist()
    [0.5, inf]
    """
    with np.errstate(all="ignore"):
        return _compute(expr, at, dtype, {})


def _compute(expr: Expr, at: Mapping[Expr, Array], precision: str, done: dict[int, Array]) -> Array:
    """As `compute`; `done` has the values of the operands that several nodes share."""
    if expr in at:
        return at[expr]
    if (found := done.get(id(expr))) is not None:
        return found
    match expr:
        case Const(value, dtype):
            return np.asarray(value, precision if "float" in dtype else None)
        case Cast(dtype, arg):
            value = _compute(arg, at, precision, done).astype(precision if "float" in dtype else dtype)
        case Op(name, args):
            value = NUMPY[name](*(_compute(arg, at, precision, done) for arg in args))
            value = value.astype(precision, copy=False) if value.dtype.kind == "f" else value
        case _:
            raise AssertionError(f"no value for {expr}")
    done[id(expr)] = value
    return value


def draw_leaves(program: Program, expr: Expr, known: Collection[Expr], rng: np.random.Generator) -> dict[Expr, Array]:
    """Random values of all reads and variables of an expression that are not inside a node of `known`.

    Numbers that the expression compares for equality are equal at half of the points.
    """
    values = {leaf: draw(program, leaf, rng) for leaf in leaves(expr, set(known))}
    for condition in equalities([expr], known):
        make_equal(program, condition, values, np.arange(POINTS) % 2 == 0)
    return values


def equalities(exprs: Iterable[Expr], known: Collection[Expr] = ()) -> list[Op]:
    """The comparisons for equality in expressions, each once, but those of `known`: of numbers that are drawn each by
    itself, they would never be true."""
    nodes = dict.fromkeys(e for expr in exprs for e in walk_once(expr))
    return [e for e in nodes if isinstance(e, Op) and e.name in ("eq", "ne") and e not in known]


def make_equal(
    program: Program, condition: Op, values: dict[Expr, Array], places: Array, kept: Collection[Expr] = ()
) -> None:
    """Gives a read or variable that is compared for equality the value of the other side, if its range allows that.

    Args:
        program: where reads come from.
        condition: the comparison.
        values: of the leaves, which change; none if a side needs others.
        places: where.
        kept: leaves that do not change.
    """
    sides = [_without_casts(side) for side in condition.args]
    for leaf, other in (sides, sides[::-1]):
        own = values.get(leaf)
        if (
            own is None
            or leaf in kept
            or own.dtype.kind not in "fiu"
            or not all(node in values for node in leaves(other))
        ):
            continue
        if isinstance(leaf, Var) and any(isinstance(node, Load | Previous) for node in leaves(other)):
            continue
        within = ValueRange(-math.inf, math.inf) if isinstance(leaf, Var) else range_of(program, leaf)
        given = compute(other, values)
        chosen = places & (given >= within.low) & (given <= within.high)
        values[leaf] = np.where(chosen, given, own).astype(own.dtype)
        return


def _without_casts(expr: Expr) -> Expr:
    """What is converted."""
    while isinstance(expr, Cast):
        expr = expr.arg
    return expr


def leaves(expr: Expr, known: Collection[Expr] = ()) -> list[Expr]:
    """The reads and variables of an expression, in order, that are not inside a node of `known`.

    Outermost only: the index of a read is not a value.
    """
    found: dict[Expr, None] = {}
    seen: set[int] = set()

    def visit(node: Expr) -> None:
        if id(node) in seen or node in known:
            return
        seen.add(id(node))
        match node:
            case Load() | Previous() | Var():
                found[node] = None
            case Op(_, args):
                for arg in args:
                    visit(arg)
            case Cast(_, arg):
                visit(arg)

    visit(expr)
    return list(found)


def draw(program: Program, leaf: Expr, rng: np.random.Generator) -> Array:
    """Random values of a read or variable, an array (2, POINTS) within its range and dtype."""
    shape = (2, POINTS)
    if isinstance(leaf, Var):
        return rng.integers(0, 4, shape)
    assert isinstance(leaf, Load | Previous)
    dtype = program.buffer(leaf.buffer).dtype
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    values = sample(range_of(program, leaf), shape, rng)
    return np.rint(values).astype(dtype) if dtype.startswith(("int", "uint")) else values


def sample(within: ValueRange, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Random values of moderate size in a range, away from 0 if the range allows that."""
    if within.low == within.high:
        return np.full(shape, within.low)  # may be an infinity: a score that is masked everywhere
    if within.low > 1 or within.high < -1 or within.high - within.low < 1:
        low = within.low if math.isfinite(within.low) else within.high - 2
        return rng.uniform(low, min(within.high, low + 2), shape)
    values = rng.uniform(0.3, 2.0, shape) * rng.choice([-1.0, 1.0], shape)
    values = np.where((values < within.low) | (values > within.high), -values, values)
    return np.clip(values, within.low, within.high)
