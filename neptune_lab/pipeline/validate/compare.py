"""Which results differ: the promise of docs/concepts/numbers.md, with a tolerance derived from the definition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Cast, Op, Program
from neptune_lab.loop_ir.walks import walk
from neptune_lab.pipeline.validate.reference import evaluate, evaluate_sets

Arrays = dict[str, np.ndarray]
Roundings = Callable[[], "Mapping[str, Rounding]"]

# Relative change of the inputs, to measure how far rounding can change a result.
_UNIT = 2.0**-22
# A result that changes by up to this many times as much may be rounding: a wrong kernel is wrong by far more.
_SAFETY = 256.0
_LARGEST = 1e37
# A result beyond this may be what is left of numbers that overflow when they are added in another order.
_MAY_OVERFLOW = 2.0**100
# Evaluations that show whether rounding decides an element.
_TRIALS = 8
_ROUNDINGS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


# A difference of up to this many times the spread of these evaluations may be rounding.
_SPREADS = 4.0


@dataclass(frozen=True, slots=True)
class Rounding:
    """The effect of rounding on an output.

    Args:
        decides: elements that it decides, such as a division by the variance of equal numbers.
        spread: the distance between the evaluations; infinite if some give no number.
    """

    decides: np.ndarray
    spread: np.ndarray


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an output should be.

    Args:
        stated: the definition in its own dtypes.
        wide: in float64.
        slack: the largest distance from `wide` that may be rounding.
        rounding: returns the effect of rounding on each output; computed at the first call.
    """

    stated: np.ndarray
    wide: np.ndarray
    slack: np.ndarray
    rounding: Roundings


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element that is wrong."""

    output: str
    index: tuple[int, ...]
    expected: float
    found: float

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return f"{self.output}{place} is {self.found:g}, expected {self.expected:g}"


def expectations(
    definition: Program, sets: Sequence[Mapping[str, np.ndarray]], by_vectors: Collection[str] = ()
) -> list[dict[str, Wanted]]:
    """What each output should be on each set of inputs; the sets are evaluated together.

    Args:
        by_vectors: stages that a vector repair computes: what depends on one that overflows may be NaN.
    """
    together = {name: np.stack([inputs[name] for inputs in sets]) for name in definition.inputs}
    stated = evaluate_sets(definition, together, unclear=by_vectors)
    wide = evaluate_sets(definition, together, wide=True)
    rng = np.random.default_rng(0)
    moved = {
        name: a.astype(np.float64) * (1 + _UNIT * rng.choice([-1.0, 1.0], a.shape[1:])) if a.dtype.kind == "f" else a
        for name, a in together.items()
    }
    other = evaluate_sets(definition, moved, wide=True, moved=_UNIT)
    unit = max(2.0**-24, *(_ROUNDINGS.get(dtype, 0.0) for dtype in _dtypes(definition)))
    expected = []
    for n, inputs in enumerate(sets):
        finite = _finite(inputs)
        rounding = cache(partial(_roundings, definition, inputs))
        expected.append(
            {
                name: _expected_output(stated[name][n], wide[name][n], other[name][n], unit, finite, rounding)
                for name in definition.outputs
            }
        )
    return expected


def _roundings(definition: Program, inputs: Mapping[str, np.ndarray]) -> dict[str, Rounding]:
    """The effect of rounding on each output.

    Formal statement: of `_TRIALS` evaluations in float64, each with every operation off by a rounding of float32 at
    random, and an exact one, an element is decided by rounding if some give a number and others do not, or if their
    numbers have no digit in common.
    """
    rng = np.random.default_rng(0)
    trials = [evaluate(definition, inputs, wide=True, rounding=rng) for _ in range(_TRIALS)]
    exact = evaluate(definition, inputs, wide=True)
    roundings = {}
    for name in definition.outputs:
        values = np.stack([np.asarray(trial[name], np.float64) for trial in (*trials, exact)])
        finite = np.isfinite(values)
        with np.errstate(all="ignore"):
            spread = np.max(values, axis=0) - np.min(values, axis=0)
            decides = np.where(finite.all(axis=0), spread > np.max(np.abs(values), axis=0) / 4, finite.any(axis=0))
        roundings[name] = Rounding(decides, np.where(np.isfinite(spread), spread, np.inf))
    return roundings


def _finite(inputs: Mapping[str, np.ndarray]) -> bool:
    return all(np.isfinite(a).all() for a in inputs.values() if a.dtype.kind == "f")


def _expected_output(
    stated: np.ndarray, wide: np.ndarray, moved: np.ndarray, unit: float, finite: bool, rounding: Roundings
) -> Wanted:
    """What an output should be, from three evaluations of it.

    Args:
        moved: in float64, on inputs that are moved by rounding errors.
        unit: of the coarsest rounding on the way.
        finite: the inputs are.
        rounding: returns the effect of rounding on each output.
    """
    kind = stated.dtype.kind
    a, b = np.asarray(stated, np.float64), np.asarray(wide, np.float64)
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(b), where=np.isfinite(b), initial=0.0)
        noise = np.abs(moved - b) + np.abs(a - b)
        slack = _SAFETY * (noise + unit * np.abs(b) + 2.0**-24 * largest)
        if unit > 2.0**-24:
            slack = slack + 8 * unit * largest
        if kind in "iub" and not finite:
            slack = np.full(np.shape(b), np.inf)  # a threshold that is compared with an infinity
        elif kind in "iu":  # ties are rounded either way; of NaN nothing is stated
            slack = np.where(a == b, np.maximum(slack, 1.0), np.inf)
        return Wanted(a, b, np.where(np.isfinite(slack), slack, np.inf), rounding)


def _dtypes(definition: Program) -> set[str]:
    """Every float dtype that a stage or a conversion of the definition rounds to."""
    dtypes = {b.dtype for b in definition.buffers if b.name not in definition.inputs}
    for block in tree.blocks(definition):
        dtypes |= {e.dtype for e in walk(block.body.value) if isinstance(e, Cast)}
    return dtypes


def difference(wanted: Mapping[str, Wanted], found: Mapping[str, np.ndarray], *, removes: bool) -> Difference | None:
    """The first element that breaks the promise; None if there is none.

    Args:
        removes: the definition has masks, and an input that is not finite: a NaN may have been removed.
    """
    for name, want in wanted.items():
        got = np.asarray(found[name], np.float64).reshape(want.wide.shape)
        with np.errstate(all="ignore"):
            # A sum of numbers this large may overflow on the way, in another order.
            finite = np.isfinite(want.stated) & np.isfinite(want.wide) & (np.abs(want.wide) < _LARGEST)
            bad = finite & np.isfinite(got) & (np.abs(got - want.wide) > want.slack)
            apart = finite & ~np.isfinite(got) & (np.abs(want.wide) < _MAY_OVERFLOW)
            if not removes:
                apart |= ~np.isfinite(want.stated) & ~np.isfinite(want.wide) & np.isfinite(got)
            if (bad | apart).any():  # numbers of the definition itself, as a mask of -1e4, are rounded on the way too
                rounding = want.rounding()[name]
                bad &= np.abs(got - want.wide) > _SPREADS * rounding.spread
                bad |= apart & ~rounding.decides
        if bad.any():
            at = tuple(int(n) for n in np.argwhere(bad)[0]) if bad.ndim else ()
            return Difference(name, at, float(want.wide[at]), float(got[at]))
    return None


def has_masks(definition: Program) -> bool:
    """Whether a stage selects between values."""
    return any(
        isinstance(e, Op) and e.name == "select" for block in tree.blocks(definition) for e in walk(block.body.value)
    )


def may_remove(definition: Program, inputs: Mapping[str, np.ndarray]) -> bool:
    """Whether a mask may have removed a NaN: the definition has masks, and an input is not finite."""
    return has_masks(definition) and not _finite(inputs)
