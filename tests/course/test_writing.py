"""The writing exercises of notebook 01: right functions in several forms, and what each likely wrong one is told."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from neptune_widgets.course import writing as exercises
from neptune_widgets.course.exercise import NotYet
from neptune_widgets.course.written import Once, numbers_once, peak_of, result_of

Pair = tuple[float, float]
Tiles = Iterable[tuple[np.ndarray, np.ndarray]]
INF = math.inf


# -- online softmax ---------------------------------------------------------------------------------------------


def online(numbers: Iterable[float]) -> Pair:
    m, s = -INF, 0.0
    for x in numbers:
        new = max(m, x)
        s = np.exp(m - new) * s + np.exp(x - new)
        m = new
    return m, s


def online_with_a_branch(numbers: Iterable[float]) -> Any:
    m, s = -INF, 0.0
    for x in numbers:
        if x > m:
            s, m = s * math.exp(m - x) + 1, x
        else:
            s += math.exp(x - m)
    return np.array([m, s])


def stepped(step: Callable[[float, float, float], Pair]) -> Callable[[Iterable[float]], Pair]:
    def function(numbers: Iterable[float]) -> Pair:
        m, s = -INF, 0.0
        for x in numbers:
            m, s = step(m, s, x)
        return m, s

    return function


def of_a_list(numbers: Iterable[float]) -> Pair:
    kept = np.array(list(numbers))
    return kept.max(), np.exp(kept - kept.max()).sum()


def twice(numbers: Iterable[float]) -> Pair:
    m = max(numbers)
    return m, sum(np.exp(x - m) for x in numbers)


def again_and_again(numbers: Iterable[float]) -> Pair:
    seen: list[float] = []
    s = 0.0
    for x in numbers:
        seen.append(x)
        s = 0.0
        for y in seen:
            s += math.exp(y - max(seen))
    return max(seen), s


def endless(*_: Any) -> Any:
    while True:
        try:
            pass
        except Exception:  # noqa: BLE001  as a student may
            continue


def failing(numbers: Iterable[float]) -> Pair:
    for x in numbers:
        return x, 1 / 0
    return 0, 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", [online, online_with_a_branch])
def test_right_online(function: Any):
    assert exercises.online(function), exercises.online(function)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (stepped(lambda m, s, x: (max(m, x), s + np.exp(x - max(m, x)))), "the sum is 2, as naive fusion gives it"),
        (stepped(lambda m, s, x: (max(m, x), s + np.exp(x))), "without the maximum subtracted"),
        (
            stepped(lambda m, s, x: (max(m, x), s * np.exp(max(m, x) - m) + np.exp(x - max(m, x)))),
            "exp(new - old) is infinite",
        ),
        (
            stepped(lambda m, s, x: (max(m, x), (s + np.exp(x - max(m, x))) * np.exp(m - max(m, x)))),
            "Multiply first, then add",
        ),
        (stepped(lambda m, s, x: (max(m, x), np.exp(m - x) * s + 1)), "after the numbers 1, 3, 2 the sum is 4.086"),
        (stepped(lambda m, s, x: (x, np.exp(m - x) * s + 1)), "after the numbers 1, 3, 2 the largest number is 3"),
        (stepped(lambda m, s, x: (max(m, x, 0), s)), "the sum is 0"),
        (of_a_list, "it keeps the numbers"),
        (twice, "a second time"),
        (again_and_again, "goes over earlier numbers again"),
        (endless, "does not end"),
        (failing, "it raises ZeroDivisionError: division by zero, in line"),
        (lambda numbers: 3, "should be two numbers"),
        (lambda numbers: numbers[0], "by index"),
        (lambda numbers: range(len(numbers)), "has no len()"),
        (7, "expected a function"),
    ],
)
def test_wrong_online_is_told_why(function: Any, why: str):
    verdict = exercises.online(function)
    assert verdict.state == "wrong"
    assert why in verdict.text


# -- the join ---------------------------------------------------------------------------------------------------


def join(a: Pair, b: Pair) -> Pair:
    m = max(a[0], b[0])
    return m, a[1] * np.exp(a[0] - m) + b[1] * np.exp(b[0] - m)


def join_in_place(a: Pair, b: Pair) -> list[float]:
    (small, s), (m, t) = sorted([a, b])
    return [m, t + s * math.exp(small - m)]


@pytest.mark.parametrize("function", [join, join_in_place])
def test_right_joins(function: Any):
    assert exercises.join(function), exercises.join(function)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda a, b: (max(a[0], b[0]), a[1] + b[1]), "adds the two sums as they are"),
        (lambda a, b: (a[0] + b[0], a[1] + b[1]), "the maximum of the whole is not 9"),
        (
            lambda a, b: (max(a[0], b[0]), sum(s * np.exp(max(a[0], b[0]) - m) for m, s in (a, b))),
            "A factor exp(own - whole) is at most 1",
        ),
        (lambda a, b: (max(a[0], b[0]), a[1] * np.exp(a[0] - b[0]) + b[1]), "parts (5, 1.075) and (4, 1.553)"),
        (
            lambda a, b: (max(a[0], b[0]), sum(s * np.exp(m) for m, s in (a, b)) / np.exp(max(a[0], b[0]))),
            "parts with the maxima -999 and 1000",
        ),
        (lambda a, b: join(a, b) if a[0] > -1e6 else (b[0], 0), "has seen no number"),
        (endless, "more than 200 lines"),
        (lambda a, b: a["m"], "raises TypeError"),
        (lambda a, b: a + b, "should be two numbers"),
        (None, "replace `None`"),
    ],
)
def test_wrong_joins_are_told_why(function: Any, why: str):
    verdict = exercises.join(function)
    assert not verdict
    assert why in verdict.text


# -- FlashAttention's loop --------------------------------------------------------------------------------------


def looped(body: Callable[..., Any], end: Callable[..., Any] | None = None) -> Any:
    """A student's function with another body."""

    def function(q: np.ndarray, tiles: Tiles, scale: float) -> np.ndarray:
        m, s, acc = np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros(q.shape)
        for keys, values in tiles:
            score = q @ keys.T * scale
            m, s, acc = body(m, s, acc, score, values)
        return acc / s[:, None] if end is None else end(s, acc)

    return function


