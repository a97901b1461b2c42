"""Whether a repair is right in float32, not only over the reals: the step "range" of a derivation.

h(t, r, r') moves a partial result from r to r'.  Over the reals any r is right; in floats two things can go wrong:

- a factor larger than 1 enlarges a partial result that has underflowed or was rounded: the sum of exp(x + max x), for
  x of -120 first and then 0;
- a term with a partial r overflows or loses its digits, although the term with the last r does not: the sum of
  exp(x - max y), if y is independent of x.

Whether this happens depends on how r changes and what it folds (a maximum only rises, and is at least every x so far).
So the rolling and the split loop are run in float32, as in the kernel, over sequences of values of all magnitudes, with
each producer folded from the values that the term reads.  Their results are compared with the definition's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.nodes import Expr, Load, Previous
from neptune_lab.loop_ir.reduction import IDENTITIES
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.walks import walk_once
from neptune_lab.loop_schedule.range_cache import cached
from neptune_lab.loop_schedule.range_samples import EACH, SEQUENCES, TAGS, draw_leaves, equal_leaves
from neptune_lab.loop_schedule.scalar_loop import ScalarLoop
from neptune_lab.loop_to_repair.evaluate import UFUNCS, compute

Array = npt.NDArray[Any]

_SEED = 4711
_CLOSE = 2e-4
_TINY = 1e-33
_LARGE = 1e35
# What rounding a denormal can be off by: times a value of 1e18 that is more than `_TINY`.
_UNDERFLOW = 2.0**-149
_ROUNDING = 2.0**-22
_NEARBY = 3


@dataclass(slots=True)
class _Run:
    """Values of the leaves, (SEQUENCES, TAGS, EACH), and what is folded of them."""

    loop: ScalarLoop
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
        """The same run with every number off by about a rounding, but those that are equal where a term asks for it."""
        equal = equal_leaves(self.loop)
        off = {
            leaf: value * (1 + _ROUNDING * rng.uniform(-1, 1, value.shape))
            if value.dtype.kind == "f" and leaf not in equal
            else value
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
        for node in walk_once(expr):
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
                value = np.where(value == point.value, np.asarray(point.replacement, value.dtype), value)
        return value

    def tile(self, tag: int, r: Mapping[str, Array], dtype: str) -> list[Array]:
        """f over the terms of one tag."""
        values = [self.values(term, r, dtype, tag, tag)[:, 0] for term in self.loop.terms]
        with np.errstate(all="ignore"):
            return [UFUNCS[self.loop.reducer].reduce(terms, axis=1, dtype=dtype) for terms in values]

    def moved(self, t: Sequence[Array], before: Mapping[str, Array], now: Mapping[str, Array]) -> list[Array]:
        held = {leaf for h in self.loop.moved for leaf in walk_once(h)}
        at = {leaf: value[:, 0, 0] for leaf, value in self.at("float32").items() if leaf in held}
        at |= dict(zip(self.loop.carried, t, strict=True))
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


def check_range(loop: ScalarLoop) -> str:
    """Refuse a repair that is wrong in float32; else say what was compared.

    Formal statement, over seeded sequences of `TAGS` tags with `EACH` elements, their magnitudes from 1e-18 to 1e18 and
    0, some with infinities or numbers near the largest float among what the producers fold: where the definition in
    float32 is finite, the rolled and the split loop are, and differ from it by no more than rounding of the terms, or
    than the definition itself differs from float64 or moves with a rounding of its inputs.  Where it is not finite, nor
    are they; and where an output can tell, they are the same infinity or NaN.  (What a guard does where a producer ends
    at its point, `singular_points` has shown.)

    Raises:
        RepairError: step "range", with values at which it fails.
    """
    return cached(loop, _run)


def _run(loop: ScalarLoop) -> str:
    """Compares the rolling and the split form with the definition, in float32, and says how.

    Raises:
        RepairError: they differ by more than the definition itself differs at values a rounding away.
    """
    rng = np.random.default_rng(_SEED)
    run = _Run(loop, draw_leaves(loop, rng))
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
        f"h is right over the reals but not in float32: the {name} loop gives {found[at]:.6g}, the definition gives "
        f"{expected[at]:.6g}, at {shown} (tile by tile)",
        step="range",
        expression=expression(run.loop.moved[0]),
        help="a partial result must keep its digits until h moves it: no factor of h may exceed 1, and no term may "
        "overflow before the producer has its last value, as in exp(x - max x); otherwise keep the stages in separate "
        "kernels",
    )


def _numbers(run: _Run) -> list[Array]:
    return [value for value in run.leaves.values() if value.dtype.kind == "f"] or [np.zeros((SEQUENCES, 1, 1))]


__all__ = ["check_range"]
