"""Folds that are read more than once behind their loop: Triton's compiler must not stop at them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tvm import te

import neptune_lab as nl
from neptune_lab.operators import custom

OFFLINE = Path(__file__).parents[1] / "triton_offline.py"


def scaled_sum(rows: int = 64, cols: int = 256):
    """Three folds of one loop; behind it `lo` is read twice, `hi` and `total` once."""
    x = te.placeholder((rows, cols), "float32", name="x")
    j = te.reduce_axis((0, cols), name="j")
    lo = te.compute((rows,), lambda i: te.min(x[i, j], axis=j), name="lo")
    hi = te.compute((rows,), lambda i: te.max(x[i, j], axis=j), name="hi")
    total = te.compute((rows,), lambda i: te.sum(x[i, j], axis=j), name="total")
    out = te.compute((rows,), lambda i: (total[i] - lo[i] * cols) / (hi[i] - lo[i]), name="out")
    return custom("scaled_sum", [x], [out])


@pytest.mark.nightly
def test_a_fold_that_is_read_twice_gets_one_reader_and_compiles(tmp_path):
    kernel = nl.compile(scaled_sum(), "rolling_update", block_q=16, block_kv=64)
    assert [line.strip().partition("  #")[0] for line in kernel.source.splitlines() if "one reader" in line] == [
        "lo = lo + 0.0"
    ]
    assert kernel.relative_error() < 1e-6
    path = kernel.export(tmp_path / "scaled_sum.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, OFFLINE, path], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["scaled_sum_kernel", "0"]


def test_repaired_sums_and_single_readers_are_left_alone():
    for op in (
        nl.operators.attention.causal(batch=1, heads=1, seq=64, head_dim=16),
        nl.operators.norms.l2_norm(rows=8, cols=64),
        nl.operators.rows.cross_entropy(rows=8, cols=64),
    ):
        assert "one reader" not in nl.compile(op).source


def sums_of_all(rows: int = 40, columns: int = 20):
    """The sum of each of two matrices, whose elements are 50 larger than those of the input."""
    x = te.placeholder((2, rows, columns), "float32", name="x")
    i, m = te.reduce_axis((0, rows), name="i"), te.reduce_axis((0, columns), name="m")
    return custom("sums", [x], [te.compute((2,), lambda h: te.sum(x[h, i, m] + 50.0, axis=[i, m]), name="sums")])


def test_where_products_are_in_tensor_memory_a_tile_is_folded_to_one_number_at_once():
    """Lanes that fill the tile, 12 beside 20 columns and 24 beside 40 rows, are left out."""
    kernel = nl.compile(sums_of_all(), target="b200", block_q=1, block_kv=64)
    assert "tl.sum(tl.reshape(" in "".join(kernel.source.split())
    assert kernel.relative_error() < 1e-6
    for target in ("h200", "sm_80"):
        source = nl.compile(sums_of_all(), target=target, validate="none", block_q=1, block_kv=64).source
        assert "tl.reshape(" not in source
