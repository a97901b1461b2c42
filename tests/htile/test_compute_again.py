"""Rows whose float32 values do not fit in registers are computed again from what was loaded."""

from __future__ import annotations

import numpy as np
import pytest
from pass_texts import after, read

from neptune_lab.htile import interpret
from neptune_lab.htile_passes import apply, compute_again

PASS = compute_again.compute_again
DECLARED = """
program p(x, g, m) -> y
  input   x  float16[i: 4, j: 64]
  input   g  float16[i: 4, j: 64]
  input   m  float32[i: 4]
  output  y  float32[i: 4, j: 64]
  chip    w  float32[i: 4, j: 64]
  chip    n  float32[i: 4]
  chip    s  float32[i: 4]
"""
WEIGHTS = "exp(float32(x[i, 0:64]) - {})"
SUM = "s[i] = reduce(sum, float32(g[i, 0:64]) * w[i, 0:64], dim=0)"
OUT = "y[i, 0:64] = (float32(g[i, 0:64]) - s[i]) * w[i, 0:64]"


def kernel(*body: str) -> str:
    return "\nkernel p  grid (i: 4)  num_warps=1\n    " + "\n    ".join(body) + "\n"


@pytest.fixture
def few_registers(monkeypatch):
    monkeypatch.setattr(compute_again, "BESIDE", compute_again.MOST_OF_THREAD)


def test_what_fits_stays():
    program = read(DECLARED, kernel(f"w[i, 0:64] = {WEIGHTS.format('m[i]')}", SUM, OUT))
    assert apply(PASS, program).program is program


@pytest.mark.parametrize(("rows", "columns", "again"), [(264, 16384, True), (263, 16384, False), (264, 8192, False)])
def test_a_second_program_has_room_for_what_was_loaded(rows: int, columns: int, again: bool):
    """Of 32 elements for each of 512 threads, and of 256 with fewer columns, of which three programs run."""
    declared = DECLARED.replace("i: 4", f"i: {rows}").replace("j: 64", f"j: {columns}")
    body = (f"w[i, 0:64] = {WEIGHTS.format('m[i]')}", SUM, OUT)
    text = kernel(*body).replace("i: 4", f"i: {rows}").replace("num_warps=1", f"num_warps={columns // 1024}")
    program = read(declared, text.replace("0:64", f"0:{columns}"))
    assert (apply(PASS, program).program is not program) == again


@pytest.mark.usefixtures("few_registers")
def test_a_row_is_computed_again():
    found = after(PASS, DECLARED, kernel(f"w[i, 0:64] = {WEIGHTS.format('m[i]')}", SUM, OUT))
    assert "g_again[0:64] = again(g[i, 0:64])" in found
    assert "w[i, 0:64] = exp(float32(x_again[0:64]) - m[i])" in found
    assert "y[i, 0:64] = (float32(g_again[0:64]) - s[i]) * w[i, 0:64]" in found


@pytest.mark.usefixtures("few_registers")
def test_an_expression_of_two_statements_is_computed_again():
    """Triton would compute it once."""
    body = (text.replace("w[i, 0:64]", WEIGHTS.format("m[i]")) for text in (SUM, OUT))
    found = after(PASS, DECLARED, kernel(*body))
    assert "y[i, 0:64] = (float32(g_again[0:64]) - s[i]) * exp(float32(x_again[0:64]) - m[i])" in found


@pytest.mark.usefixtures("few_registers")
def test_a_statement_may_reduce_twice():
    """As of rows that begin between vectors, whose edges are tiles of their own (`cut_long_rows`)."""
    twice = SUM + " + reduce(max, float32(g[i, 0:64]) * w[i, 0:64], dim=0)"
    found = after(PASS, DECLARED, kernel(f"w[i, 0:64] = {WEIGHTS.format('m[i]')}", twice, OUT))
    assert "w[i, 0:64] = exp(float32(x_again[0:64]) - m[i])" in found


