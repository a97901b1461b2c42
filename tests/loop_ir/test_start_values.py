"""Start values where a tile is past the end as a whole: a reduction over nothing is its identity, natively too."""

from __future__ import annotations

import pytest

import neptune_lab as nl
from neptune_lab.loop_ir.dataflow import nodes_and_edges
from neptune_lab.operators import attention, rows


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("keys", "splits", "empty"), [(256, 3, 1), (160, 3, 1), (200, 3, 2), (256, 4, 0)])
def test_tiles_past_the_end_within_a_split(keys: int, splits: int, empty: int):
    """Where the tile divides the keys, TVM states the bound by tiles alone: `if js * 3 + j0 < 8`."""
    op = attention.full(batch=1, heads=1, q_len=1, kv_len=keys, head_dim=8)
    sch = nl.templates.split_k_update(nl.Schedule(op), block_kv=32, config=nl.SplitKConfig(splits=splits))
    tiles = -(-keys // 32)
    assert splits * -(-tiles // splits) - tiles == empty
    assert sch.check()


def test_a_start_value_reaches_its_loop_and_no_reader_behind_it():
    sch = nl.templates.rolling_update(nl.Schedule(rows.softmax(2, 8)), block_q=1, block_kv=4)
    edges = {(edge.source, edge.target) for edge in nodes_and_edges(sch.program)[1]}
    assert {edge for edge in edges if edge[0].endswith("_start")} == {
        ("s_max_start", "s_max"),
        ("s_max_start", "s_sum"),  # the previous maximum, in the first iteration
        ("s_sum_start", "s_sum"),
    }
    assert {source for source, target in edges if target == sch.blocks[-1]} == {"x", "s_max_next", "s_sum"}
