"""Rows that lanes reduce: which are chosen, and that emitted kernels give the right numbers."""

from __future__ import annotations

import pytest

import neptune_lab as nl
from neptune_lab.htile_passes import rows_of_lanes
from neptune_lab.operators import Operator, norms, rows


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("operator", "warps", "registers"),
    [
        (rows.log_sum_exp(rows=2143, cols=46621, dtype="float16"), 8, None),
        (rows.log_sum_exp(rows=1174, cols=68976, dtype="float16"), 16, 64),
        (rows.cross_entropy(rows=125, cols=124823, dtype="float16"), 32, None),
        (rows.cross_entropy(rows=1634, cols=29647, dtype="bfloat16"), 2, None),
        (rows.softmax(rows=7766, cols=98799, dtype="float16"), 32, 64),
        (rows.softmax(rows=3000, cols=65537, dtype="bfloat16"), 8, 128),
        (rows.log_sum_exp(rows=2143, cols=46621, dtype="float32"), None, None),
        (rows.log_sum_exp(rows=100, cols=46621, dtype="float16"), None, None),
        (rows.cross_entropy(rows=255, cols=134243, dtype="bfloat16"), 16, 64),
        (rows.cross_entropy(rows=330, cols=150001, dtype="bfloat16"), 8, None),
        (rows.log_sum_exp(rows=255, cols=91115, dtype="float16"), None, None),
        (norms.l2_norm(rows=2143, cols=46621, dtype="float16"), None, None),
    ],
)
def test_which_rows_are_reduced_in_lanes(operator: Operator, warps: int | None, registers: int | None):
    kernel = nl.compile(operator, target="h200", validate="none")
    assert ("_lanes" in kernel.source) == (warps is not None)
    assert warps is None or f"num_warps={warps}" in kernel.source
    assert ("maxnreg" in kernel.source) == (registers is not None)
    assert registers is None or f"maxnreg={registers}" in kernel.source


@pytest.mark.one_in(12)
@pytest.mark.parametrize("cols", [1040, 1203])
@pytest.mark.parametrize("define", [rows.softmax, rows.log_sum_exp, rows.cross_entropy])
@pytest.mark.parametrize("held", [False, True])
def test_numbers(define, cols: int, held: bool, monkeypatch: pytest.MonkeyPatch):
    """Aligned and odd rows, in a loop, and held if they are only read."""
    for name in ("MOST_OF_THREAD", "SHORTEST"):
        monkeypatch.setattr(rows_of_lanes, name, 8)
    monkeypatch.setattr(rows_of_lanes, "MOST_READ_ONCE", 160 if held else 8)
    for name in ("PIECES", "OF_FEW_WARPS"):
        monkeypatch.setattr(rows_of_lanes, name, 2)
    config = nl.TileConfig(block_q=1, block_kv=cols, num_warps=1)
    kernel = nl.compile(define(rows=5, cols=cols, dtype="float16"), config=config, target="h200", validate="none")
    assert "_lanes" in kernel.source
    assert ("for t in range" in kernel.source) != (held and define is not rows.softmax)
    assert kernel.relative_error() < 1e-3
