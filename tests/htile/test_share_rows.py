"""Each row is shared among programs, which pass on what they reduce of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_texts import after, read

from neptune_lab.htile import interpret, verify
from neptune_lab.htile.nodes import Reduce
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import roots, stores, subexpressions
from neptune_lab.htile_passes import apply, run
from neptune_lab.htile_passes.share_rows import share_rows

DECLARED = """
program p(x, w) -> y, z
  input   x  float32[i: 4, j: 1200]
  input   w  float32[j: 1200]
  output  y  float32[i: 4, j: 1200]
  output  z  float32[i: 4]
  chip    s  float32[i: 4]
  chip    t  float32[i: 4]
  chip    u  float32[i: 4, j: 1200]
"""
NORM = (
    "s[i] = reduce(sum, x[i, 0:1200], dim=0)",
    "t[i] = reduce(sum, (x[i, 0:1200] - s[i]) * w[0:1200], dim=0)",
    "y[i, 0:1200] = x[i, 0:1200] * t[i] - s[i]",
    "z[i] = t[i] * 2.0",
)


OWN, PART = "@s=tile:s.s_own/0", "@s=tile:s.s_part/0"


def kernel(*lines: str, warps: int = 1) -> str:
    return f"\n    kernel p  grid (i: 4)  num_warps={warps}\n        " + "\n        ".join(lines) + "\n"


def test_a_kernel_for_each_reduction_that_follows_on_another():
    made = after(share_rows, DECLARED, kernel(NORM[0], "y[i, 0:1200] = x[i, 0:1200] - s[i]", "z[i] = s[i]"))
    assert (
        made
        == f"""
+ global s_part float32[4, p: 3]
+ chip s_own_again float32[]
kernel p_s  grid (p: 3, i: 4)  num_warps=1  @kernel:p/0
    s_own_again[] = reduce(sum, where(iota[p*512:p*512+512] < index(1200), x[i, p*512:p*512+512], 0.0), dim=0)  {OWN}
    s_part[i, p] = s_own_again[]  {PART}

kernel p  grid (p: 3, i: 4)  num_warps=1
    s[i] = reduce(sum, s_part[i, 0:3], dim=0)
    y[i, p*512:p*512+512] = x[i, p*512:p*512+512] - s[i]
    z[i] = s[i]  where p < 1
