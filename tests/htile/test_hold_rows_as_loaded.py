"""Rows with vectors along them are held between passes as they were loaded: the statements, what stays, the meaning."""

from __future__ import annotations

import numpy as np
import pytest
from pass_texts import after, read

from neptune_lab.htile import interpret
from neptune_lab.htile.held_rows import FEWEST, MOST, MOST_OF_SEVERAL
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.hold_rows_as_loaded import hold_rows_as_loaded

N = 32 * FEWEST  # elements of the pieces of one warp
HALF = N // 2
DECLARED = f"""
program p(x, g, v) -> y
  input   x  float16[i: 4, j: {N}]
  input   g  float32[i: 4, j: {N}]
  input   v  float16[j: {N}]
  output  y  float16[i: 4, j: {N}]
  chip    m  float32[i: 4]
  chip    s  float32[i: 4]
"""
TWO = DECLARED.replace("-> y", "-> y, z").replace("  chip    m", f"  output  z  float16[i: 4, j: {N}]\n  chip    m")
MAX = f"m[i] = reduce(max, float32(x[i, 0:{N}]), dim=0)"
SUM = f"s[i] = reduce(sum, exp(float32(x[i, 0:{N}]) - m[i]), dim=0)"
OUT = f"y[i, 0:{N}] = float16((float32(x[i, 0:{N}]) - m[i]) / s[i] * float32(v[0:{N}]))"


def kernel(*body: str, warps: int = 1) -> str:
    return f"\nkernel p  grid (i: 4)  num_warps={warps}\n    " + "\n    ".join(body) + "\n"


@pytest.fixture(autouse=True)
def one_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MOST, 1, 96)


def test_each_pass_reads_what_the_one_before_has_held():
    assert after(hold_rows_as_loaded, DECLARED, kernel(MAX, SUM, OUT)).splitlines()[-5:] == [
        "    " + MAX,
        f"    x_held[0:{N}] = again(x[i, 0:{N}])  @m=tile:m.x_held",
        "    " + SUM.replace(f"x[i, 0:{N}]", f"x_held[0:{N}]"),
        f"    x_held_2[0:{N}] = again(x_held[0:{N}])  @s=tile:s.x_held_2",
        "    " + OUT.replace(f"x[i, 0:{N}]", f"x_held_2[0:{N}]"),
    ]


def test_pieces_are_held_one_by_one_and_those_of_no_later_pass_are_not():
    first, second, third = (f"x[i, {start}:{start + HALF}]" for start in (0, HALF, N))
    found = after(
        hold_rows_as_loaded,
        DECLARED.replace(f"x  float16[i: 4, j: {N}]", f"x  float16[i: 4, j: {3 * HALF}]"),
        kernel(
            f"m[i] = reduce(max, float32({first}) + float32({second}) + float32({third}), dim=0)",
            f"s[i] = reduce(sum, float32({first}) * float32({second}) - m[i], dim=0)",
            f"y[i, 0:{HALF}] = float16(float32({second}) * s[i] * float32(v[0:{HALF}]))",
        ),
    )
    assert found.count("again(") == 3
    assert f"x_held_2[0:{HALF}] = again({second})" in found
    assert f"x_held_3[0:{HALF}] = again(x_held_2[0:{HALF}])" in found


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((MAX, OUT.replace("x[i, ", "v[").replace("s[i]", "m[i]")), id="other tensors"),
        pytest.param((MAX.replace("x[", "g["), OUT.replace("x[", "g[").replace("s[i]", "m[i]")), id="of 32 bits"),
        pytest.param((MAX, SUM, OUT.replace(f" * float32(v[0:{N}])", "")), id="no vectors"),
        pytest.param((OUT.replace("m[i]", "1.0").replace("s[i]", "2.0"),), id="one pass"),
        pytest.param(
            (MAX.replace(str(N), str(HALF)), OUT.replace(f"0:{N}", f"0:{HALF}").replace("s[i]", "m[i]")), id="few"
        ),
    ],
)
def test_what_stays(body: tuple[str, ...]):
    assert after(hold_rows_as_loaded, DECLARED, kernel(*body)) == "unchanged"


def test_programs_of_other_sizes_and_rows_of_more_elements_stay(monkeypatch: pytest.MonkeyPatch):
    assert after(hold_rows_as_loaded, DECLARED, kernel(MAX, SUM, OUT, warps=2)) == "unchanged"
    monkeypatch.setitem(MOST, 1, FEWEST - 1)
    assert after(hold_rows_as_loaded, DECLARED, kernel(MAX, SUM, OUT)) == "unchanged"


def test_rows_of_two_tensors_are_held_but_no_vector(monkeypatch: pytest.MonkeyPatch):
    """As x and the cotangent in the gradient of a norm, whose first sum reads the scale too."""
    declared = DECLARED.replace("g  float32", "g  float16")
    total = f"s[i] = reduce(sum, float32(x[i, 0:{N}]) * float32(g[i, 0:{N}]) * float32(v[0:{N}]), dim=0)"
    out = f"y[i, 0:{N}] = float16((float32(x[i, 0:{N}]) + float32(g[i, 0:{N}])) * s[i] * float32(v[0:{N}]))"
    assert after(hold_rows_as_loaded, declared, kernel(total, out)) == "unchanged"
    monkeypatch.setitem(MOST_OF_SEVERAL, 1, 2 * FEWEST)
    assert after(hold_rows_as_loaded, declared, kernel(total, out)).splitlines()[-4:] == [
        "    " + total,
        f"    x_held[0:{N}] = again(x[i, 0:{N}])  @s=tile:s.x_held",
        f"    g_held[0:{N}] = again(g[i, 0:{N}])  @s=tile:s.g_held",
        "    " + out.replace("x[i, ", "x_held[").replace("g[i, ", "g_held["),
    ]


@pytest.mark.parametrize("seed", range(12))
def test_the_meaning_stays(seed: int):
    """Random kernels of sums and rows over pieces of a tensor, a vector, and a result that statements store to."""
    rng = np.random.default_rng(seed)
    tiles = [f"x[i, 0:{HALF}]", f"x[i, {HALF}:{N}]", f"z[i, 0:{HALF}]", f"v[0:{HALF}]"]

    def product(count: int) -> str:
        return " + ".join(f"float32({tile})" for tile in rng.choice(tiles[:count], 2))

    body = [f"z[i, 0:{HALF}] = float16(float32(x[i, 0:{HALF}]) * 0.5)"]
    body.append(f"m[i] = reduce(sum, float32({tiles[0]}) * float32({tiles[1]}) * {product(3)}, dim=0)")
    numbers = ["2.0", "m[i]"]
    for _ in range(6):
        target = rng.choice(["m", "s", "y", "z"])
        value = f"({product(4)}) * {rng.choice(numbers)}"
        if target in "ms":
            body.append(f"{target}[i] = reduce({rng.choice(['sum', 'max'])}, {value}, dim=0)")
            numbers.append(f"{target}[i]")
        else:
            body.append(f"{target}[i, 0:{HALF}] = float16({value})")
    last = f"y[i, {HALF}:{N}] = float16(({' + '.join(f'float32({tile})' for tile in tiles)}) * {numbers[-1]})"
    program = read(TWO, kernel(*body, last))
    made = apply(hold_rows_as_loaded, program).program
    assert made is not program
    given = {"x": rng.standard_normal((4, N)), "g": np.zeros((4, N)), "v": rng.standard_normal(N)}
    want, found = (interpret(p, given, dtype="float64") for p in (program, made))
    for name in ("y", "z"):
        np.testing.assert_array_equal(found[name], want[name])
