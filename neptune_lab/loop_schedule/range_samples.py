"""The sequences of values that `float_range` runs a repair on: of all magnitudes, some with extreme numbers in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from neptune_lab.loop_ir.nodes import Expr, Load, Op, Previous, Var
from neptune_lab.loop_ir.positions import COMPARISONS
from neptune_lab.loop_ir.sign import may_be_infinite, range_of
from neptune_lab.loop_ir.walks import buffers_read, variables, walk_once
from neptune_lab.loop_schedule.scalar_loop import ScalarLoop
from neptune_lab.loop_to_repair.evaluate import compute, equalities, make_equal

Array = npt.NDArray[Any]

SEQUENCES = 3000
TAGS = 3
EACH = 3
# Offsets and spreads: where exponentials under- and overflow in float32 (88, 104), and powers of any input in use.
_SIZES = (0.0, 1e-18, 1e-6, 1.0, 30.0, 90.0, 120.0, 300.0, 1e4, 1e10, 1e18)
# How many sequences have an extreme number in one input, and which: fills of masks, and what overflows when squared.
_EXTREME = 0.2
_EXTREMES = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max), -1e30, 1e30)

# How many sequences have equal numbers where a term asks for equality.
_EQUAL = 0.3
# How many sequences have a NaN, each at another place, where a condition such as r > -inf, true of every number, may
# hide it.
_WITH_NAN = 5 * TAGS * EACH


def leaves_of(loop: ScalarLoop) -> list[Expr]:
    """Reads of complete values, loop variables, and conditions on these alone, outermost only."""
    found: dict[Expr, None] = {}
    seen: set[int] = set()

    def visit(expr: Expr) -> None:
        if id(expr) in seen:
            return
        seen.add(id(expr))
        match expr:
            case Load(buffer, _) | Previous(buffer, _, _):
                if buffer not in loop.folds:
                    found[expr] = None
            case Var():
                found[expr] = None
            case Op(name, args) if name in COMPARISONS and not buffers_read(expr):
                found[expr] = None
            case Op(_, args):
                for arg in args:
                    visit(arg)
            case _:
                if hasattr(expr, "arg"):
                    visit(expr.arg)  # type: ignore[union-attr]

    for expr in (*loop.terms, *(element for _, element in loop.folds.values())):
        visit(expr)
    return list(found)


def kind_of(loop: ScalarLoop, leaf: Expr) -> tuple[object, ...]:
    """All that decides what `draw` gives for a leaf."""
    if isinstance(leaf, Op):
        return ("mask",) if variables(leaf) else ("mask", leaf)
    varies = bool(variables(leaf) & loop.inner)
    if not isinstance(leaf, Load | Previous):
        return ("place", varies)
    within = range_of(loop.program, leaf)
    extremes = [may_be_infinite(loop.program, leaf, direction) for direction in (-1, 1)]
    return (loop.program.buffer(leaf.buffer).dtype, varies, within.low, within.high, extremes)


def draw_leaves(loop: ScalarLoop, rng: np.random.Generator) -> dict[Expr, Array]:
    """Values of all leaves."""
    with_nan = may_hide_nan(loop)
    values = {leaf: _draw(loop, leaf, rng, with_nan) for leaf in leaves_of(loop)}
    varying = {leaf for leaf in values if variables(leaf) & loop.inner}
    for condition in _equalities(loop):
        some = rng.random((SEQUENCES, TAGS, EACH)) < rng.choice([0.3, 1.0], (SEQUENCES, 1, 1))
        sequences = rng.random((SEQUENCES, 1, 1)) < _EQUAL
        varies = not varying.isdisjoint(walk_once(condition))
        kept = values.keys() - varying if varies else ()  # what stays for a row cannot follow what does not
        make_equal(loop.program, condition, values, sequences & some if varies else sequences, kept)
    return values


def _draw(loop: ScalarLoop, leaf: Expr, rng: np.random.Generator, with_nan: bool) -> Array:
    """Values of one leaf: an offset and a spread, which stay for a whole sequence or change from tag to tag."""
    varies = bool(variables(leaf) & loop.inner)
    shape = (SEQUENCES, TAGS, EACH) if varies else (SEQUENCES, 1, 1)
    if isinstance(leaf, Op):  # a mask: often true everywhere, or nearly so
        allowed = rng.random((SEQUENCES, TAGS, EACH)) < rng.choice([0.3, 0.7, 0.9, 1.0], (SEQUENCES, 1, 1))
        return allowed if variables(leaf) else np.broadcast_to(compute(leaf, {}), allowed.shape)
    if isinstance(leaf, Var):
        return np.broadcast_to(rng.integers(0, 8, shape), (SEQUENCES, TAGS, EACH))
    assert isinstance(leaf, Load | Previous)
    dtype = loop.program.buffer(leaf.buffer).dtype
    if dtype == "bool":
        return np.broadcast_to(rng.integers(0, 2, shape).astype(bool), (SEQUENCES, TAGS, EACH))
    if dtype.startswith(("int", "uint")):
        return np.broadcast_to(_whole_numbers(dtype, shape, rng), (SEQUENCES, TAGS, EACH))
    tags = (SEQUENCES, shape[1], 1)

    def sizes() -> Array:
        drawn = rng.choice(_SIZES, tags)
        kept = rng.random((SEQUENCES, 1, 1)) < 0.4
        return np.where(kept, drawn[:, :1], drawn)

    spread, offset = sizes(), sizes() * rng.choice([-1.0, 1.0], tags)
    spread = np.where(rng.random((SEQUENCES, 1, 1)) < 0.4, np.where(rng.random(tags) < 0.5, 1.0, 0.0), spread)
    offset = np.where(rng.random((SEQUENCES, 1, 1)) < 0.3, 0.0, offset)
    values = offset + spread * rng.standard_normal(shape)
    within = range_of(loop.program, leaf)
    if within.low >= 0:
        values = np.abs(values)
    if within.high <= 0:
        values = -np.abs(values)
    values = _with_extremes(loop, leaf, np.broadcast_to(values, (SEQUENCES, TAGS, EACH)), varies, rng)
    values = np.clip(values, within.low, within.high)
    if dtype == "float16":
        values = np.where(np.isinf(values), values, np.clip(values, -65504, 65504)).astype(np.float16)
    values = values.astype(np.float32).astype(np.float64)
    return _with_nan(values) if varies and with_nan else values


def may_hide_nan(loop: ScalarLoop) -> bool:
    """Whether a condition reads an incomplete reduction: it is false of a NaN, in every row that has one.

    A mask over other values hides a NaN only if it hides all of its row, which is not promised
    (docs/concepts/numbers.md).
    """
    return any(
        isinstance(expr, Op) and expr.name in COMPARISONS and not loop.folds.keys().isdisjoint(buffers_read(expr))
        for term in loop.terms
        for expr in walk_once(term)
    )


def equal_leaves(loop: ScalarLoop) -> set[Expr]:
    """The leaves that are compared for equality, which a rounding would end."""
    return {e for condition in _equalities(loop) for e in walk_once(condition)}


def _equalities(loop: ScalarLoop) -> list[Op]:
    """The comparisons for equality that read complete values only."""
    exprs = (*loop.terms, *(element for _, element in loop.folds.values()))
    return [e for e in equalities(exprs) if (read := buffers_read(e)) and read.isdisjoint(loop.folds)]


def _whole_numbers(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Integers up to a size that a sequence keeps: as those of labels, or of any size and sign."""
    largest = np.minimum(rng.choice([8.0, 8.0, 128.0, 1e4, 2.0**31], (SEQUENCES, 1, 1)), float(np.iinfo(dtype).max) + 1)
    least = np.where((rng.random((SEQUENCES, 1, 1)) < 0.5) | dtype.startswith("u"), 0.0, -largest)
    return np.floor(least + rng.random(shape) * (largest - least)).astype(dtype)


