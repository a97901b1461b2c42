"""A running extremum starts with what every iteration would fold in; the numbers are in test_row_constants.py."""

from __future__ import annotations

import pytest
from pass_texts import after

from neptune_lab.htile_passes.start_with_constants import start_with_constants

DECLARED = """
program p(x, s) -> y
  input   x    float32[i: 4, j: 8]
  input   s    float32[i: 4]
  output  y    float32[i: 4]
  chip    m    float32[i: 4]
  chip    old  float32[i: 4]
  chip    c    float32[i: 4]
"""


def kernel(start: str, *body: str, loop: str = "for j in range(2):", end: str = "m[0:4]") -> str:
    inner = "\n".join(f"            {line}" for line in body)
    return f"""
    kernel p  grid ()
        {start}
        {loop}
{inner}
        y[0:4] = {end}
    """


TILE = "reduce(max, x[0:4, j*4:j*4+4], dim=1)"


def test_the_constant_moves_to_the_start():
    made = after(start_with_constants, DECLARED, kernel("m[0:4] = -inf", f"m[0:4] = max(m[0:4], max({TILE}, s[0:4]))"))
    assert (
        made
        == """
kernel p  grid ()
    m[0:4] = max(-inf, s[0:4])
    for j in range(2):
        m[0:4] = max(m[0:4], reduce(max, x[0:4, j*4:j*4+4], dim=1))
    y[0:4] = m[0:4]
"""
    )


def test_through_a_copy_of_the_previous_value():
    made = after(
        start_with_constants,
        DECLARED,
        kernel(
            "old[0:4] = -inf\n        c[0:4] = s[0:4]",
            f"m[0:4] = max(old[0:4], max({TILE}, c[0:4]))",
            "old[0:4] = m[0:4]",
        ),
    )
    assert "old[0:4] = max(-inf, c[0:4])" in made
    assert f"m[0:4] = max(old[0:4], {TILE})" in made


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(kernel("m[0:4] = -inf", f"m[0:4] = max(m[0:4], max({TILE}, x[0:4, j]))"), id="it moves"),
        pytest.param(
            kernel(
                "m[0:4] = -inf\n        c[0:4] = s[0:4]",
                f"m[0:4] = max(m[0:4], max({TILE}, c[0:4]))",
                f"c[0:4] = {TILE}",
            ),
            id="it changes",
        ),
        pytest.param(kernel("m[0:4] = 0.0", f"m[0:4] = max(m[0:4], max({TILE}, s[0:4]))"), id="another start"),
        pytest.param(
            kernel("m[0:4] = -inf\n        c[0:4] = m[0:4]", f"m[0:4] = max(m[0:4], max({TILE}, s[0:4]))"),
            id="the start is read",
        ),
        pytest.param(
            kernel("m[0:4] = -inf", f"m[0:4] = max(m[0:4], min({TILE}, s[0:4]))"), id="another operation inside"
        ),
        pytest.param(
            kernel("m[0:4] = -inf", f"m[0:4] = max(m[0:4], max({TILE}, s[0:4]))", "m[0:4] = m[0:4] * 0.5"),
            id="the loop stores it again",
        ),
        pytest.param(
            kernel(
                "old[0:4] = -inf\n        m[0:4] = 0.0",
                "old[0:4] = m[0:4]",
                f"m[0:4] = max(old[0:4], max({TILE}, s[0:4]))",
            ),
            id="the copy comes first",
        ),
        pytest.param(
            kernel(
                "m[0:4] = -inf",
                f"m[0:4] = max(m[0:4], max({TILE}, s[0:4]))",
                loop="for j in range(2, 2):",
            ),
            id="no iteration",
        ),
    ],
)
def test_what_stays(text: str):
    assert after(start_with_constants, DECLARED, text) == "unchanged"