def right_body(m: Any, s: Any, acc: Any, score: Any, values: Any) -> Any:
    new = np.maximum(m, score.max(axis=1))
    factor, p = np.exp(m - new), np.exp(score - new[:, None])
    return new, factor * s + p.sum(axis=1), factor[:, None] * acc + p @ values


def unrepaired(which: str) -> Any:
    def body(m: Any, s: Any, acc: Any, score: Any, values: Any) -> Any:
        new = np.maximum(m, score.max(axis=1))
        factor, p = np.exp(m - new), np.exp(score - new[:, None])
        first, second = (1 if "s" in which else factor), (1 if "acc" in which else factor[:, None])
        return new, first * s + p.sum(axis=1), second * acc + p @ values

    return body


def inverted(m: Any, s: Any, acc: Any, score: Any, values: Any) -> Any:
    new = np.maximum(m, score.max(axis=1))
    factor, p = np.exp(new - m), np.exp(score - new[:, None])
    return new, factor * s + p.sum(axis=1), factor[:, None] * acc + p @ values


def no_maximum(m: Any, s: Any, acc: Any, score: Any, values: Any) -> Any:
    p = np.exp(score)
    return m, s + p.sum(axis=1), acc + p @ values


def unscaled(q: np.ndarray, tiles: Tiles, scale: float) -> np.ndarray:
    return looped(right_body)(q, tiles, 1.0)


def with_all_scores(q: np.ndarray, tiles: Tiles, scale: float) -> np.ndarray:
    scores, values = zip(*((q @ k.T * scale, v) for k, v in tiles), strict=True)
    score = np.concatenate(scores, axis=1)
    p = np.exp(score - score.max(axis=1, keepdims=True))
    return p @ np.concatenate(values) / p.sum(axis=1, keepdims=True)


def in_two_passes(q: np.ndarray, tiles: Tiles, scale: float) -> np.ndarray:
    m = np.max([(q @ k.T * scale).max(axis=1) for k, _ in tiles], axis=0)
    return looped(lambda *x: right_body(m, *x[1:]))(q, tiles, scale)


def number_by_number(q: np.ndarray, tiles: Tiles, scale: float) -> np.ndarray:
    out, kept = np.zeros(q.shape), list(tiles)
    for i in range(len(q)):
        m, s = -np.inf, 0.0
        for keys, values in kept:
            for key, value in zip(keys, values, strict=True):
                score = q[i] @ key * scale
                new = max(m, score)
                s = s * np.exp(m - new) + np.exp(score - new)
                out[i] = out[i] * np.exp(m - new) + np.exp(score - new) * value
                m = new
        out[i] /= s
    return out


def in_place(q: np.ndarray, tiles: Tiles, scale: float) -> np.ndarray:
    q *= scale
    return looped(right_body)(q, tiles, 1.0)


