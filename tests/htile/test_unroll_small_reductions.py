"""A reduction of a few elements over a large tile becomes a statement per element."""

from __future__ import annotations

import pytest
from pass_texts import after

from neptune_lab.htile_passes.unroll_small_reductions import unroll_small_reductions

DECLARED = """
program p(q, k) -> y
  input   q     float32[i: 4, d: 3]
  input   k     float32[j: 8, d: 3]
  output  y     float32[i: 4, j: 8]
  chip    s     float32[i: 4, j: 8]
  chip    held  float32[i: 4, d: 3]
"""


def kernel(value: str, *before: str) -> str:
    lines = "\n        ".join((*before, f"s[0:4, 0:8] = {value}", "y[0:4, 0:8] = s[0:4, 0:8]"))
    return f"""
    kernel p  grid ()
        {lines}
    """


DIFFERENCE = "q[0:4, 0:3, NewAxis] - permute(k[0:8, 0:3, NewAxis], (2, 1, 0))"


def test_one_statement_per_element():
    made = after(unroll_small_reductions, DECLARED, kernel(f"reduce(sum, abs({DIFFERENCE}), dim=1)"))
    assert (
        made
        == """
kernel p  grid ()
    s[0:4, 0:8] = abs(q[0:4, 0, NewAxis] - k[NewAxis, 0:8, 0])
    s[0:4, 0:8] = s[0:4, 0:8] + abs(q[0:4, 1, NewAxis] - k[NewAxis, 0:8, 1])  @s=tile:s+1
    s[0:4, 0:8] = s[0:4, 0:8] + abs(q[0:4, 2, NewAxis] - k[NewAxis, 0:8, 2])  @s=tile:s+2
    y[0:4, 0:8] = s[0:4, 0:8]
"""
    )


def test_the_largest_condition_is_whether_one_holds():
    declared = DECLARED.replace("float32[i: 4, j: 8]", "bool[i: 4, j: 8]")
    made = after(unroll_small_reductions, declared, kernel(f"reduce(max, {DIFFERENCE.replace(' - ', ' == ')}, dim=1)"))
    assert made.count("s[0:4, 0:8] or q[0:4, ") == 2


def test_reductions_inside_each_other_keep_to_rows():
    declared = DECLARED.replace("d: 3]", "c: 2, d: 2]")
    points = "permute(k[0:8, 0:2, 0:2, NewAxis], (3, 1, 2, 0))"
    value = f"reduce(max, reduce(max, q[0:4, 0:2, 0:2, NewAxis] * {points}, dim=2), dim=1)"
    made = after(unroll_small_reductions, declared, kernel(value))
    assert made.count("s[0:4, 0:8] = ") == 4
    assert "s[0:4, 0:8] = max(s[0:4, 0:8], q[0:4, 1, 0, NewAxis] * k[NewAxis, 0:8, 1, 0])" in made


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            kernel(
                "reduce(sum, abs(held[0:4, 0:3, NewAxis] - permute(k[0:8, 0:3, NewAxis], (2, 1, 0))), dim=1)",
                "held[0:4, 0:3] = q[0:4, 0:3]",
            ),
            id="an element of a tile on chip cannot be read",
        ),
        pytest.param(
            kernel(
                "reduce(sum, abs(q[0:4, 0:4, NewAxis] - permute(k[0:8, 0:4, NewAxis], (2, 1, 0))), dim=1)",
            ),
            id="past the end",
        ),
        pytest.param(kernel(f"reduce(sum, abs({DIFFERENCE}), dim=1) + 1.0"), id="inside an expression"),
    ],
)
def test_left_as_it_is(text: str):
    assert after(unroll_small_reductions, DECLARED, text) == "unchanged"


def test_many_elements_are_left():
    declared = DECLARED.replace("d: 3", "d: 64")
    value = "reduce(sum, abs(q[0:4, 0:64, NewAxis] - permute(k[0:8, 0:64, NewAxis], (2, 1, 0))), dim=1)"
    assert after(unroll_small_reductions, declared, kernel(value)) == "unchanged"
