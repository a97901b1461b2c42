"""The exercises in which students write NumPy: a variance in one pass (02) and FlashDecoding's second kernel (03).

As in `writing`, every right number is read from a native run of the compiler's record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from neptune_widgets.course.exercise import NotYet, exercise
from neptune_widgets.course.written import (
    array_of,
    check_function,
    constant,
    numbers_once,
    peak_of,
    result_of,
)

COUNT = 8  # numbers of a row of `variance`
SPLITS, KEYS, WIDTH = 4, 16, 4  # of `combine`
LONG = 2000
_MANY = 60  # lines for each number

# -- a variance in one pass -------------------------------------------------------------------------------------


@exercise(
    "Write the variance in one pass",
    hints=(
        "Take the mean of the numbers so far as `r`. Four numbers suffice: how many, the mean, and two sums.",
        "A new number changes the mean from `r` to `new`. First repair both sums by the matrix of section 9, then add.",
        "With `d = r - new`, `t0` becomes `t0 + 2*d*t1 + d*d*n`, and `t1` becomes `t1 + d*n`; `n` is the old count.",
        "Then add `(c - new)**2` to `t0` and `c - new` to `t1`, and set `r = new` and `n = n + 1`.",
    ),
)
def variance(function: Callable[..., Any]) -> str:
    """Right if the function gives the variance of the one-pass program, also where the mean is large.

    Args:
        function: takes numbers that can be read once; returns their mean square deviation from the mean.
    """
    check_function(function, "def variance(numbers): …")
    for row in _rows():
        found = float(array_of(_variance(function, row), (), "the variance"))
        right = float(_moments(row)["variance"][0])
        if not np.isclose(found, right, rtol=1e-4, atol=1e-12):
            raise NotYet(_wrong_variance(row, found, right))
    long = np.random.default_rng(0).normal(size=LONG).tolist()
    held = peak_of(lambda: _variance(function, long))
    if held > 8 * LONG:
        raise NotYet(f"on {LONG:,} numbers it holds {held:,} bytes at once: it keeps the numbers. Four are enough")
    return "one loop and a few numbers; it agrees with the compiler's one-pass program, also with a mean of 10 million"


def _rows() -> tuple[tuple[float, ...], ...]:
    """Small integers, a large first number, and a large mean."""
    return (1, 3, 2, 4, 2, 0, 5, 1), (100, 0, 0, 0, 0, 0, 0, 1), tuple(1e7 + x for x in (1, 3, 2, 4, 2, 0, 5, 1))


def _variance(function: Callable[..., Any], row: Sequence[float]) -> Any:
    lines = _MANY * len(row) + 100
    slow = (
        f"on {len(row):,} numbers it executes more than {lines:,} lines: it goes over earlier numbers again, or does "
        "not end"
    )
    return result_of(function, numbers_once(row), lines=lines, slow=slow)


def _wrong_variance(row: tuple[float, ...], found: float, right: float) -> str:
    told = f"of {', '.join(f'{x:g}' if abs(x) < 1e6 else f'{x:.0f}' for x in row)} the variance is {right:.6g}"
    if not np.isfinite(found):
        return f"{told}, and the result is {found}"
    if np.isclose(found, right * COUNT / (COUNT - 1)):
        return f"{told}; {found:.6g} divides by the count less 1"
    if np.isclose(found, right * COUNT):
        return f"{told}; {found:.6g} is the sum, which still has to be divided by the count"
    if np.isclose(found, right**0.5):
        return f"{told}; {found:.6g} is its root, the standard deviation"
    means = _moments(row)["x_sum"].ravel() / np.arange(1, COUNT + 1)
    if np.isclose(found, ((np.array(row) - means) ** 2).mean()):
        return f"{told}; {found:.6g} leaves the squares that were made with older means as they are: repair them"
    if min(row) > 1e6:
        return (
            f"{told}, and the result is {found:.6g}: it subtracts two large numbers. Sum squares of `c - r`, not of `c`"
        )
    return f"{told}, and the result is {found:.6g}"


@cache
def _moments(row: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Every value of the one-pass program: of the row, computed natively in float64."""
    from neptune_lab.loop_ir.run import run

    return run(_one_pass(), {"x": np.array([row], dtype="float64")})


@cache
def _one_pass() -> Any:
    from neptune_lab.loop_ir.run import as_float64
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import norms

    sch = Schedule(norms.layer_norm_statistics(rows=1, cols=COUNT))
    sch.rolling_update("deviation_sum", "x_sum.j")
    return as_float64(sch.program)


