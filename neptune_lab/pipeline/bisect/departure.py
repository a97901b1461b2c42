"""Where a program's numbers depart from those of the program that it was made from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import log

import numpy as np

from neptune_lab.pipeline.bisect.observed import Index, Observed

# Relative; a mistake of a compiler changes values by far more, and exp2 for exp or another order of a sum by less.
_TOLERANCE = 1e-2
# A pass may keep a tensor in other units: in base two, or before a constant factor that it moved.
_SAME_UNITS = 0.01
_ALWAYS_UNITS = (1.0, 1 / log(2), log(2))


@dataclass(frozen=True, slots=True)
class Departure:
    """The first number that departs.

    Args:
        stage: the form of the program that is wrong: a step of the schedule, the translation to tiles, a pass, or the
            emitted code.
        before: the form before it, whose results are right; "" where there is none.
        tensor, element: the element, by its index in the whole tensor.
        statement: the line of the wrong form that wrote it; "" if only the output is known to be wrong.
        line: the line's number in the emitted text, from 1; 0 for other forms.
        loops: the program instance and the iteration that wrote it, as (variable, value), outermost first.
        found: the number there.
        expected: the number that the form before has there.
        data: the kind of inputs.
        output: the first wrong element of a result, as a sentence; or why the program cannot be run to its end.
        writes: how often the element is written, and how often in the form before; (0, 0) where it is not known.
    """

    stage: str
    before: str
    tensor: str
    element: Index
    statement: str
    line: int
    loops: tuple[tuple[str, int], ...]
    found: float
    expected: float
    data: str
    output: str
    writes: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.element))}]" if self.element else ""
        at = ", ".join(f"{name} = {value}" for name, value in self.loops)
        lines = [f"{self.stage} is the first form that is wrong{f'; {self.before} is right' if self.before else ''}."]
        if self.tensor:
            lines.append(f"  first departure: {self.tensor}{place} = {self.found:g}, expected {self.expected:g}")
        if at:
            lines.append(f"  at {at}")
        if self.statement:
            lines.append(f"  {f'line {self.line}' if self.line else 'statement'}: {self.statement}")
        if self.writes[0] != self.writes[1]:
            lines.append(f"  {self.tensor}{place} is written {_times(self.writes[0])}, before {_times(self.writes[1])}")
        lines.append(f"  result: {self.output} (on {self.data})")
        return "\n".join(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


@dataclass(frozen=True, slots=True)
class Place:
    """The first write that departs.

    Args:
        write: its number in the wrong run.
        element: in the flattened tensor.
        found, expected: the numbers of the two runs.
        writes: how often the element is written in the wrong and in the right run.
    """

    write: int
    element: int
    found: float
    expected: float
    writes: tuple[int, int]


def first_departing(right: Observed, wrong: Observed, *, exact_units: Collection[str] = ()) -> Place | None:
    """The first write, in the order of execution, that puts another number into an element than the other run has.

    Formal statement: of the tensors that both runs write, each element is compared by the last value that each run
    gives it, up to a factor of the whole tensor (a pass may keep scores in base two). Of all elements that differ, the
    result is the one whose first differing write comes first in `wrong`; elements that should be NaN count if there are
    no others and the run came to its end, because a tile on chip is NaN past the end of its tensor, which another form
    may leave as it likes.

    Args:
        exact_units: tensors whose factor is 1, such as results.
    """
    first: Place | None = None
    for tensor, shape in wrong.shapes.items():
        if right.shapes.get(tensor) != shape:
            continue
        expected, by = right.last(tensor)
        found, writer = wrong.last(tensor)
        compared = (by >= 0) & (writer >= 0)
        factor = 1.0 if tensor in exact_units else _units(expected[compared], found[compared])
        for element in np.flatnonzero(compared & ~is_close(expected * factor, found)):
            place = _first_write(right, wrong, tensor, int(element), factor)
            if place is not None and (first is None or _rank(place) < _rank(first)):
                first = place
    return first


def _rank(place: Place) -> tuple[bool, int]:
    return bool(np.isnan(place.expected)), place.write


def _first_write(right: Observed, wrong: Observed, tensor: str, element: int, factor: float) -> Place | None:
    """The first write to an element that differs: the n-th write of one run against the n-th of the other where both
    write it equally often, or the wrong run was stopped; the last ones otherwise."""
    expected, found = right.history(tensor, element), wrong.history(tensor, element)
    writes = (len(found), len(expected))
    if len(expected) == len(found) or wrong.stopped:
        for (_, wanted), (step, value) in zip(expected, found, strict=False):
            unspecified = np.isnan(wanted) and wrong.stopped
            if not (unspecified or is_close(np.asarray(wanted * factor), np.asarray(value))):
                return Place(step, element, value, wanted * factor, writes)
    return None if wrong.stopped else Place(found[-1][0], element, found[-1][1], expected[-1][1] * factor, writes)


def is_close(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Equal to rounding, on the scale of all elements; NaN is NaN, and an infinity is itself alone."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        usual = np.median(np.abs(a), axis=None) if a.size and np.isfinite(a).all() else 0.0
        near = np.abs(a - b) <= _TOLERANCE * (np.maximum(np.abs(a), np.abs(b)) + 0.1 * usual)
        return np.where(finite, near, (a == b) | (np.isnan(a) & np.isnan(b)))


def _units(expected: np.ndarray, found: np.ndarray) -> float:
    """The constant that most elements of a tensor are multiplied by in the other run; 1 where there is none."""
    with np.errstate(all="ignore"):
        ratios = found / expected
        ratios = ratios[np.isfinite(ratios) & (ratios != 0)]
    if not ratios.size:
        return 1.0
    middle = float(np.median(ratios))
    for units in (*_ALWAYS_UNITS, middle):
        if np.mean(np.abs(ratios - units) <= _SAME_UNITS * abs(units)) > 0.5:
            return units
    return 1.0


def as_index(element: int, shape: tuple[int, ...]) -> Index:
    """An element of the flattened tensor by its index."""
    return tuple(int(n) for n in np.unravel_index(element, shape)) if shape else ()
