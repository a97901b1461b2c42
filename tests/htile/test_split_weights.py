"""Softmax weights of 8 bits of which every other one is two numbers, or float16: numbers, and what is left alone."""

from __future__ import annotations

from typing import Any

import by_name
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune_lab.htile import from_text, interpret, to_text, verify
from neptune_lab.htile.nodes import Program
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.mix_rounded_weights import mix_rounded_weights
from neptune_lab.htile_passes.split_rounded_weights import split_rounded_weights
from neptune_lab.operators import Operator, attention

E4 = "float8_e4m3fn"


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def window(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= kv) & (q - kv < 9)


def second_tile_hidden(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (kv < 16) | (kv >= 32)


MASKS = (None, causal, window, second_tile_hidden)


def eights(q_len: int, kv_len: int, mask: Any = None, **more: Any) -> Operator:
    formats = dict.fromkeys(("q_dtype", "k_dtype", "v_dtype", "weights_dtype"), E4)
    return attention.general(
        1, 1, q_len, kv_len, 16, mask_mod=mask, dtype="float32", scale=0.25, v_transposed=True, **formats, **more
    )


def tiles(operator: Operator, template: str = "rolling_update", block_kv: int = 32, weights: str = "split") -> Program:
    options = {"block_q": 16, "block_kv": block_kv, "rounded_weights": weights}
    return by_name.compile(operator, template, validate="none", **options).htile


def normal(operator: Operator, seed: int) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(seed)
    shapes = {t.name: t.shape for t in operator.inputs}
    return {n: numbers.standard_normal(shapes[n]).astype(ml_dtypes.float8_e4m3fn) for n in "qkv"}


def parts(inputs: dict[str, np.ndarray], mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """The weights of the softmax, whose largest is 1, and the values, in float64."""
    q, k, turned = (inputs[name].astype(np.float64)[0, 0] for name in "qkv")
    score = q @ k.T * 0.25
    if mask is not None:
        rows, columns = np.ogrid[: score.shape[0], : score.shape[1]]
        score = np.where(mask(0, 0, rows, columns), score, -np.inf)
    return np.exp(score - score.max(1, keepdims=True)), turned.T


def found(program: Program, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(interpret(program, inputs)["out"], np.float64)[0, 0]


@pytest.mark.nightly
@settings(max_examples=8, deadline=None)
@given(
    st.integers(16, 50), st.integers(40, 130), st.sampled_from(MASKS), st.sampled_from([16, 32, 64]),
    st.sampled_from(["rolling_update", "split_k_update"]), st.sampled_from(["split", "mixed"]), st.integers(0, 1000),
)  # fmt: skip
def test_any_masks_and_lengths(
    q_len: int, kv_len: int, mask: Any, block_kv: int, template: str, rounded: str, seed: int
):
    """A weight of the first keys of a tile is off by at most 2^-8 of it, or 2^-11 as float16, and another one by 1/17,
    or by 2^-18 of the largest weight of its row.  Where tiles do not divide the keys, "mixed" is "split"."""
    kv_len += -kv_len % 64 if rounded == "mixed" and seed % 4 else 0
    operator = eights(min(q_len, kv_len), kv_len, mask)
    program, inputs = tiles(operator, template, block_kv, rounded), normal(operator, seed)
    weights, values = parts(inputs, mask)
    halves = "v_halves" in {t.name for t in program.tensors}
    assert halves == (rounded == "mixed" and kv_len % block_kv == 0 and kv_len > block_kv)
    exact = 2.0**-11 if halves else 2.0**-8
    of_tile = min(block_kv, kv_len)
    share = np.where(np.arange(kv_len) % of_tile < of_tile // 2, exact, 1 / 17)
    off = np.abs(found(program, inputs) * weights.sum(1, keepdims=True) - weights @ values)
    # (A weight is relative to the largest of the tiles before, so it may be smaller when it is rounded.)
    limit = (weights * share + 2.0**-18) @ np.abs(values)
    assert (off <= limit * (1 + 1e-5) + 1e-6).all()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("block_kv", [64, 128, 256])
@pytest.mark.parametrize("mask", [None, causal])
def test_the_error_of_normal_inputs(block_kv: int, mask: Any):
    operator = eights(96, 768, mask and (lambda b, h, q, kv: q + 672 >= kv))
    inputs = normal(operator, 1)
    weights, values = parts(inputs, mask and (lambda b, h, q, kv: q + 672 >= kv))
    want = weights @ values / weights.sum(1, keepdims=True)

    def error(weights: str) -> float:
        off = found(tiles(operator, "rolling_update", block_kv, weights), inputs) - want
        return float(np.linalg.norm(off) / np.linalg.norm(want))

    assert error("mixed") < error("split") < 2e-2 < 2.2e-2 < error("single")


@pytest.mark.parametrize("mask", [None, causal])
def test_the_error_in_a_loop_of_one_tile(mask: Any):
    operator = eights(60, 60, mask)
    inputs = normal(operator, 1)
    weights, values = parts(inputs, mask)
    want = weights @ values / weights.sum(1, keepdims=True)
    split, single = (found(tiles(operator, block_kv=64, weights=kind), inputs) for kind in ("split", "single"))
    assert np.linalg.norm(split - want) < 0.8 * np.linalg.norm(single - want)


@pytest.mark.parametrize("again", ["p {} = float8_e4m3fn(s_exp {} * 128.0)", "s_exp {} = exp2(score {})"])
def test_weights_that_change_before_they_are_multiplied_stay(again: str):
    """In a loop of one tile, rounded weights are stored: what the product reads, not always what they were made of."""
    text = to_text(tiles(eights(32, 48), block_kv=64, weights="single"))
    assert apply(split_rounded_weights, from_text(text)).program != from_text(text)
    before, after = text.split("    acc[", 1)
    line = again.replace(" {}", "[b, h, i0*16:i0*16+16, 0:48]")
    other = from_text(f"{before}    {line}\n    acc[{after}")
    verify(other)
    assert apply(split_rounded_weights, other).program is other


def test_weights_are_two_numbers_where_values_have_no_copy():
    """Tiles of 32 do not divide 80 keys: the last tile would read values of float16 that are not there."""
    operator = eights(32, 80)
    program, split = (tiles(operator, weights=weights) for weights in ("mixed", "split"))
    assert to_text(program) == to_text(split) != to_text(tiles(operator, weights="single"))


@pytest.mark.nightly
def test_rows_without_keys_and_values_that_are_none():
    """A row that sees no key is NaN, as without; NaN of a value that a row sees stays, whatever its weight."""
    operator = eights(32, 64, lambda b, h, q, kv: (kv < q) & (kv < 40))
    inputs = normal(operator, 2)
    for key in (5, 20, 33):
        inputs["v"][0, 0, :, key] = np.nan
        plain = np.isnan(found(tiles(operator, weights="single"), inputs))
        for weights in ("split", "mixed"):
            assert np.array_equal(np.isnan(found(tiles(operator, weights=weights), inputs)), plain)


@pytest.mark.parametrize("rewrite", [split_rounded_weights, mix_rounded_weights])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("= exp2(", "= abs("),  # no softmax
        ("float8_e4m3fn(s_exp", "float8_e5m2(s_exp"),
    ],
)
def test_other_factors_stay(old: str, new: str, rewrite: Any):
    """What a program rounds to 8 bits by itself is multiplied as it is."""
    text = to_text(tiles(eights(32, 96), weights="single"))
    assert apply(rewrite, from_text(text)).program != from_text(text)
    assert old in text
    text = text.replace(old, new)
    if "e5m2" in new:
        text = "\n".join(line.replace(E4, "float8_e5m2") if " v " in line else line for line in text.splitlines())
    other = from_text(text)
    verify(other)
    assert apply(rewrite, other).program is other


def test_values_of_which_a_product_reads_some_columns_have_no_copy():
    """One copy serves all products of an input: the columns that the first leaves out would never be stored."""
    text = to_text(tiles(eights(32, 96), weights="single"))
    whole = "[1, 1, d: 16, j1: 96]"
    assert whole in text
    other = from_text(text.replace(whole, "[1, 1, 24, j1: 96]"))
    verify(other)
    assert apply(mix_rounded_weights, other).program is other