"""
    )


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("y[i, 0:1200] = x[i, 0:1200]", "z[i] = 1.0"), id="nothing is reduced"),
        pytest.param((NORM[0], "y[i, 0:1200] = x[i, 1:1201] - s[i]", "z[i] = s[i]"), id="another slice"),
        pytest.param(
            (NORM[0], "u[i, 0:1200] = x[i, 0:1200]", "y[i, 0:1200] = u[i, 0:1200] - s[i]", "z[i] = s[i]"),
            id="a row that is held",
        ),
        pytest.param(
            (NORM[0], "y[i, 0:1200] = gather(x, i, iota[0:1200]) - s[i]", "z[i] = s[i]"), id="element by element"
        ),
        pytest.param((NORM[0], "y[i, 0:1200] = x[i, 0:1200]", "z[i] = s[i] + y[i, 3]"), id="what it stores is read"),
        pytest.param(
            (NORM[0], "s[i] = s[i] + reduce(max, x[i, 0:1200], dim=0)", NORM[1], *NORM[2:]), id="a changed number"
        ),
        pytest.param(
            ("s[i] = 0.0", "for j0 in range(2):", f"    {NORM[0]}", "y[i, 0:1200] = x[i, 0:1200]", "z[i] = s[i]"),
            id="a loop",
        ),
    ],
)
def test_left_as_it_is(lines: tuple[str, ...]):
    program = read(DECLARED, kernel(*lines))
    assert apply(share_rows, program).program is program


def test_a_row_that_a_part_holds_stays():
    program = read(DECLARED.replace("1200", "1"), kernel(*(line.replace("0:1200", "0:1") for line in NORM)))
    assert apply(share_rows, program).program is program


FOLDS = ("sum", "max", "min", "prod")


def test_both_edges_are_reduced_at_once():
    declared = DECLARED.replace("1200", "1203").replace("x  float32", "x  float16")
    row = "float32(x[i, 0:1203])"
    lines = (f"s[i] = reduce(max, {row}, dim=0)", f"y[i, 0:1203] = {row} - s[i]", "z[i] = s[i]")
    made = apply(share_rows, read(declared, kernel(*lines))).program
    first, *_ = stores(made.kernels[0].body)
    reduced = [shape_of(e.arg, made) for e in subexpressions(first.value) if isinstance(e, Reduce)]
    assert sorted(reduced) == [(8,), (512,)]


@pytest.mark.nightly
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(FOLDS), st.sampled_from(FOLDS), st.sampled_from(["float16", "float32"]),
    st.integers(2, 5000), st.sampled_from([1, 2]), st.randoms(),
)  # fmt: skip
def test_the_meaning_stays(one: str, other: str, dtype: str, extent: int, warps: int, rng):
    """Rows of any length, wherever they begin; chains of reductions, and two in one expression."""
    declared = DECLARED.replace("1200", str(extent)).replace("i: 4", "i: 9")
    declared = declared.replace("x  float32", f"x  {dtype}").replace("y  float32", f"y  {dtype}")
    row = f"float32(x[i, 0:{extent}])"
    lines = (
        f"s[i] = reduce({one}, {row}, dim=0) + reduce(max, {row} * float32(iota[0:{extent}]), dim=0)",
        f"t[i] = s[i] * reduce({other}, {row}, dim=0) + reduce(sum, {row} * s[i], dim=0)",
        f"y[i, 0:{extent}] = {dtype}({row} * float32(iota[0:{extent}]) + s[i])",
        "z[i] = t[i]",
    )
    program = read(declared, kernel(*lines, warps=warps).replace("i: 4", "i: 9"))
    made = apply(share_rows, program).program
    assert len(made.kernels) == 3
    verify(made)
    every = [e for k in made.kernels for s in stores(k.body) for r in roots(s) for e in subexpressions(r)]
    assert max(shape_of(e, made)[-1] for e in every if shape_of(e, made)) <= max(1024 * warps, 4)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    given_ = {"x": numbers.choice([-1.0, 1.0], (9, extent)), "w": np.ones(extent)}
    found, lowered, wanted = (interpret(p, given_, dtype="float64") for p in (made, run(made), program))
    for name in ("y", "z"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(lowered[name], wanted[name], rtol=1e-10, atol=1e-10)


@pytest.mark.nightly
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["the mean", "another number", "no sum", "the largest", "no largest"]), st.integers(9, 5000),
    st.sampled_from([1, 2]), st.floats(-300, 300), st.randoms(),
)  # fmt: skip
def test_sums_about_a_number_need_no_kernel_of_their_own(number: str, extent: int, warps: int, shift: float, rng):
    """Squares about any number if the sum is needed too, exponentials about the largest element; else a kernel more."""
    declared = DECLARED.replace("1200", str(extent)).replace("i: 4", "i: 9").replace("x  float32", "x  float16")
    row = f"float32(x[i, 0:{extent}])"
    first = {"the mean": "sum", "the largest": "max"}.get(number, "min")
    away = f"({row} - t[i])"
    square = number in ("the mean", "another number", "no sum")
    lines = (
        f"s[i] = reduce({first}, {row}, dim=0)",
        f"t[i] = s[i] * {1 / extent if number == 'the mean' else 1.0}"
        + (f" + reduce(sum, {row}, dim=0) * 0.125" if number == "another number" else ""),
        f"z[i] = reduce(sum, {f'{away} * {away}' if square else f'exp({row} - s[i])'}, dim=0)",
        f"y[i, 0:{extent}] = {row} - t[i]",
    )
    program = read(declared, kernel(*lines, warps=warps).replace("i: 4", "i: 9"))
    made = apply(share_rows, program).program
    assert len(made.kernels) == (3 if number in ("no sum", "no largest") else 2)
    verify(made)
    x = np.random.default_rng(rng.randrange(1 << 30)).standard_normal((9, extent)) + (shift if square else 0)
    given_ = {"x": x, "w": np.ones(extent)}
    found, wanted = (interpret(p, given_, dtype="float64") for p in (made, program))
    for name in ("y", "z"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-9, atol=1e-9)


def test_exponentials_of_what_is_no_number():
    """Of rows with infinities and NaN, both forms give the same; a row of -inf is NaN."""
    lines = (
        "s[i] = reduce(max, x[i, 0:1200], dim=0)", "z[i] = reduce(sum, exp(x[i, 0:1200] - s[i]), dim=0)",
        "y[i, 0:1200] = x[i, 0:1200] - s[i]",
    )  # fmt: skip
    program = read(DECLARED, kernel(*lines))
    x = np.random.default_rng(0).standard_normal((4, 1200)).astype("float32")
    x[0, 5], x[1, 700], x[2, :600], x[2, 603:1100], x[3] = np.inf, np.nan, *[-np.inf] * 3
    with np.errstate(invalid="ignore"):
        one, other = (interpret(p, {"x": x, "w": x[0]})["z"] for p in (program, apply(share_rows, program).program))
    np.testing.assert_allclose(other, one, rtol=1e-5)
    assert np.isnan(one).tolist() == [True, True, False, True]


def test_an_element_that_is_no_number_is_kept():
    lines = ("s[i] = reduce(max, x[i, 0:1200], dim=0)", "y[i, 0:1200] = x[i, 0:1200] - s[i]", "z[i] = s[i]")
    program = read(DECLARED, kernel(*lines))
    x = np.zeros((4, 1200), "float32")
    x[0, 1199], x[1, 3], x[2, :] = np.nan, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        one, other = (interpret(p, {"x": x, "w": x[0]}) for p in (program, apply(share_rows, program).program))
    for name in ("y", "z"):
        np.testing.assert_array_equal(one[name], other[name])
