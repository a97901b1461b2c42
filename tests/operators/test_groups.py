"""Gradients of grouped heads: the sum over a group in the nest of keys, where that leaves enough programs."""

from __future__ import annotations

import pytest
from gradients import worst_error
from tvm import te

import neptune_lab as nl
from neptune_lab.operators import attention, backward, custom, training
from neptune_lab.operators.reverse_mode import groups

SIZES = {"batch": 2, "heads": 6, "seq": 24, "head_dim": 16, "dtype": "float32"}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(groups, "FEWEST_ROWS", 0)


def _by_hand(offset: int):
    """A product of grouped heads; with an offset, a group does not start at a multiple of its size."""
    q = te.placeholder((6, 8, 4), "float32", name="q")
    k = te.placeholder((3 + offset, 9, 4), "float32", name="k")
    d, j = te.reduce_axis((0, 4), name="d"), te.reduce_axis((0, 9), name="j")
    s = te.compute((6, 8, 9), lambda h, i, j: te.sum(q[h, i, d] * k[(h + offset) // 2, j, d], axis=d), name="s")
    t = te.compute((6, 8, 9), lambda h, i, j: te.tanh(s[h, i, j]) * (h + 1).astype("float32"), name="t")
    out = te.compute((6, 8, 4), lambda h, i, e: te.sum(t[h, i, j] * k[(h + offset) // 2, j, e], axis=j), name="out")
    return custom("by_hand", [q, k], [out])


CASES = {
    "gqa": lambda: attention.gqa(kv_heads=2, **SIZES),
    "one head of keys": lambda: attention.gqa(kv_heads=1, **SIZES),
    "alibi": lambda: attention.general(
        2, 6, 12, 13, 4, kv_heads=3, dtype="float32", score_mod=lambda s, b, h, q, kv: s - 0.1 * (h + 1) * (q - kv)
    ),
    "by hand": lambda: _by_hand(0),
    "an offset": lambda: _by_hand(1),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", CASES)
def test_the_gradients_stay(case):
    op = CASES[case]()
    assert worst_error(op, training(op)) < 1e-6
    assert nl.compile(backward(op)).relative_error() < 2e-5


@pytest.mark.nightly
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_one_nest_sums_over_queries_and_heads(kv_heads):
    op = attention.gqa(kv_heads=kv_heads, **{**SIZES, "seq": 48, "dtype": "float16"})
    kernel = nl.compile(backward(op), block_q=16, block_kv=16)
    assert kernel.htile_text.count("\nkernel ") == 3  # delta; d_q; d_k and d_v
    assert f"in range({6 // kv_heads}):" in kernel.htile_text
    assert kernel.relative_error() < 2e-3


@pytest.mark.parametrize("causal", [True, False])
def test_few_programs_keep_the_shares_of_heads_apart(monkeypatch, causal: bool):
    """Twice as many rows are wanted under a mask, which leaves programs different amounts of work."""

    def is_grouped(rows: int) -> bool:
        monkeypatch.setattr(groups, "FEWEST_ROWS", rows)
        return "h_part, j, i]" in backward(attention.gqa(kv_heads=2, causal=causal, **SIZES)).source

    rows = 2 * 2 * 24 // (groups.UNEVEN if causal else 1)
    assert not is_grouped(rows + 1)
    assert is_grouped(rows)
