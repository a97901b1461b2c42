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


def test_right_growth():
    assert exercises.growth([4, 2])
    assert exercises.growth((3.97, 2.0))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([2, 2], "the definition's traffic does not grow by 2"),
        ([4, 4], "the kernel's traffic does not grow by 4"),
        ([2, 4], "exchanged"),
        ([8, 2], "does not grow by 8"),
        ([4], "expected 2 numbers"),
        ("4, 2", "expected 2 numbers"),
    ],
)
def test_wrong_growth_is_told_why(answer: object, why: str):
    verdict = exercises.growth(answer)
    assert verdict.state == "wrong"
    assert why in verdict.text


def test_open():
    assert exercises.lucky_row(None).state == exercises.growth(None).state == "open"
