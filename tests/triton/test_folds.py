"""Folds that are read more than once behind their loop: Triton's compiler must not stop at them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
