"""Operands of dots have rows of one width on Hopper: ptxas 12.8 miscompiles tiles that follow one of another width."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import neptune_lab as nl
from neptune_lab.htile_to_triton.padding import Padding
from neptune_lab.operators import attention

OFFLINE = Path(__file__).parents[1] / "triton_offline.py"


def unlike(modules: list[Path], cache: Path) -> list[str]:
    """What is printed of the kernels of a module."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, OFFLINE, "--dtype", "fp16", *modules]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.nightly
def test_no_tile_of_v_follows_one_of_q_with_wider_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """q and k have 64 columns and v 16: on an H200 the result was wrong in every row but the first 16."""
    op = attention.general(1, 1, 64, 64, 64, lambda s, b, h, q, kv: s, v_head_dim=16)
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(nl.compile(op, validate="none").source)
    monkeypatch.setattr(Padding, "_of_one_width", lambda *_: {})
    bad.write_text(nl.compile(op, validate="none", block_q=64).source)
    found = unlike([good, bad], tmp_path / "cache")
    assert found == ["attention_general_kernel", "0", "attention_general_kernel", "1"]


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    ("widths", "padded"),
    [((64, 16), 64), ((20, 8), 32), ((16, 64), 64), ((128, 32), 64), ((128, 64), 64), ((16, 16), 16)],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_narrower_rows_are_padded(widths: tuple[int, int], padded: int, dtype: str):
    width, v_width = widths
    mod = lambda s, b, h, q, kv: s  # noqa: E731
    op = attention.general(1, 1, 64, 64, width, mod, v_head_dim=v_width, dtype=dtype)
    kernel = nl.compile(op, block_q=64, block_kv=64)
    ranges = set(map(int, re.findall(r"tl\.arange\(0, (\d+)\)", kernel.source)))
    assert min(ranges) == padded
    assert kernel.relative_error() < 1e-2


def test_few_rows_and_float32_are_left_alone():
    """Neither is multiplied out of shared memory in this way."""
    mod = lambda s, b, h, q, kv: s  # noqa: E731
    for rows, dtype in ((16, "float16"), (64, "float32")):
        op = attention.general(1, 1, rows, 64, 64, mod, v_head_dim=16, dtype=dtype)
        assert "tl.arange(0, 16)" in nl.compile(op, block_q=rows, block_kv=64).source
