"""The exercises in which students write NumPy: online softmax and its join (notebook 01).

Every right number is read from the compiler's record: the student's function is compared with a native run of a
scheduled program, and mistakes are recognised by the runs of the record's wrong phases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_widgets.course.exercise import NotYet, exercise
from neptune_widgets.course.writing_flash import flash, flash_schedule
from neptune_widgets.course.written import (
    INVERTED,
    MANY,
    SAME,
    check_function,
    numbers_once,
    peak_of,
    result_of,
)

if TYPE_CHECKING:
    pass

ROWS = ((1, 3, 2, 4), (4, 1, 2, 3), (-1000, 1000, 998, 1001))  # of `online`
LONG = 2000  # numbers of the row on which `online` is watched
PARTS = (1, 3, 2, 4, 2, 0, 5, 1)  # of `join`: two parts, then four


# -- online softmax ---------------------------------------------------------------------------------------------


@exercise(
    "Write online softmax: the largest number and the sum, in one loop",
    hints=(
        "In each iteration: the new maximum, the factor, the sum. Section 1 does it by hand.",
        "`new = max(m, x)`. The sum so far is multiplied by `np.exp(m - new)`; what does the new number add?",
        "`s = np.exp(m - new) * s + np.exp(x - new)`, and then `m = new`.",
    ),
)
def online(function: Callable[..., Any]) -> str:
    """Right if the function gives the maximum and the sum that the repaired program holds after each number.

    Args:
        function: takes numbers that can be read once, and returns two numbers: the maximum, and the sum of
            exp(number - maximum).
    """
    check_function(function, "def online(numbers): …")
    for row in ROWS:
        right, naive = _tables(row)
        for n in range(1, len(row) + 1):
            pair = _pair(_online(function, row[:n]), "the result")
            _compare_online(row[:n], pair, right[n - 1], naive[n - 1])
    long = np.random.default_rng(0).normal(size=LONG).tolist()
    held = peak_of(lambda: _online(function, long))
    if held > 8 * LONG:
        raise NotYet(
            f"on {LONG:,} numbers it holds {held:,} bytes at once: it keeps the numbers or their exponentials. "
            "Only two numbers need to be kept"
        )
    return f"one loop and two numbers; on three rows it agrees with every column of the tag table's `xsum[0]`, {SAME}"


def _online(function: Callable[..., Any], numbers: Sequence[float]) -> Any:
    lines = MANY * len(numbers) + 100
    slow = (
        f"on {len(numbers):,} numbers it executes more than {lines:,} lines: it goes over earlier numbers again, "
        "or does not end. A few lines for each number are enough"
    )
    return result_of(function, numbers_once(numbers), lines=lines, slow=slow)


def _compare_online(seen: Sequence[float], pair: np.ndarray, right: np.ndarray, naive: np.ndarray) -> None:
    where = f"after the numbers {', '.join(map(str, seen))}" if len(seen) > 1 else f"after the number {seen[0]}"
    largest, total = pair
    if not np.isclose(largest, right[0]):
        raise NotYet(f"{where} the largest number is {right[0]:.4g}, and the first result is {largest:.4g}")
    if np.isclose(total, right[1], rtol=1e-5):
        return
    if not np.isfinite(total):
        why = "subtract the largest number in every exponential" if max(map(abs, seen)) > 99 else INVERTED
        raise NotYet(f"{where} the sum is {total}: {why}")
    if np.isclose(total, naive[1], rtol=1e-5):
        raise NotYet(
            f"{where} the sum is {total:.4g}, as naive fusion gives it: terms made with older maxima stay as is"
        )
    if np.isclose(total * np.exp(-largest), right[1], rtol=1e-5):
        raise NotYet(f"{where} the sum is {total:.4g}: it is the sum of exp(number), without the maximum subtracted")
    if len(seen) == 1 and total == 0:
        raise NotYet(f"{where} the sum is 0: the new term is multiplied by the factor too. Multiply first, then add")
    raise NotYet(f"{where} the sum is {total:.4g}, and the repaired program holds {right[1]:.4g}")


@cache
def _tables(row: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The maximum and the sum after each number: of the repaired program and of naive fusion; (numbers, 2) each."""
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import softmax

    sch = Schedule(softmax.figure1(rows=1, cols=len(row)))
    sch.rolling_update("s_sum", "s_max.j")
    inputs = {"inp": np.array([row], dtype="float32")}
    tables = (sch.tag_table("j", inputs=inputs), sch.tag_table("j", phase="naive", inputs=inputs))

    def values(table: Any, label: str) -> list[float]:
        return [cell.value for cell in table.row(label).cells if cell is not None]

    repaired, naive = (np.array([values(t, "xmax[0]"), values(t, "xsum[0]")]).T for t in tables)
    return repaired, naive


