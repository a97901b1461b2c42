"""Is a repair right in float32, and not over the reals only?  The step "range" of a derivation.

h(t, r, r') takes a partial result from r to r'.  Over the reals every r will do; in floats two things can go wrong:

- a factor larger than 1 takes a partial result that has underflowed, or was rounded, to where it counts: the sum of
  exp(x + max x), where x is -120 first and then 0;
- a term made with a partial r overflows, or loses its digits, although the term made with the last r does not: the sum
  of exp(x - max y), where y has nothing to do with x.

What keeps a repair from that is how r moves and what it is folded of (a maximum only rises, and is at least every x so
far).  So both loops are run as they will be written, in float32, over sequences of values of all magnitudes, with each
producer folded from the same values that the term reads; their results are held against the definition's.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import (
    Block,
    Expr,
    Load,
    Op,
    Previous,
    Program,
    Var,
    bound_loops,
    loads,
    variables,
    walk,
)
from neptune_lab.loop_ir.reduction import IDENTITIES
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.sign import may_be_infinite, range_of
from neptune_lab.loop_ir.written import UFUNCS, compute
from neptune_lab.loop_schedule.special_values import Point, tells_infinity
from neptune_lab.loop_schedule.vanishing import COMPARED, folded_element, in_loops, without_maps

Array = npt.NDArray[Any]

SEQUENCES = 3000
TAGS = 3
EACH = 3
_SEED = 4711
# Offsets and spreads: where exponentials under- and overflow in float32 (88, 104), and powers of any input in use.
_SIZES = (0.0, 1e-18, 1e-6, 1.0, 30.0, 90.0, 120.0, 300.0, 1e4, 1e10, 1e18)
_CLOSE = 2e-4
_TINY = 1e-33
_LARGE = 1e35
# How many sequences have an extreme number in one input, and which: fills of masks, and what overflows when squared.
_EXTREME = 0.2
_EXTREMES = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max), -1e30, 1e30)
# What rounding a denormal can be off by: times a value of 1e18 that is more than `_TINY`.
_UNDERFLOW = 2.0**-149
_ROUNDING = 2.0**-22
_NEARBY = 3


@dataclass(frozen=True, slots=True)
class Rolled:
    """A consumer's loop in scalar expressions.

    Args:
        reducer: f.
        terms: g with every map written out, over loop variables, and the companions of a vector repair behind it.
        carried: what stands for the partial result of each term. moved: h of each, over `carried`, and (before, now) of
            each producer's buffer.
        points: the producers' guards. estimates: producers that are read through running estimates (`estimate`).
        folds: for each incomplete reduction, its reducer and the element that it folds, as `term`, in an order in which
            none reads a later one.
        inner: the loops that the reductions fold over.
        told: an output tells which of NaN and the infinities the result is: x / inf is 0 (`tells_infinity`).
    """

    program: Program
    reducer: str
    terms: tuple[Expr, ...]
    carried: tuple[Expr, ...]
    moved: tuple[Expr, ...]
    places: Mapping[str, tuple[Expr, Expr]]
    points: Mapping[str, tuple[Point, ...]]
    estimates: frozenset[str]
    folds: Mapping[str, tuple[str, Expr]]
    inner: frozenset[str]
    told: bool


def rolled(
    program: Program,
    consumer: Block,
    reducer: str,
    terms: Sequence[Expr],
    carried: Sequence[Expr],
    moved: Sequence[Expr],
    places: Mapping[str, tuple[Expr, Expr]],
    points: Mapping[str, tuple[Point, ...]],
    estimates: Iterable[str] = (),
) -> Rolled:
    """The loop of `consumer` (its local block), in whose iterations the terms are given."""
    folds: dict[str, tuple[str, Expr]] = {}
    for producer in places:
        _add_fold(program, producer, folds, places)
    inner = frozenset(bound_loops(it for it in consumer.iters if it.kind == "reduce"))
    placed = tuple(in_loops(program, consumer, without_maps(program, term)) for term in terms)
    return Rolled(
        program,
        reducer,
        placed,
        tuple(carried),
        tuple(moved),
        places,
        points,
        frozenset(estimates),
        folds,
        inner,
        tells_infinity(program, consumer),
    )


def _add_fold(program: Program, buffer: str, folds: dict[str, tuple[str, Expr]], producers: Container[str]) -> None:
    """Adds the fold of `buffer`, after the folds that its element reads."""
    found = folded_element(program, buffer)
    if buffer in folds or found is None:
        return
    block, reducer, element = found
    element = in_loops(program, block, without_maps(program, element))
    whole = writer_of(program, buffer)
    notes = dict((whole or block).annotations) | dict(block.annotations)
    repaired_by = str(notes.get("repair_by", "")).split(",")
    for read in walk(element):
        source = writer_of(program, read.buffer) if isinstance(read, Load) else None
        if source is None or not isinstance(read, Load) or read.buffer == buffer:
            continue
        if source.origin in repaired_by or read.buffer in producers:
            _add_fold(program, read.buffer, folds, producers)
    folds[buffer] = (reducer, element)


@dataclass(slots=True)
class _Run:
    """Values of the leaves, (SEQUENCES, TAGS, EACH), and what is folded of them."""

    loop: Rolled
    leaves: dict[Expr, Array] = field(default_factory=dict)
    _rounded: dict[str, dict[Expr, Array]] = field(default_factory=dict)

    def at(self, dtype: str) -> dict[Expr, Array]:
        """The leaves, with floats in `dtype`; converted once, since every tag of every fold reads them."""
        if dtype not in self._rounded:
            self._rounded[dtype] = {
                leaf: value.astype(dtype) if value.dtype.kind == "f" else value for leaf, value in self.leaves.items()
            }
        return self._rounded[dtype]

    def nearby(self, rng: np.random.Generator) -> _Run:
        """The same run with every number off by about a rounding."""
        off = {
            leaf: value * (1 + _ROUNDING * rng.uniform(-1, 1, value.shape)) if value.dtype.kind == "f" else value
            for leaf, value in self.leaves.items()
        }
        return _Run(self.loop, off)

    def exact(self) -> Array:
        """The definition in float64."""
        terms = self.values(self.loop.terms[0], self.folded(0, TAGS - 1, "float64"), "float64")
        return UFUNCS[self.loop.reducer].reduce(terms.reshape(SEQUENCES, -1), axis=1)

    def values(self, expr: Expr, r: Mapping[str, Array], dtype: str, first: int = 0, last: int = TAGS - 1) -> Array:
        """`expr` at every element of tags `first` to `last`, with the reductions at `r`, which broadcast."""
        at = {leaf: value[:, first : last + 1] for leaf, value in self.at(dtype).items()}
        for node in walk(expr):
            if isinstance(node, Load | Previous) and node.buffer in r:
                at[node] = r[node.buffer].astype(dtype)
        found = compute(expr, at, dtype)
        return np.broadcast_to(found, (SEQUENCES, last + 1 - first, EACH)).astype(dtype, copy=False)

    def folded(self, first: int, last: int, dtype: str, guard: bool = False) -> dict[str, Array]:
        """The reductions over tags `first` to `last`, (SEQUENCES, 1, 1).

        Args:
            guard: whether they read one another behind their guards, as in a loop.
        """
        r: dict[str, Array] = {}
        for buffer, (reducer, element) in self.loop.folds.items():
            read = {b: self.guarded(b, value) for b, value in r.items()} if guard else r
            values = self.values(element, read, dtype, first, last)
            with np.errstate(all="ignore"):
                total = UFUNCS[reducer].reduce(values.reshape(SEQUENCES, -1), axis=1, dtype=dtype)
            r[buffer] = total.reshape(SEQUENCES, 1, 1)
        return r

    def guarded(self, buffer: str, value: Array) -> Array:
        for point in self.loop.points.get(buffer, ()):
            if not point.absorbing:
                value = np.where(value == point.value, np.asarray(point.stand_in, value.dtype), value)
        return value

    def tile(self, tag: int, r: Mapping[str, Array], dtype: str) -> list[Array]:
        """f over the terms of one tag."""
        values = [self.values(term, r, dtype, tag, tag)[:, 0] for term in self.loop.terms]
        with np.errstate(all="ignore"):
            return [UFUNCS[self.loop.reducer].reduce(terms, axis=1, dtype=dtype) for terms in values]

    def moved(self, t: Sequence[Array], before: Mapping[str, Array], now: Mapping[str, Array]) -> list[Array]:
        at = dict(zip(self.loop.carried, t, strict=True))
        for buffer, (b, n) in self.loop.places.items():
            at |= {b: before[buffer].reshape(-1), n: now[buffer].reshape(-1)}
        return [np.broadcast_to(compute(h, at, "float32"), (SEQUENCES,)) for h in self.loop.moved]

    def expected(self, r: Mapping[str, Array], tags: int) -> dict[str, Array]:
        """The producers' values, and what the estimated ones are expected to end as after so many tags."""
        scale = np.float32(TAGS / max(tags, 1))
        return {buffer: value * scale if buffer in self.loop.estimates else value for buffer, value in r.items()}

    def rolling(self) -> Array:
        f, start = UFUNCS[self.loop.reducer], IDENTITIES[self.loop.reducer]
        t = [np.full(SEQUENCES, start, np.float32) for _ in self.loop.terms]
        before = {
            buffer: np.full((SEQUENCES, 1, 1), IDENTITIES[self.loop.folds[buffer][0]], np.float32)
            for buffer in self.loop.places
        }
        for tag in range(TAGS):
            now = self.expected(self.folded(0, tag, "float32", guard=True), tag + 1)
            guarded = {b: self.guarded(b, value) for b, value in now.items()}
            with np.errstate(all="ignore"):
                moved, tile = self.moved(t, before, now), self.tile(tag, guarded, "float32")
                t = [f(a, b) for a, b in zip(moved, tile, strict=True)]
            before = now
        return t[0]

    def split(self) -> Array:
        f, whole = UFUNCS[self.loop.reducer], self.folded(0, TAGS - 1, "float32", guard=True)
        t = np.full(SEQUENCES, IDENTITIES[self.loop.reducer], np.float32)
        for tag in range(TAGS):
            own = self.folded(tag, tag, "float32", guard=True)
            guarded = {b: self.guarded(b, value) for b, value in own.items()}
            with np.errstate(all="ignore"):
                t = f(t, self.moved(self.tile(tag, guarded, "float32"), own, whole)[0])
        return t


