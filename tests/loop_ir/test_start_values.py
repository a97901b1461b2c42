"""Start values where a tile is past the end as a whole: a reduction over nothing is its identity, natively too."""

from __future__ import annotations

import pytest

import neptune_lab as nl
from neptune_lab.operators import attention


@pytest.mark.parametrize(("keys", "splits", "empty"), [(256, 3, 1), (160, 3, 1), (200, 3, 2), (256, 4, 0)])
def test_tiles_past_the_end_within_a_split(keys: int, splits: int, empty: int):
    """Where the tile divides the keys, TVM states the bound by tiles alone: `if js * 3 + j0 < 8`."""
    op = attention.full(batch=1, heads=1, q_len=1, kv_len=keys, head_dim=8)
    sch = nl.templates.split_k_update(nl.Schedule(op), block_kv=32, config=nl.SplitKConfig(splits=splits))
    tiles = -(-keys // 32)
    assert splits * -(-tiles // splits) - tiles == empty
    assert sch.check()