def test_right_flash():
    verdict = exercises.flash(looped(right_body))
    assert verdict, verdict
    assert "one loop over 32 tiles" in verdict.text


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (looped(unrepaired("acc")), "the sum is repaired and the accumulator is not, as in naive fusion"),
        (looped(unrepaired("s")), "the sum is too large for the accumulator"),
        (looped(unrepaired("s acc")), "treated alike: neither is repaired"),
        (looped(inverted), "exp(new - old) is infinite"),
        (looped(no_maximum), "an exponential overflows. Subtract the maximum so far"),
        (lambda q, tiles, scale: None, "the function returns None"),
        (looped(right_body, lambda s, acc: acc), "still has to be divided by the sum"),
        (unscaled, "not multiplied by `scale`"),
        (with_all_scores, "it keeps the scores"),
        (in_two_passes, "a second time"),
        (number_by_number, "single rows or scores"),
        (endless, "does not end"),
        (in_place, "raises ValueError: output array is read-only"),
        (looped(lambda m, s, acc, score, values: (m, s, acc / 0)), "the output is not finite"),
        (looped(lambda m, s, acc, score, values: (m, s, acc @ values[:3])), "raises ValueError"),
        (looped(right_body, lambda s, acc: acc.sum(axis=1)), "should have the shape (16, 8), found (16,)"),
        (lambda q, tiles: q, "raises TypeError"),
        ("flash", "expected a function"),
    ],
)
def test_wrong_flash_is_told_why(function: Any, why: str):
    verdict = exercises.flash(function)
    assert verdict.state == "wrong"
    assert why in verdict.text


# -- the schedule -----------------------------------------------------------------------------------------------


def build(*left_out: str, size: int = 16) -> Any:
    def schedule(sch: Any) -> None:
        if "tile" not in left_out:
            sch.tile("qk", i=16, j=size)
        loop = "qk.j" if "tile" in left_out else "qk.j0"
        sch.reverse_compute_at("score", loop)
        for reduction in ("s_max", "s_sum", "acc"):
            if reduction not in left_out:
                sch.rolling_update(reduction, loop)
        if "retire" not in left_out:
            sch.retire_tags("s_max")

    return schedule


@pytest.mark.parametrize("schedule", [build(), build("s_max")])  # the sum's update fuses the maximum too
def test_right_schedules(schedule: Any):
    verdict = exercises.flash_schedule(schedule)
    assert verdict, verdict
    assert "equals the definition" in verdict.text


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (lambda sch: None, "was not changed"),
        (build("tile"), "expected 4 tiles of 16 keys"),
        (build(size=32), "expected 4 tiles of 16 keys"),
        (build("acc"), "`acc` is not in the loop over tiles"),
        (build("s_sum", "acc", "retire"), "`s_sum` is not in the loop over tiles"),
        (build("retire"), "only the last two"),
        (build("s_sum", "acc"), "the compiler refused"),
        (lambda sch: sch.tile("qk", i=32, j=16), "`score` is not in the loop"),
        (3, "expected a function"),
    ],
)
def test_wrong_schedules_are_told_what_is_missing(schedule: Any, why: str):
    verdict = exercises.flash_schedule(schedule)
    assert verdict.state == "wrong"
    assert why in verdict.text


# -- running a student's function -------------------------------------------------------------------------------


def test_a_function_that_is_not_filled_in_is_open():
    def skeleton(*_: Any) -> Any:
        raise NotImplementedError

    for exercise in (exercises.online, exercises.join, exercises.flash):
        assert exercise(skeleton).state == "open"
        assert "fill in the function" in exercise(skeleton).text


def test_lines_are_counted():
    assert result_of(lambda: sum(range(10)), lines=50, slow="slow") == 45
    with pytest.raises(NotYet, match="slow"):
        result_of(endless, lines=50, slow="slow")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", ["trace", "profile"])
@pytest.mark.parametrize("function", [looped(right_body), number_by_number])
def test_a_tracer_that_runs_already_changes_no_verdict(kind: str, function: Any):
    want, seen = exercises.flash(function), []  # the bytes that it holds differ a little from run to run

    def tracer(*event: Any) -> Any:
        seen.append(bytes(1000))
        return tracer

    get: Any = getattr(sys, f"get{kind}")
    put: Any = getattr(sys, f"set{kind}")
    before = get()
    put(tracer)
    try:
        found, after = exercises.flash(function), get()
    finally:
        put(before)
    assert after is tracer
    assert seen
    assert found.state == want.state


def test_lines_of_others_are_not_counted(capsys: pytest.CaptureFixture[str]):
    from fractions import Fraction

    def function() -> Fraction:
        total = Fraction(0)
        for n in range(1, 20):
            total += Fraction(1, n)  # Fraction is written in Python
            print(total)
        return total

    assert result_of(function, lines=80, slow="slow") > 3


def test_items_are_read_once():
    items = numbers_once([1, 2])
    assert list(items) == [1.0, 2.0]
    with pytest.raises(NotYet, match="the numbers a second time"):
        list(items)
    assert isinstance(items, Once)


def test_peak_counts_what_is_held_at_once():
    assert peak_of(lambda: [np.zeros(1000) for _ in range(4)]) > 4 * 8000
    assert peak_of(lambda: [np.zeros(1000).sum() for _ in range(40)]) < 20000