def _with_nan(values: Array) -> Array:
    """The values, with one NaN in each of some sequences."""
    sequence = np.arange(SEQUENCES).reshape(SEQUENCES, 1, 1)
    place = np.arange(TAGS * EACH).reshape(1, TAGS, EACH)
    return np.where((sequence < _WITH_NAN) & (sequence % (TAGS * EACH) == place), math.nan, values)


def _with_extremes(loop: ScalarLoop, leaf: Expr, values: Array, varies: bool, rng: np.random.Generator) -> Array:
    """Some sequences with an extreme number in place of the first elements, or of some of them.

    Finite ones only in what the producers fold: another factor that large overflows by itself (`_LARGE`).
    """
    assert isinstance(leaf, Load | Previous)
    extremes = [x for x in (-math.inf, math.inf) if may_be_infinite(loop.program, leaf, 1 if x > 0 else -1)]
    if any(leaf == e for _, element in loop.folds.values() for e in walk_once(element)):
        extremes += _EXTREMES
    if not extremes:
        return values
    # Negative ones more often: masks write them.
    weights = np.array([3.0 if x < 0 else 1.0 for x in extremes])
    chosen = rng.choice(extremes, (SEQUENCES, 1, 1), p=weights / weights.sum())
    place = np.arange(TAGS * EACH).reshape(1, TAGS, EACH)
    first = place < rng.integers(1, TAGS * EACH + 1, (SEQUENCES, 1, 1))
    some = rng.random((SEQUENCES, TAGS, EACH)) < 0.4
    where = np.where(rng.random((SEQUENCES, 1, 1)) < 0.5, first, some) if varies else True
    return np.where((rng.random((SEQUENCES, 1, 1)) < _EXTREME) & where, chosen, values)


__all__ = ["EACH", "SEQUENCES", "TAGS", "draw_leaves", "equal_leaves", "kind_of", "leaves_of", "may_hide_nan"]