# -- the join of two parts --------------------------------------------------------------------------------------


@exercise(
    "Write the join of two parts",
    hints=(
        "Each part has its own maximum. Which maximum does the whole have?",
        "Both sums must be repaired to the maximum of the whole, then added. One of the two factors is 1.",
        "`m = max(a[0], b[0])`; the sum of part a is multiplied by `np.exp(a[0] - m)`, that of part b likewise.",
    ),
)
def join(function: Callable[..., Any]) -> str:
    """Right if the function makes of two parts' maxima and sums those of the whole, as the split program does.

    Args:
        function: takes two pairs (maximum, sum of exp(number - maximum)), and returns such a pair.
    """
    check_function(function, "def join(a, b): …")
    for numbers in (PARTS, PARTS[::-1]):
        parts, whole, naive = _parts(numbers, 2)
        _compare_join(parts, _join(function, *parts), whole, naive)
    parts, whole, naive = _parts(PARTS, 4)
    for order in (parts, parts[::-1]):
        if not np.allclose(joined := reduce(lambda a, b: _join(function, a, b), order), whole, rtol=1e-5):
            raise NotYet(f"four parts, joined one after the other, give {_text(joined)}; the whole is {_text(whole)}")
    far, whole, _ = _parts((-1000, -999, 1000, 999), 2)
    if not np.allclose(joined := _join(function, *far), whole, rtol=1e-5):
        raise NotYet(f"parts with the maxima -999 and 1000 give {_text(joined)}; the whole is {_text(whole)}")
    empty = (-np.inf, 0.0)
    if not np.allclose(joined := _join(function, empty, parts[0]), parts[0]):
        raise NotYet(f"joined with a part that has seen no number, (-inf, 0), a part becomes {_text(joined)}")
    return f"two parts and four, in both orders, give the maximum and the sum of the split program, {SAME}"


def _join(function: Callable[..., Any], a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    slow = "on two parts it executes more than 200 lines: a few lines are enough"
    return tuple(_pair(result_of(function, tuple(a), tuple(b), lines=200, slow=slow), "the join").tolist())


def _compare_join(
    parts: Sequence[tuple[float, float]], found: tuple[float, float], whole: tuple[float, float], naive: float
) -> None:
    if np.allclose(found, whole, rtol=1e-5):
        return
    (m, s), told = found, f"parts {_text(parts[0])} and {_text(parts[1])}"
    if not np.isclose(m, whole[0]):
        raise NotYet(f"{told}: the maximum of the whole is not {m:.4g}")
    if np.isclose(s, naive, rtol=1e-5):
        raise NotYet(f"{told}: {s:.4g} adds the two sums as they are, but they were made with different maxima")
    if not np.isfinite(s) or s > naive:
        raise NotYet(
            f"{told}: the sum is {s:.4g}, more than both sums together. A factor exp(own - whole) is at most 1"
        )
    raise NotYet(
        f"{told}: the sum is {s:.4g}, and the split program gives {whole[1]:.4g}. Each sum needs the factor from its "
        "own maximum to that of the whole"
    )


@cache
def _parts(row: tuple[float, ...], count: int) -> tuple[tuple[tuple[float, float], ...], tuple[float, float], float]:
    """The parts' pairs, the pair of the whole, and the sum that naive fusion gives: runs of the split program."""
    from neptune_lab.loop_ir.run import as_float64, run
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import softmax

    sch = Schedule(softmax.figure1(rows=1, cols=len(row)))
    sch.split("s_max.j", (count, None))
    sch.split_k_update("s_sum", "s_max.j0")
    inputs = {"inp": np.array([row], dtype="float32")}
    values = run(as_float64(sch.program), inputs)
    naive = run(as_float64(next(p.program for p in sch.phases if p.key == "naive")), inputs)
    local = zip(values["xmax_local"][0].tolist(), values["xsum_local"][0].tolist(), strict=True)
    whole = (float(values["xmax"][0]), float(values["xsum"][0]))
    return tuple(local), whole, float(naive["xsum"][0])


def _pair(value: Any, what: str) -> np.ndarray:
    try:
        array = np.array([float(x) for x in value], dtype="float64")
    except (TypeError, ValueError):
        raise NotYet(f"{what} should be two numbers, the maximum and the sum, found {value!r}") from None
    if array.shape != (2,):
        raise NotYet(f"{what} should be two numbers, the maximum and the sum, found {value!r}")
    return array


def _text(pair: Sequence[float]) -> str:
    return f"({pair[0]:.4g}, {pair[1]:.4g})"


__all__ = ["flash", "flash_schedule", "join", "online"]
