"""The order of program instances: each is computed once, and numbers stay."""

from __future__ import annotations

import re

import pytest

import neptune_lab as nl
from neptune_lab.htile_to_triton import program_order
from neptune_lab.htile_to_triton.program_order import at_place
from neptune_lab.operators import attention

TILES = {"block_q": 16, "block_kv": 16}


class _Axes:
    """`tl.program_id` of one program."""

    def __init__(self, *at: int) -> None:
        self.at = at

    def program_id(self, axis: int) -> int:
        return self.at[axis]


@pytest.mark.parametrize(("blocks", "heads", "together"), [(4, 6, 2), (4, 6, 3), (5, 4, 4), (1, 8, 4), (7, 3, 1)])
def test_each_tile_has_one_program(blocks, heads, together):
    places = []
    for h in range(heads):
        for i in range(blocks):
            names = {"tl": _Axes(i, h)}
            names["place"] = eval(f"tl.program_id(1) % {together} * {blocks} + tl.program_id(0)", names)
            places.append(tuple(eval(text, names) for text in at_place("place", together)))
    assert sorted(places) == [(i, h) for i in range(blocks) for h in range(heads)]
    rows = [row for row, _ in places]
    assert rows == [n // together for n in range(blocks * together)] * (heads // together)


def _compiled(op, monkeypatch, cache: int = 2**25):
    monkeypatch.setattr(program_order, "ENOUGH", 20)
    monkeypatch.setattr(program_order, "CACHE", cache)
    return nl.compile(op, "rolling_update", **TILES)


@pytest.mark.nightly
def test_heads_go_together_where_rows_differ_in_work(monkeypatch):
    kernel = _compiled(attention.causal(batch=2, heads=4, seq=80, head_dim=16), monkeypatch)
    assert "# 4 indices of h side by side" in kernel.source
    assert kernel.relative_error() < 2e-3


def test_as_many_as_the_cache_holds(monkeypatch):
    op = attention.causal(batch=1, heads=8, seq=80, head_dim=16)
    of_two = 2 * 2 * 80 * 16 * 2  # keys and values of two heads in float16
    assert "# 2 indices of h side by side" in _compiled(op, monkeypatch, of_two).source


@pytest.mark.one_in(2)
@pytest.mark.parametrize("heads", [1, 4])
def test_equal_work_keeps_the_order_of_the_grid(monkeypatch, heads):
    for op in (attention.full(heads=heads, seq=80, head_dim=16), attention.causal(heads=1, seq=80, head_dim=16)):
        assert not re.search("side by side", _compiled(op, monkeypatch).source)


def test_a_grid_that_runs_at_once_keeps_its_order():
    assert "side by side" not in nl.compile(attention.causal(heads=4, seq=80, head_dim=16), **TILES).source
