"""Partial results are loaded before the first of them is reduced."""

from __future__ import annotations

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.htile import interpret, to_text
from neptune_lab.htile_passes.load_partial_results_first import load_partial_results_first
from neptune_lab.operators import attention

NAME = "load_partial_results_first"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("splits", [2, 3])
def test_the_meaning_stays_and_loads_come_first(splits: int):
    operator = attention.general(1, 2, 1, 40, 4, kv_heads=1, return_lse=True)
    config = nl.SplitKConfig(splits=splits, block_kv=8)
    kernel = nl.compile(operator, "split_k_update", config=config, validate="none")
    before, after = next((done.before, done.program) for done in kernel.passes if done.name == NAME)
    combine = after.kernels[-1]
    read = [to_text(after).count(f" = {name}[") for name in ("s_max_local_0", "s_sum_local", "acc_local")]
    assert read == [1, 1, 1]
    assert [store.target.tensor.endswith("_of_splits") for store in combine.body[:4]] == [True] * 3 + [False]
    inputs = operator.random_inputs(0)
    for name, value in interpret(before, inputs).items():
        np.testing.assert_array_equal(interpret(after, inputs)[name], value)


@pytest.mark.nightly
def test_other_kernels_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    """One without splits, and one whose partial results are more than a program holds."""
    plain = nl.compile(attention.full(1, 2, seq=16, head_dim=4), "rolling_update", validate="none").htile
    assert load_partial_results_first(plain) is plain
    operator = attention.general(1, 2, 1, 40, 4, kv_heads=1)
    config, code = nl.SplitKConfig(splits=2, block_kv=8), nl.CodeOptions(disable_passes=(NAME,))
    splits = nl.compile(operator, "split_k_update", config=config, code=code, validate="none").htile
    assert load_partial_results_first(splits) is not splits
    monkeypatch.setattr("neptune_lab.htile_passes.load_partial_results_first.MOST_ELEMENTS", 8)
    assert load_partial_results_first(splits) is splits