# -- FlashDecoding's second kernel ------------------------------------------------------------------------------


@exercise(
    "Write FlashDecoding's second kernel",
    hints=(
        "The maximum of the whole is that of the parts' maxima. Each part has one factor, for its sum and accumulator.",
        "`factor = np.exp(largest - largest.max())`, one for each part.",
        "The output is the sum of the repaired accumulators over the sum of the repaired sums.",
    ),
)
def combine(function: Callable[..., Any]) -> str:
    """Right if the function makes of the parts' results the output of the split program.

    Args:
        function: takes the parts' maxima (4,), sums (4,) and accumulators (4, 4), and returns the output (4,).
    """
    check_function(function, "def combine(largest, sums, accs): …")
    for seed, spread in ((0, 1.0), (1, 4.0), (2, 600.0)):
        values, naive = _split_run(seed, spread)
        out = array_of(_combine(function, values), (WIDTH,), "the output")
        if not np.allclose(out, values["out"], rtol=1e-6):
            raise NotYet(_wrong_output(out, values, naive))
    empty = {name: np.concatenate([x, np.full_like(x[:1], start)]) for name, x, start in _with_start(values)}
    out = array_of(_combine(function, empty), (WIDTH,), "the output")
    if not np.allclose(out, values["out"], rtol=1e-6):
        raise NotYet(f"with a fifth part that has no key (maximum -inf, sum 0, accumulator 0) it gives {_first(out)}")
    return "the output is that of the compiler's native run of the split program; an empty part adds nothing"


def _with_start(values: dict[str, np.ndarray]) -> tuple[tuple[str, np.ndarray, float], ...]:
    return tuple((name, values[name], start) for name, start in (("largest", -np.inf), ("sums", 0), ("accs", 0)))


def _combine(function: Callable[..., Any], values: dict[str, np.ndarray]) -> Any:
    arguments = (constant(values[name]) for name in ("largest", "sums", "accs"))
    slow = f"on {SPLITS} parts it executes more than 500 lines: a few lines are enough, or it does not end"
    return result_of(function, *arguments, lines=500, slow=slow)


def _wrong_output(out: np.ndarray, values: dict[str, np.ndarray], naive: np.ndarray) -> str:
    told = f"the output begins with {_first(out)}, and right is {_first(values['out'])}"
    if not np.isfinite(out).all():
        return f"{told}: exp of a large number overflows. A factor exp(own maximum - maximum of the whole) is at most 1"
    if np.allclose(out, naive, rtol=1e-6):
        return f"{told}: that adds the parts as they are, as naive fusion does; each was made with its own maximum"
    if np.allclose(out, values["acc"], rtol=1e-6):
        return f"{told}: that is the accumulator of the whole, which still has to be divided by the sum"
    own = values["accs"] / values["sums"][:, None]
    if np.allclose(out, own.mean(axis=0), rtol=1e-6):
        return f"{told}: that is the mean of the parts' own outputs; parts with larger scores weigh more"
    return f"{told}: sums and accumulators need the same factor of each part"


def _first(values: np.ndarray) -> str:
    return f"{values.flat[0]:.6g}"


@cache
def _split_run(seed: int, spread: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What the parts hold, the accumulator and the output of the split program; and naive fusion's output."""
    from neptune_lab.loop_ir.run import run

    repaired, naive = _split_programs()
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(1, 1, n, WIDTH)).astype("float32") for n in (1, KEYS, KEYS))
    inputs = {"q": q * spread, "k": k, "v": v}
    held, wrong = run(repaired, inputs), run(naive, inputs)
    names = {"largest": "s_max_local", "sums": "s_sum_local", "accs": "acc_local", "acc": "acc", "out": "out"}
    parts = {ours: held[theirs][0, 0, 0] for ours, theirs in names.items()}
    return parts, wrong["acc"][0, 0, 0] / wrong["s_sum_local"].sum()


@cache
def _split_programs() -> tuple[Any, Any]:
    """The split program and its wrong form, before the accumulator is repaired; both in float64."""
    from neptune_lab.loop_ir.run import as_float64
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import attention

    sch = Schedule(attention.full(batch=1, heads=1, q_len=1, kv_len=KEYS, head_dim=WIDTH, dtype="float32"))
    sch.split("qk.j", (SPLITS, None))
    sch.reverse_compute_at("score", "qk.j0")
    for reduction in ("s_max", "s_sum", "acc"):
        sch.split_k_update(reduction, "qk.j0")
    phases = {phase.key: as_float64(phase.program) for phase in sch.phases}
    return phases["repaired"], phases["naive"]
