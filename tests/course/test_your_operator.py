"""The exercises on operators of one's own: what is right, and what each likely wrong answer is told."""

from __future__ import annotations

from typing import Any

import pytest
from neptune_widgets.course import your_operator as exercises

from neptune_lab.operators.base import tensor_expressions

te = tensor_expressions()


def affine(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= kv) & ((q ^ kv) < 64) & (q - kv < 64)


def other_way_round(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (kv > q - 64) & exercises.chunked(b, h, q, kv)


def remainders(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= kv) & (q - kv <= 63) & (q % 64 >= kv % 64)


def too_narrow(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return exercises.chunked(b, h, q, kv) & (q - kv < 32)


def no_chunks(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= kv) & (q - kv < 64)


def too_wide(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return exercises.chunked(b, h, q, kv) & (q - kv < 128)


def with_and(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv and q - kv < 64


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mask", [affine, other_way_round, remainders])
def test_right_masks(mask: Any):
    verdict = exercises.fewer_tiles(mask)
    assert verdict, verdict
    assert "21 of 64" in verdict.text


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (exercises.chunked, "still visit 36 of 64"),
        (too_wide, "the pairs are right, and the loops still visit"),
        (too_narrow, "query 32 does not see key 0, 32 positions away"),
        (no_chunks, "query 64 sees key 1, 63 positions away"),
        (with_and, "the compiler refused"),
        (7, "expected a function"),
    ],
)
def test_wrong_masks_are_told_why(mask: Any, why: str):
    verdict = exercises.fewer_tiles(mask)
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.parametrize("row", [[3, 1, 2, 4], (0, 0, 0, 1), [-1, -3.5, -1, 60]])
def test_right_rows(row: Any):
    assert exercises.late_row(row)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([4, 3, 2, 1], "right sum at every iteration"),
        ([1, 2, 3, 4], "wrong from j = 1 on"),
        ([3, 1, 4, 2], "wrong from j = 2 on"),
        ([1, 2, 3], "four finite numbers"),
        ([1, 2, 3, float("inf")], "four finite numbers"),
        ("abc", "four numbers"),
    ],
)
def test_wrong_rows_are_told_why(row: Any, why: str):
    verdict = exercises.late_row(row)
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.parametrize(
    "h",
    [
        "t * exp(bottom_now - bottom_before)",
        "exp(bottom_now)*t/exp(bottom_before)",
        "t / exp(bottom_before-bottom_now)",
    ],
)
def test_right_repairs(h: str):
    verdict = exercises.minimum_repair(h)
    assert verdict, verdict
    assert "equals the definition" in verdict.text


@pytest.mark.parametrize(
    ("h", "why"),
    [
        ("t * exp(bottom_before - bottom_now)", "fails at 'prove Eq. 3'"),
        ("t", "is wanted"),
        ("exp(bottom_now - bottom_before)", "is wanted"),
        ("t * exp(top_now - top_before)", "is written with t, bottom_before and bottom_now"),
        ("t *", "is written with t, bottom_before and bottom_now"),
        (3, "expected a text"),
    ],
)
def test_wrong_repairs_are_told_why_and_not_what_is_right(h: Any, why: str):
    verdict = exercises.minimum_repair(h)
    assert verdict.state == "wrong"
    assert why in verdict.text
    assert "derived" not in verdict.text


ROWS, COLS = exercises.ROWS, exercises.COLS


def definition(
    *,
    reducer: Any = te.min,
    sign: int = 1,
    subtract: bool = True,
    divide_first: bool = False,
    start: int = 0,
    rows=ROWS,
) -> Any:
    """A soft position, in one of the ways in which a reader may write it."""

    def define(x: Any) -> Any:
        j, k, n = (te.reduce_axis((0, COLS), name="j") for _ in range(3))
        end = te.compute((ROWS,), lambda i: reducer(x[i, j], axis=j), name="end")
        shift = (lambda i: end[i]) if subtract else (lambda i: 0.0)
        e = te.compute((ROWS, COLS), lambda i, j: te.exp(sign * (shift(i) - x[i, j])), name="e")
        total = te.compute((ROWS,), lambda i: te.sum(e[i, k], axis=k), name="total")
        if divide_first:
            p = te.compute((ROWS, COLS), lambda i, j: e[i, j] / total[i], name="p")
            return te.compute((rows,), lambda i: te.sum(p[i, n] * (n + start).astype("float32"), axis=n), name="mean")
        first = te.compute((ROWS,), lambda i: te.sum(e[i, n] * (n + start).astype("float32"), axis=n), name="first")
        return te.compute((rows,), lambda i: first[i] / total[i], name="position")

    return define


