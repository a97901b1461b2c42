"""Tiles of few rows, which are dealt to splits in turn."""

from __future__ import annotations

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.htile import to_text
from neptune_lab.htile.interpret import interpret
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.operators import attention


@pytest.mark.nightly
@pytest.mark.parametrize("columns", [96, 101])
def test_splits_of_lengths_have_tiles_in_turn(columns: int):
    """Whole tiles or not, each tile once; the values are those of the definition."""
    lengths = np.array([columns, 40], "int32")
    operator = attention.general(2, 4, 1, columns, 8, kv_heads=2, mask_mod=lambda b, h, q, kv: kv < lengths[b])
    kernel = nl.compile(operator, "split_k_update", config=nl.SplitKConfig(splits=3, block_kv=16))
    assert kernel.schedule.check()
    assert not any("instead of being split" in remark for remark in kernel.remarks)
    assert "j0*48+js*16:j0*48+js*16+16" in to_text(kernel.htile)
    inputs = operator.random_inputs(0)
    want = run_wide(kernel.schedule.definition, inputs)
    np.testing.assert_allclose(interpret(kernel.htile, inputs)["out"], want["out"], rtol=2e-2, atol=2e-3)


def test_tiles_of_many_rows_follow_each_other():
    operator = attention.full(batch=1, heads=2, q_len=40, kv_len=96, head_dim=8)
    kernel = nl.compile(operator, "split_k_update", config=nl.SplitKConfig(splits=3, block_kv=16), validate="none")
    assert "js*32+j0*16:js*32+j0*16+16" in to_text(kernel.htile)