@pytest.mark.usefixtures("few_registers")
@pytest.mark.parametrize("between", ["", "n[i] = n[i] + 1.0", "w[i, 0:64] = w[i, 0:64] + 1.0"])
def test_the_meaning_stays(between):
    start = ("n[i] = m[i]", f"w[i, 0:64] = {WEIGHTS.format('n[i]')}", *([between] if between else []))
    program = read(DECLARED, kernel(*start, SUM, OUT))
    made = apply(PASS, program).program
    assert (made is program) == bool(between)
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(shape) for name, shape in (("x", (4, 64)), ("g", (4, 64)), ("m", (4,)))}
    want, found = (interpret(p, given, dtype="float64")["y"] for p in (program, made))
    np.testing.assert_array_equal(found, want)


MORE = """
program p(x, g, m) -> y, z
  input   x  float16[i: 4, j: 64]
  input   g  float16[i: 4, j: 64]
  input   m  float32[i: 4]
  output  y  float32[i: 4, j: 64]
  output  z  float16[i: 4, j: 64]
  chip    u  float32[i: 4, j: 64]
  chip    w  float32[i: 4, j: 64]
  chip    n  float32[i: 4]
  chip    s  float32[i: 4]
"""


class Drawn:
    """A random kernel of one sum over rows: rows and numbers that statements before it, and after it, compute."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.rows = ["float32(x[i, 0:64])", "float32(g[i, 0:64])"]
        self.numbers = ["m[i]", "0.5"]

    def pick(self, *of: str) -> str:
        return of[self.rng.integers(len(of))]

    def row(self, depth: int = 2) -> str:
        if not depth:
            return self.pick(*self.rows)
        a, b, n = self.row(depth - 1), self.row(depth - 1), self.pick(*self.numbers)
        return self.pick(a, f"exp({a} - {n})", f"({a} * {b})", f"({a} + {n})", f"({a} - {b})")

    def statement(self) -> str:
        """Of a row or a number on chip, which may have been stored before, or of a result that later ones may read."""
        what = self.pick("u", "w", "n", "n", "z")
        if what == "n":
            text = f"n[i] = {self.pick(*self.numbers)} + {self.pick(*self.numbers)}"
            self.numbers += ["n[i]"] * ("n[i]" not in self.numbers)
            return text
        if what == "z":
            text, made = f"z[i, 0:64] = float16({self.row()})", "float32(z[i, 0:64])"
        else:
            text, made = f"{what}[i, 0:64] = {self.row()}", f"{what}[i, 0:64]"
        self.rows += [made] * 2 * (made not in self.rows)
        return text

    def body(self) -> list[str]:
        before = [self.statement() for _ in range(self.rng.integers(4))]
        total = f"s[i] = reduce(sum, {self.row()}, dim=0)"
        self.numbers += ["s[i]", "s[i]"]
        after = [self.statement() for _ in range(self.rng.integers(3))]
        last = [f"{name}[i, 0:64] = {text}" for name, text in (("y", self.row(3)), ("z", f"float16({self.row()})"))]
        return [*before, total, *after, *last]


@pytest.mark.one_in(24)
@pytest.mark.usefixtures("few_registers")
@pytest.mark.parametrize("seed", range(40))
def test_the_meaning_of_random_kernels_stays(seed: int):
    rng, changed = np.random.default_rng(seed), 0
    given = {name: rng.standard_normal(shape) for name, shape in (("x", (4, 64)), ("g", (4, 64)), ("m", (4,)))}
    for _ in range(100):  # (about half of them are changed)
        program = read(MORE, kernel(*Drawn(rng).body()))
        made = apply(PASS, program).program
        if made is program:
            continue
        want, found = (interpret(p, given, dtype="float64") for p in (program, made))
        for name in ("y", "z"):
            np.testing.assert_array_equal(found[name], want[name])
        changed += 1
        if changed == 6:
            return
    pytest.fail(f"{changed} of 100 kernels were changed")
