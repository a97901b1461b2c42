"""Helpers in assembly, element by element: the simulator reads their text."""

from __future__ import annotations

import numpy as np
import pytest

from neptune_lab.gluon_simulator import Simulator
from neptune_lab.gluon_simulator.assembly import inline_asm_elementwise
from neptune_lab.gluon_simulator.tiles import E4M3, tile
from neptune_lab.htile_to_gluon.helpers import HELPERS

HEAD = "from triton.experimental import gluon\nfrom triton.experimental.gluon import language as gl\n\n\n"
FINITE = np.float32(np.concatenate([10.0 ** np.arange(-30, 3), [2.0**-12, 2.0**-11, 0.3, 0.5, 0.7, 20.0, 3e38]]))


def test_tanh():
    tanh = Simulator(HEAD + HELPERS["_tanh"][0]).space["_tanh_gluon"]
    for x in (FINITE, -FINITE):
        with np.errstate(over="ignore"):
            got = np.float64(tanh(tile(x)))
        # (Above the bound of small numbers, 1 - 2 / (exp(2 x) + 1) cancels all but half of the digits.)
        assert np.all(np.abs(got - np.tanh(np.float64(x))) <= 4e-4 * np.abs(np.float64(x)).clip(0, 1))
        assert np.all(np.abs(got - np.tanh(np.float64(x))) < 2e-7)
    special = np.float32([np.inf, -np.inf, np.nan, 0.0, -0.0])
    assert np.array_equal(tanh(tile(special)), np.float32([1, -1, np.nan, 0, 0]), equal_nan=True)
    assert np.signbit(tanh(tile(special))[-1])


@pytest.mark.parametrize(("text", "constraints"), [("lg2.approx.f32 $0, $1;", "=f,f"), ("add.f32 $0, $1, $1;", "=r,r")])
def test_other_instructions_are_refused(text, constraints):
    with pytest.raises(NotImplementedError, match="does not know"):
        inline_asm_elementwise(text, constraints, [tile(FINITE)])


def eights(x: np.ndarray, name: str) -> list[np.ndarray]:
    made = Simulator(HEAD + HELPERS[name][0]).space[name](tile(x))
    return [np.float64(t) for t in (made if isinstance(made, tuple) else (made,))]


def test_weights_of_eight_bits():
    """Rounding as the compiler's conversion does it; in two parts, a weight is off by 2^-8 of it and the rounding
    to float16, or by 2^-9."""
    drawn = np.random.default_rng(0).normal(size=4096) * 3 - 2
    x = np.float32(np.minimum(np.exp2(np.append(drawn, np.arange(-22, 9, 0.25))), 257)).reshape(-1, 4)
    (rounded,) = eights(x, "_rounded")
    assert np.array_equal(rounded, np.float64(tile(x).to(E4M3)))
    high, low = eights(x, "_rounded_and_rest")
    assert np.all(np.abs(high + low - x) <= np.maximum((2.0**-8 + 2.0**-11) * x, 2.0**-9))
    assert np.all(high <= x * (1 + 2.0**-11) + 2.0**-10)
    special = np.float32([[np.nan, 0.0, 256.0, np.nan]])
    for part in eights(special, "_rounded") + eights(special, "_rounded_and_rest")[:1]:
        assert np.array_equal(part, special, equal_nan=True)
    assert np.array_equal(eights(special, "_rounded_and_rest")[1], special * 0, equal_nan=True)


@pytest.mark.parametrize("constraints", ["=r,f,f,f,f", "=r,r,r,r,r"])
def test_other_instructions_of_four_elements_are_refused(constraints: str):
    with pytest.raises(NotImplementedError, match="does not know"):
        inline_asm_elementwise("max.f32 $0, $1, $2;", constraints, [tile(FINITE[:4])], pack=4)
