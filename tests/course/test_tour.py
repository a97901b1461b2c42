"""The tour's exercises: what is right, and what each likely wrong answer is told."""

from __future__ import annotations

import pytest
from neptune_widgets.course import tour as exercises


@pytest.mark.parametrize("row", [[4, 1, 2, 3], (0, -1, -2.5, -9), [1e-3, -5, 0, -1e3]])
def test_lucky_rows(row: object):
    assert exercises.lucky_row(row)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([1, 3, 2, 4], "3.36788 here, right is 1.553: it reads too early at j = 0, 1, 2"),
        ([3, 4, 2, 1], "too early at j = 0"),
        ([4, 4, 4, 4], "different"),
        ([4, 3, 2], "expected four finite numbers"),
        ([4, 3, 2, float("nan")], "expected four finite numbers"),
        ("largest first", "expected four numbers"),
        (7, "expected four"),
    ],
)
def test_unlucky_rows_are_told_why(row: object, why: str):
    verdict = exercises.lucky_row(row)
    assert verdict.state == "wrong"
    assert why in verdict.text


def test_right_masks():
    assert exercises.sinks(lambda b, h, q, kv: (q >= kv) & ((q - kv < 8) | (kv < 2)))
    # The same by other means: what is not seen is taken away.
    assert exercises.sinks(lambda b, h, q, kv: ~((kv > q) | ((kv + 8 <= q) & (kv >= 2))))


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
def test_wrong_masks_are_told_which_pair(mask_mod: object, why: str):
    verdict = exercises.sinks(mask_mod)
    assert verdict.state == "wrong"
    assert why in verdict.text


def test_open():
    assert exercises.lucky_row(None).state == exercises.sinks(None).state == "open"