def check_range(loop: Rolled) -> str:
    """Refuse a repair that is wrong in float32; else say what was compared.

    Formal statement, over seeded sequences of `TAGS` tags with `EACH` elements, their magnitudes from 1e-18 to 1e18 and
    0, some with infinities or numbers near the largest float among what the producers fold: where the definition in
    float32 is finite, the rolled and the split loop are, and differ from it by no more than rounding of the terms, or
    than the definition itself differs from float64 or moves with a rounding of its inputs.  Where it is not finite, nor
    are they; and where an output can tell, they are the same infinity or NaN.  (What a guard does where a producer ends
    at its point, `special_values` has shown.)

    Raises:
        RepairError: step "range", with values at which it fails.
    """
    run = _Run(loop)
    rng = np.random.default_rng(_SEED)
    for leaf in _leaves(loop):
        run.leaves[leaf] = _draw(loop, leaf, rng)
    f = UFUNCS[loop.reducer]
    with np.errstate(all="ignore"):
        r = run.folded(0, TAGS - 1, "float32")
        narrow = run.values(loop.terms[0], r, "float32").reshape(SEQUENCES, -1)
        expected, exact = f.reduce(narrow, axis=1), run.exact()
        size = np.abs(narrow.astype(np.float64)).sum(axis=1) if loop.reducer == "sum" else np.abs(exact)
        doubt = np.abs(expected.astype(np.float64) - exact)
        for _ in range(_NEARBY):
            doubt = doubt + np.abs(run.nearby(rng).exact() - exact)
        allowed = _CLOSE * size + 8 * doubt + _TINY + 8 * _UNDERFLOW * _largest(run)
        # Near the largest float it is a matter of a rounding whether a sum overflows.
        inside = np.isfinite(exact) & (size < _LARGE) & (np.abs(expected) < _LARGE) & np.isfinite(allowed)
        outside = ~np.isfinite(exact) & ~np.isfinite(expected) & ~_ends_guarded(run, r)
        same = outside & loop.told & ((exact == expected) | (np.isnan(exact) & np.isnan(expected)))
        runs = [("rolling", run.rolling())]
        if len(loop.terms) == 1:  # a vector repair has no combine step
            runs.append(("split", run.split()))
        for name, found in runs:
            wrong = inside & ~(np.abs(found.astype(np.float64) - expected) <= allowed)
            wrong |= outside & np.isfinite(found)
            wrong |= same & (found != expected) & ~(np.isnan(found) & np.isnan(expected))
            if wrong.any():
                _refuse(run, name, found, expected, wrong)
    how = "rolled" if len(loop.terms) > 1 else "rolled and split"
    return (
        f"{how} in float32, it gives what the definition does on {SEQUENCES} sequences of values from 1e-18 to 1e18 "
        "and infinities"
    )