def of_the_negative(x: Any) -> Any:
    """The pattern of `peak` on -x."""
    j, k, n = (te.reduce_axis((0, COLS), name="j") for _ in range(3))
    top = te.compute((ROWS,), lambda i: te.max(-x[i, j], axis=j), name="top")
    e = te.compute((ROWS, COLS), lambda i, j: te.exp(-x[i, j] - top[i]), name="e")
    total = te.compute((ROWS,), lambda i: te.sum(e[i, k], axis=k), name="total")
    first = te.compute((ROWS,), lambda i: te.sum(e[i, n] * n.astype("float32"), axis=n), name="first")
    return te.compute((ROWS,), lambda i: first[i] / total[i], name="position")


def away_from_the_mean(x: Any) -> Any:
    """The position, by way of a sum that adds up to 0 and cannot join the loop."""
    j, k, n, m = (te.reduce_axis((0, COLS), name="j") for _ in range(4))
    low = te.compute((ROWS,), lambda i: te.min(x[i, j], axis=j), name="low")
    e = te.compute((ROWS, COLS), lambda i, j: te.exp(low[i] - x[i, j]), name="e")
    total = te.compute((ROWS,), lambda i: te.sum(e[i, k], axis=k), name="total")
    first = te.compute((ROWS,), lambda i: te.sum(e[i, n] * n.astype("float32"), axis=n), name="first")
    mean = te.compute((ROWS,), lambda i: first[i] / total[i], name="mean")
    rest = te.compute((ROWS,), lambda i: te.sum(e[i, m] * (m.astype("float32") - mean[i]), axis=m), name="rest")
    return te.compute((ROWS,), lambda i: mean[i] + rest[i] / total[i], name="position")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("define", [definition(), of_the_negative, definition(divide_first=True)])
def test_right_definitions(define: Any):
    verdict = exercises.valley(define)
    assert verdict, verdict


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("define", "why"),
    [
        (definition(subtract=False), "the result is not finite"),
        (definition(reducer=te.max, sign=-1), "position of the largest"),
        (definition(start=1), "counted from 0"),
        (definition(rows=ROWS // 2), "the output has the shape (16,)"),
        (away_from_the_mean, "one will do. rest starts a loop of its own"),
        (lambda x: x, "the definition is refused"),
        (lambda x: 3, "a tensor made by te.compute"),
        (3, "expected a function"),
    ],
)
def test_wrong_definitions_are_told_why(define: Any, why: str):
    verdict = exercises.valley(define)
    assert verdict.state == "wrong", verdict
    assert why in verdict.text


def test_open():
    asked = (exercises.fewer_tiles, exercises.late_row, exercises.minimum_repair, exercises.valley)
    assert {ask(None).state for ask in asked} == {"open"}


# -- a window with sinks ---------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_right_sinks():
    assert exercises.sinks(lambda b, h, q, kv: (q >= kv) & ((q - kv < 8) | (kv < 2)))
    # The same by other means: what is not seen is taken away.
    assert exercises.sinks(lambda b, h, q, kv: ~((kv > q) | ((kv + 8 <= q) & (kv >= 2))))


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("mask_mod", "why"),
    [
        (lambda b, h, q, kv: (kv < 2) | ((q >= kv) & (q - kv < 8)), "query 0 sees key 1, which comes after it"),
        (lambda b, h, q, kv: (q - kv < 8) | (kv < 2), "query 0 sees key 1, which comes after it"),
        (lambda b, h, q, kv: (q >= kv) & (q - kv < 8), "query 8 does not see key 0, one of the first two"),
        (lambda b, h, q, kv: (q >= kv) & ((q - kv <= 8) | (kv < 2)), "query 10 sees key 2, which is 8 positions"),
        (lambda b, h, q, kv: (q >= kv) & ((q - kv < 7) | (kv < 2)), "query 9 does not see key 2, 7 positions before"),
        (lambda b, h, q, kv: (q >= kv) & ((q - kv < 8) | (kv <= 2)), "query 10 sees key 2"),
        (lambda b, h, q, kv: (q > kv) & ((q - kv < 8) | (kv < 2)), "query 0 does not see key 0, one of the first"),
        (lambda b, h, q, kv: q >= kv and q - kv < 8, "write `&`"),
        (lambda b, h, q, kv: q < kv - 999, "query 0 does not see key 0"),
        (lambda q, kv: q >= kv, "expected a function of (b, h, q, kv)"),
        (3, "expected a function"),
    ],
)
def test_wrong_sinks_are_told_which_pair(mask_mod: object, why: str):
    verdict = exercises.sinks(mask_mod)
    assert verdict.state == "wrong"
    assert why in verdict.text


def test_sinks_are_open():
    assert exercises.sinks(None).state == "open"
