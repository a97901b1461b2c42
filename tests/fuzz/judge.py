"""Whether a result is right: the promise of docs/concepts/numbers.md, with a tolerance that follows the definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Arrays = dict[str, np.ndarray]
# An evaluation of the definition: inputs and a dtype ("float32", "float64", "float64+", "float64-") to all tensors.
Evaluate = Callable[[Mapping[str, np.ndarray], str], Arrays]

# One perturbation of an input: some units in the last place of float32, as rounding on the way would cause.
_UNIT = 2.0**-22
_SAFETY = 64.0


@dataclass(frozen=True, slots=True)
class Expected:
    """What an output should be.

    Args:
        single, double: the definition evaluated in float32 and in float64.
        noise: how far float64 results move where inputs move by rounding errors.
        never: they are infinite or NaN all the time.
    """

    single: np.ndarray
    double: np.ndarray
    noise: np.ndarray
    never: np.ndarray


def expectations(evaluate: Evaluate, inputs: Mapping[str, np.ndarray], outputs: list[str]) -> dict[str, Expected]:
    """The reference of each output, and its tolerance by moving the inputs three times."""
    single, double = evaluate(inputs, "float32"), evaluate(inputs, "float64")
    rng = np.random.default_rng(1)
    noise = {name: np.zeros(np.shape(double[name])) for name in outputs}
    never = {name: ~np.isfinite(double[name]) for name in outputs}
    for sign in "+-+":
        moved = {
            n: np.asarray(a, "float64") * (1 + _UNIT * rng.choice([-1.0, 1.0], np.shape(a)))
            if a.dtype.kind == "f"
            else a
            for n, a in inputs.items()
        }
        with np.errstate(all="ignore"):
            other = evaluate(moved, f"float64{sign}")
            for name in outputs:
                never[name] = never[name] & ~np.isfinite(other[name])
                noise[name] = np.fmax(noise[name], np.abs(other[name] - double[name]))
    return {name: Expected(single[name], double[name], noise[name], never[name]) for name in outputs}


def wrong(
    found: np.ndarray, want: Expected, *, masks: bool, inputs_finite: bool, unit: float = 2.0**-20
) -> tuple[int, ...] | None:
    """The first element that breaks the promise; None where there is none.

    Args:
        masks: the definition removes elements by a mask, so a NaN of theirs may be gone.
        inputs_finite: whether all inputs are.
        unit: relative rounding error of the result's own dtype and of conversions on the way.
    """
    found = np.asarray(found, "float64").reshape(want.double.shape)
    single, double = np.asarray(want.single, "float64"), want.double
    with np.errstate(all="ignore"):
        finite = np.isfinite(single) & np.isfinite(double)
        nothing = ~np.isfinite(single) & want.never
        scale = np.max(np.abs(double), where=np.isfinite(double), initial=0.0)
        noise = np.where(np.isfinite(want.noise), want.noise, np.inf)
        slack = _SAFETY * (noise + np.abs(single - double)) + _SAFETY * unit * (np.abs(double) + 1e-3 * scale) + 1e-30
        if unit > 2.0**-20:  # values are rounded to half precision on the way: an error of the size of the largest
            slack = slack + 8 * unit * scale
        # A sum of numbers this large may overflow on the way, in another order.
        near = finite & (np.abs(double) < 1e37)
        bad = near & ~(np.abs(found - double) <= slack) & np.isfinite(slack)
        bad |= near & ~np.isfinite(found)
        if not (masks and not inputs_finite):
            bad |= nothing & np.isfinite(found)
    if not bad.any():
        return None
    return tuple(int(n) for n in np.argwhere(bad)[0]) if bad.ndim else ()