def _ends_guarded(run: _Run, r: Mapping[str, Array]) -> Array:
    """Whether a producer ends at a point that is guarded."""
    ends = np.zeros(SEQUENCES, bool)
    for buffer, points in run.loop.points.items():
        for point in points:
            if not point.absorbing:
                ends |= r[buffer].reshape(-1) == point.value
    return ends


def _largest(run: _Run) -> Array:
    """The largest magnitude among the finite values of each sequence."""
    finite = (np.where(np.isfinite(values), np.abs(values), 0.0) for values in _numbers(run))
    return np.max([values.reshape(SEQUENCES, -1).max(axis=1) for values in finite], axis=0)


def _refuse(run: _Run, name: str, found: Array, expected: Array, wrong: Array) -> None:
    # The sequence with the fewest kinds of numbers is the easiest to follow.
    simple = [int(n) for n in np.flatnonzero(wrong)]
    at = min(simple, key=lambda n: sum(abs(np.log10(np.abs(v[n]) + 1e-3)).sum() for v in _numbers(run)))
    shown = "; ".join(
        f"{expression(leaf)} = " + " | ".join(" ".join(f"{x:.3g}" for x in tag) for tag in value[at])
        for leaf, value in run.leaves.items()
        if value.dtype.kind == "f"
    )
    raise RepairError(
        f"h is right over the reals, and not in float32: the {name} loop gives {found[at]:.6g}, and the definition "
        f"{expected[at]:.6g}, at {shown} (tile by tile)",
        step="range",
        expression=expression(run.loop.moved[0]),
        help="a partial result must not lose its digits before it is moved: a factor of h may not exceed 1 as the "
        "producer moves, and a term may not overflow before the producer has its last value, as in exp(x - max x); "
        "keep the stages apart otherwise",
    )


