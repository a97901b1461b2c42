"""Tuning and timing where there is a GPU."""

from __future__ import annotations

import pytest

import neptune_lab as nl
from neptune_lab.operators import attention, find
from neptune_lab.records import Store, best
from neptune_lab.runtime.measurement import measure
from neptune_lab.tuning.measuring import task_of
from neptune_lab.tuning.tune import tune

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cold", [False, True])
def test_a_copy_takes_about_as_long_as_its_bytes(cold):
    import torch

    from neptune_lab.runtime.timing import sampler, summary

    x = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    y = torch.empty_like(x)
    us = summary(sampler(lambda: y.copy_(x), cold=cold)(10))[0]
    assert 0.2e6 < 2 * x.numel() / us < 10e6  # bytes a microsecond: between 0.2 and 10 TB/s


def test_cold_launches_take_longer_than_warm_ones():
    op = find("norms.l2_norm")(rows=64, cols=1 << 14)
    spec = nl.compile(op).spec
    warm, cold = (measure(task_of(op, cold=c), spec) for c in (False, True))
    assert warm.failure is cold.failure is None
    assert 0 < warm.us < cold.us
    assert warm.resources[0].registers > 0


def test_tuning_finds_what_compile_then_takes(tmp_path):
    op = attention.causal(heads=4, seq=512, head_dim=64)
    store = Store(tmp_path / "records.sqlite")
    result = tune(op, seconds=60, trials=6, store=store, progress=False)
    assert result.best.us > 0
    assert result.best.error < 2e-3
    assert best(op, store=store) == result.best
    assert all(r.us is None or result.best.us <= r.us for r in store.find())
