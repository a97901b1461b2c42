"""Hints for the second-level cache on rows that are read in several passes."""

from __future__ import annotations

import re

import pytest

import neptune_lab as nl
from neptune_lab.operators import attention, norms, rows

TILES = {"block_q": 1, "block_kv": 16}


def _hints(source: str) -> list[tuple[str, str]]:
    """The tensor and the policy of each load that has one, in order."""
    return re.findall(r'tl\.load\((\w+)_base \+ j[^\n]*eviction_policy="(\w+)"', source)


@pytest.mark.nightly
@pytest.mark.parametrize("make", [rows.softmax, norms.layer_norm], ids=lambda make: make.__name__)
def test_the_first_pass_keeps_a_row_and_the_last_lets_it_go(make):
    kernel = nl.compile(make(rows=3, cols=64, dtype="float16"), "rolling_update", **TILES, validate="full")
    assert _hints(kernel.source) == [("x", "evict_last"), ("x", "evict_first")]
    assert kernel.relative_error() < 1e-3


def test_what_is_read_once_has_no_hint():
    assert not _hints(nl.compile(norms.l2_norm(rows=3, cols=64), "rolling_update", **TILES).source)
    norm = nl.compile(norms.layer_norm(rows=3, cols=64), "rolling_update", **TILES).source
    assert not re.search(r"tl\.load\((gamma|beta)_ptr[^\n]*evict", norm)


def test_parts_of_a_partitioned_loop_are_one_pass():
    """A row of 60 in tiles of 16: whole tiles in a loop, and what is left after it, in each pass."""
    source = nl.compile(rows.softmax(rows=3, cols=60), "rolling_update", **TILES).source
    assert source.count("evict_last") == source.count("evict_first") == 1


def test_kernels_with_products_have_none():
    """Their keys are read by other programs too."""
    assert "evict" not in nl.compile(attention.causal(heads=2, seq=64, head_dim=16), block_q=16, block_kv=16).source
