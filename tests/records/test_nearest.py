"""Records of neighbours: which sizes are near, and what `compile(tuned=True)` makes of them."""

from __future__ import annotations

import math
from functools import partial

import pytest

import neptune_lab as nl
from neptune_lab import records
from neptune_lab.operators import attention
from neptune_lab.records.nearest import closest, distance
from neptune_lab.records.record import Record
from neptune_lab.target import Target

SIZES = {"batch": 1, "heads": 2, "q_len": 128, "kv_len": 128, "head_dim": 32, "dtype": "float16", "scale": 0.17}


def record(us: float | None, **changed) -> Record:
    return Record(
        workload="w", operator="attention_causal", params={**SIZES, **changed}, device="a GPU", capability="9.0",
        torch="2", triton="3", source="s", cold=False, us=us,
        candidate={"template": "rolling_update", "options": {"block_q": 32, "block_kv": 32}},
    )  # fmt: skip


def test_doublings_count_and_scales_do_not():
    assert distance(SIZES, {**SIZES, "scale": 0.5}) == 0
    assert distance(SIZES, {**SIZES, "batch": 4, "kv_len": 64}) == 3
    assert distance(SIZES, {**SIZES, "dtype": "bfloat16"}) == 2


def test_a_distance_is_the_same_in_whatever_order_sizes_are_compared():
    """Else which of two records at equal distances is nearer would differ from process to process."""
    for k in range(2, 22):
        sizes = {f"n{n}": 100 + 7 * n + k for n in range(9)}
        exact = math.fsum(math.log2(size / 64) for size in sizes.values())
        assert distance(sizes, dict.fromkeys(sizes, 64)) == exact


@pytest.mark.parametrize("other", [{"q_len": 1}, {"causal": True}, {"dtype": 3, "window": 64}], ids=str)
def test_what_is_no_matter_of_size(other):
    assert distance(SIZES, {**SIZES, **other}) == math.inf


def test_the_nearest_and_of_those_the_fastest():
    near, nearer, slower = record(5.0, batch=8), record(9.0, batch=2), record(11.0, batch=2)
    failed, far = record(None), record(1.0, q_len=128 * 1024, kv_len=128 * 1024)
    assert closest([near, slower, nearer, failed, far], "attention_causal", SIZES) is nearer
    assert closest([near], "attention_gqa", SIZES) is None
    assert closest([far, failed], "attention_causal", SIZES) is None


@pytest.mark.nightly
def test_compile_takes_the_neighbours_choice_and_leaves_one_that_does_not_fit(tmp_path, monkeypatch):
    op = attention.causal(batch=2, heads=2, seq=128, head_dim=32)
    fits = record(5.0, causal=True)
    monkeypatch.setattr(records, "nearest", lambda operator: fits)
    kernel = nl.compile(op, tuned=True)
    assert "for j0 in range(" in kernel.source
    assert "tl.arange(0, 32)" in kernel.source
    assert kernel.relative_error() < 1e-3
    given = nl.compile(op, tuned=True, block_kv=64)
    assert "tl.arange(0, 64)" in given.source, "what is given counts more"
    broken = record(5.0, causal=True)  # of other sizes: skipped silently
    broken.candidate["options"]["no_such_option"] = 1  # type: ignore[index]
    monkeypatch.setattr(records, "nearest", lambda operator: broken)
    assert nl.compile(op, tuned=True).source == nl.compile(op).source


@pytest.mark.nightly
def test_rolling_loops_without_records_are_gluon_on_hopper_alone(monkeypatch):
    made = partial(nl.compile, validate="none")
    prefill = attention.causal(heads=64, seq=1024, head_dim=64)
    monkeypatch.setattr(records, "nearest", lambda operator, **_: None)
    assert "gluon" in made(prefill, tuned=True, target="h200").source
    assert "gluon" not in made(prefill, tuned=True).source, "no GPU here"
    assert "gluon" not in made(prefill, tuned=True, target=Target("cuda", (8, 0))).source
    assert "gluon" not in made(prefill, "split_k_update", tuned=True, target="h200").source
    odd = attention.causal(heads=64, seq=1000, head_dim=64)  # tiles do not divide the length
    assert "_fill_of(" in made(odd, tuned=True, target="h200").source
    narrow = attention.causal(heads=64, seq=1000, head_dim=96)  # tiles of 128 columns, of which 32 hold zeros
    assert "_fill_of(" in made(narrow, tuned=True, target="h200").source
    precise = attention.causal(heads=64, seq=1000, head_dim=64, dtype="float32")  # a warp group multiplies 16 bits
    assert made(precise, tuned=True, target="h200").source == made(precise).source
    given = made(prefill, block_kv=64, code=nl.CodeOptions(code="triton"), tuned=True, target="h200").source
    assert "gluon" not in given


def test_shipped_records_serve_the_benchmarks_operators_at_other_batches():
    one, four = (attention.preset("causal_pf", seq=2048, batch=batch) for batch in (1, 4))
    exact, near = (records.nearest(op, "NVIDIA H200", store=records.Store("/nonexistent")) for op in (one, four))
    assert exact is not None
    assert exact == near
    assert exact.workload == records.workload_key(one) != records.workload_key(four)