def _numbers(run: _Run) -> list[Array]:
    return [value for value in run.leaves.values() if value.dtype.kind == "f"] or [np.zeros((SEQUENCES, 1, 1))]


def _leaves(loop: Rolled) -> list[Expr]:
    """Reads of complete values, loop variables, and conditions on these alone, outermost only."""
    found: dict[Expr, None] = {}

    def visit(expr: Expr) -> None:
        match expr:
            case Load(buffer, _) | Previous(buffer, _, _):
                if buffer not in loop.folds:
                    found[expr] = None
            case Var():
                found[expr] = None
            case Op(name, args) if name in COMPARED and not loads(expr):
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


def _draw(loop: Rolled, leaf: Expr, rng: np.random.Generator) -> Array:
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
        return np.broadcast_to(rng.integers(0, 8, shape).astype(dtype), (SEQUENCES, TAGS, EACH))
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
    return values.astype(np.float32).astype(np.float64)


def _with_extremes(loop: Rolled, leaf: Expr, values: Array, varies: bool, rng: np.random.Generator) -> Array:
    """Some sequences with an extreme number in place of the first elements, or of some of them.

    Finite ones only in what the producers fold: another factor that large overflows by itself (`_LARGE`).
    """
    assert isinstance(leaf, Load | Previous)
    extremes = [x for x in (-math.inf, math.inf) if may_be_infinite(loop.program, leaf, 1 if x > 0 else -1)]
    if any(leaf == e for _, element in loop.folds.values() for e in walk(element)):
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


__all__ = ["Rolled", "check_range", "rolled"]
