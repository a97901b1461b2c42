"""Elements past the end of a row are masked once, where what is computed of them is what the masks gave."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from pass_texts import after

import neptune_lab as nl
from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import Program
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.mask_ends_once import mask_ends_once
from neptune_lab.operators import attention

DECLARED = """
program p(x, b) -> y
  input   x  float32[i: 4, j: 7]
  input   b  float32[i: 4]
  output  y  float32[i: 4]
  chip    s  float32[i: 4, j: 7]
  chip    e  float32[i: 4, j: 7]
  chip    t  float32[i: 4]
  chip    m  float32[i: 4]
  chip    f  float32[i: 4]
  chip    u  float32[i: 4]
  chip    l  float32[i: 4]
"""
END, S, E = "iota[NewAxis, j0*4:j0*4+4] < 7", "s[0:4, j0*4:j0*4+4]", "e[0:4, j0*4:j0*4+4]"
BODY = {
    "s": f"{S} = x[0:4, j0*4:j0*4+4] * 0.5",
    "t": f"t[0:4] = reduce(max, where({END}, {S}, -inf), dim=1)",
    "m": "m[0:4] = max(m[0:4], t[0:4])",
    "f": "f[0:4] = where(m[0:4] == -inf, 0.0, m[0:4])",
    "e": f"{E} = exp({S} - f[0:4, NewAxis])",
    "u": f"u[0:4] = reduce(sum, where({END}, {E}, 0.0), dim=1)",
    "l": "l[0:4] = l[0:4] + u[0:4]",
}


def kernel(**changed: str) -> str:
    inner = "\n".join(f"            {line}" for line in (BODY | changed).values())
    return f"""
    kernel p  grid ()
        m[0:4] = -inf
        l[0:4] = 0.0
        for j0 in range(2):
{inner}
        y[0:4] = l[0:4] + m[0:4]
    """


def test_one_mask_is_left():
    assert (
        after(mask_ends_once, DECLARED, kernel())
        == """
- chip s float32[i: 4, j: 7]
- chip e float32[i: 4, j: 7]
+ chip s float32[i: 4, j: 4]
+ chip e float32[i: 4, j: 4]
kernel p  grid ()
    m[0:4] = -inf
    l[0:4] = 0.0
    for j0 in range(2):
        s[0:4, 0:4] = where(iota[NewAxis, j0*4:j0*4+4] < 7, x[0:4, j0*4:j0*4+4] * 0.5, -inf)
        t[0:4] = reduce(max, s[0:4, 0:4], dim=1)
        m[0:4] = max(m[0:4], t[0:4])
        f[0:4] = where(m[0:4] == -inf, 0.0, m[0:4])
        e[0:4, 0:4] = exp(s[0:4, 0:4] - f[0:4, NewAxis])
        u[0:4] = reduce(sum, e[0:4, 0:4], dim=1)
        l[0:4] = l[0:4] + u[0:4]
    y[0:4] = l[0:4] + m[0:4]
"""
    )


def test_a_mask_that_gives_another_constant_stays():
    made = after(mask_ends_once, DECLARED, kernel(l=f"l[0:4] = l[0:4] + reduce(sum, where({END}, {E}, 1.0), dim=1)"))
    assert f"s[0:4, 0:4] = where({END}, x[" in made
    assert f"reduce(sum, where({END}, e[0:4, 0:4], 1.0), dim=1)" in made


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"u": f"u[0:4] = reduce(sum, where({END}, {E}, 1.0), dim=1)"}, id="another constant"),
        pytest.param({"e": f"{E} = exp({S} - m[0:4, NewAxis])"}, id="a row without a finite number"),
        pytest.param({"e": f"{E} = exp({S} - b[0:4, NewAxis])"}, id="an input, which may be infinite"),
        pytest.param({"e": f"{E} = exp({S} - x[0:4, j0*4:j0*4+4])"}, id="another number for each element"),
        pytest.param({"l": f"l[0:4] = l[0:4] + reduce(sum, {E}, dim=1)"}, id="a reader without a mask"),
        pytest.param({"l": f"l[0:4] = reduce(max, {S}, dim=1)"}, id="a reader of the first tile"),
        pytest.param({"t": f"t[0:4] = reduce(max, where({END}, {S}, 0.0), dim=1)"}, id="another maximum"),
    ],
)
def test_what_is_not_proven_stays(changed: dict[str, str]):
    assert after(mask_ends_once, DECLARED, kernel(**changed)) == "unchanged"


@pytest.mark.parametrize("earlier", [False, True])
def test_a_tile_of_the_iteration_before_stays(earlier: bool):
    """There, its elements past the end are those of another tile."""
    declared = DECLARED.replace("s  float32[i: 4, j: 7]", "s  float32[i: 4, j: 4]")
    text = kernel().replace(S, "s[0:4, 0:4]").replace("l[0:4] = 0.0", "l[0:4] = 0.0\n        s[0:4, 0:4] = 0.0")
    if earlier:
        text = text.replace(
            "s[0:4, 0:4] = x[", "l[0:4] = l[0:4] + reduce(sum, s[0:4, 0:4], dim=1)\n            s[0:4, 0:4] = x["
        )
    assert (after(mask_ends_once, declared, text) == "unchanged") is earlier


MASKS = {
    "full": None,
    "causal": lambda b, h, q, kv: kv <= q,
    "window": lambda b, h, q, kv: (kv <= q) & (q - kv < 3),
}


@cache
def programs(mask: str, template: str) -> tuple[Program, Program]:
    """Attention whose keys no tile divides, before and after the pass."""
    operator = attention.general(1, 1, 11, 11, 4, mask_mod=MASKS[mask], dtype="float32", empty_rows="zero")
    kernel = nl.compile(operator, template, block_q=4, block_kv=4, validate="none")
    before = next(done.before for done in kernel.passes if done.name == "mask_ends_once")
    return before, apply(mask_ends_once, before).program


@pytest.mark.one_in(6)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize("mask", MASKS)
def test_the_meaning_stays(mask: str, template: str):
    before, made = programs(mask, template)
    assert made is not before
    rng = np.random.default_rng(0)
    for value in (0.0, np.nan, np.inf, -np.inf):
        inputs = {name: rng.standard_normal((1, 1, 11, 4)).astype("float32") for name in before.inputs}
        inputs["q"][0, 0, 9, 1] = inputs["k"][0, 0, 5, 2] = value
        with np.errstate(all="ignore"):
            got, want = interpret(made, inputs), interpret(before, inputs)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])
