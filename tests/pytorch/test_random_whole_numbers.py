"""Whole numbers of mods have PyTorch's bits and dtypes, or are refused."""

from __future__ import annotations

import random

import pytest
import torch
from attention_reference import flex, tensors
from random_whole_numbers import N, Terms, score_mod_of

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, TileError


def verdict(text: str) -> str:
    """ "right", "refused" or "wrong"; "" if PyTorch does not compute it."""
    q, k, v = tensors((1, 2, N, 8))
    mod = score_mod_of(text)
    try:
        expected = flex(q, k, v, mod, None)
    except (RuntimeError, ZeroDivisionError):
        return ""  # a constant that the dtype beside it does not hold
    try:
        found = nl.attention(q, k, v, score_mod=mod)
    except (DefinitionError, TileError):
        return "refused"
    return "right" if torch.allclose(found, expected, atol=1e-4) else "wrong"


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 60))])
def test_random_whole_numbers(seed: int):
    terms = [Terms(random.Random(f"{seed} {n}")).term() for n in range(8)]
    if verdict(" + ".join(terms)) == "right":
        return
    found = {term: verdict(term) for term in terms}
    assert "wrong" not in found.values(), [term for term, said in found.items() if said == "wrong"]
    assert list(found.values()).count("refused") <= 4


@pytest.mark.nightly
def test_conditions_have_64_bits_beside_several_positions():
    products = "(flags[kv] * 1000) * (q * 300) * (kv * 300)", "(flags[kv] * 5 // 2) * (q * 2**13) * (kv * 2**14)"
    assert verdict(" + ".join(f"({product} % 7) * 0.3" for product in products)) == "right"
    assert verdict("((flags[kv] * 1000) * (i32[kv] * 900000) % 7) * 0.3") == "right"


@pytest.mark.nightly
def test_functions_of_narrow_integers_have_their_dtypes_and_their_least_numbers():
    terms = "torch.sign(i8[kv]) * 100 * 2", "torch.fmod(i8[kv], 30) * 200", "torch.ones_like(i32[kv]) * 2**30 * 4"
    terms = *terms, "torch.div(i8[kv], 3, rounding_mode='trunc') * 200", "i32[kv].to(torch.uint8) * (i32[q] * 2**28)"
    assert verdict(" + ".join(f"({term}) % 7 * 0.3" for term in terms)) == "right"
    assert verdict("torch.sign(i32[kv]) * 2**32 % 11 * 0.3") != "wrong"  # 0 in PyTorch


def test_bits_of_two_constants_are_a_tile():
    assert verdict("(((i8[kv] * 0 + 3) | 4).long() * kv % 5) * 0.3") == "right"
