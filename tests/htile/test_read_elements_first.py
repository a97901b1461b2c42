"""Single elements are read before the first reduction: what moves, what stays, and that the meaning stays."""

from __future__ import annotations

import numpy as np
import pytest
from pass_texts import after, read

from neptune_lab.htile import interpret
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.read_elements_first import read_elements_first

DECLARED = """
program p(x, v, labels) -> y, z
  input   x  float32[i: 4, j: 8]
  input   v  float32[i: 4]
  input   labels  int32[i: 4]
  output  y  float32[i: 4]
  output  z  float32[i: 4]
  chip    m  float32[i: 4]
  chip    s  float32[i: 4]
  chip    t  float32[i: 4]
"""
MAX = "m[i] = reduce(max, x[i, 0:8], dim=0)"
SUM = "s[i] = reduce(sum, exp(x[i, 0:8] - m[i]), dim=0)"
LABEL = "t[i] = gather(x, i, labels[i])"
OUT = "y[i] = m[i] + log(s[i]) - t[i]"
NONE = "z[i] = 0.0"


def kernel(*body: str) -> str:
    return "\nkernel p  grid (i: 4)\n    " + "\n    ".join(body) + "\n"


def test_an_element_at_a_position_is_read_first():
    found = after(read_elements_first, DECLARED, kernel(NONE, MAX, SUM, LABEL, OUT))
    assert [line.strip() for line in found.splitlines()[-5:]] == [NONE, LABEL, MAX, SUM, OUT]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((NONE, LABEL, MAX, SUM, OUT), id="what is first"),
        pytest.param((NONE, MAX, SUM, "t[i] = v[i] * s[i]", OUT), id="what reads a sum"),
        pytest.param(("z[i] = v[i]", MAX, SUM, "t[i] = z[i]", OUT), id="what reads a result"),
        pytest.param((NONE, "t[i] = 0.0", MAX, SUM, "t[i] = v[i]", OUT), id="what is stored twice"),
        pytest.param((NONE, MAX, SUM, "t[i] = reduce(sum, x[i, 0:4], dim=0)", OUT), id="what reads a row"),
        pytest.param((NONE, MAX, SUM, "t[i] = 1.0", OUT), id="what reads nothing"),
        pytest.param((MAX, SUM, "t[i] = 1.0", "z[i] = v[i]", OUT), id="what is a result"),
    ],
)
def test_what_stays(body: tuple[str, ...]):
    assert after(read_elements_first, DECLARED, kernel(*body)) == "unchanged"


def test_programs_of_few_warps_stay():
    body = kernel(NONE, MAX, SUM, LABEL, OUT).replace("grid (i: 4)", "grid (i: 4)  num_warps=2")
    assert after(read_elements_first, DECLARED, body) == "unchanged"


@pytest.mark.parametrize("seed", range(12))
def test_the_meaning_stays(seed: int):
    rng = np.random.default_rng(seed)
    numbers = ["v[i]", "float32(labels[i])", "gather(x, i, labels[i])", "z[i]"]
    body = ["z[i] = v[i] * 0.5", MAX]
    for _ in range(8):
        target = str(rng.choice(["s", "t", "y", "z"]))
        own = " * ".join(rng.choice(numbers, 2))
        body.append(f"{target}[i] = {rng.choice([own, f'reduce(sum, x[i, 0:8] * {own}, dim=0)'])}")
        numbers += [f"{target}[i]"] * (f"{target}[i]" not in numbers)
    program = read(DECLARED, kernel(*body, f"y[i] = {numbers[-1]} + m[i]"))
    made = apply(read_elements_first, program).program
    given = {"x": rng.standard_normal((4, 8)), "v": rng.standard_normal(4), "labels": rng.integers(0, 8, 4)}
    want, found = (interpret(p, given, dtype="float64") for p in (program, made))
    for name in ("y", "z"):
        np.testing.assert_array_equal(found[name], want[name])
