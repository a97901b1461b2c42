"""Rows that begin at no multiple of 16 bytes, in kernels that load 16 bytes at a time: numbers, and what is read."""

from __future__ import annotations

import pytest
import torch
from by_turns import half

import neptune_lab as nl
from neptune_lab.htile import from_text, verify
from neptune_lab.htile_passes import align_row_loops
from neptune_lab.htile_to_triton import emit
from neptune_lab.operators import norms, rows

BOUNDS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}
# One tile that is cut into pieces, and a loop over tiles.
WAYS = {"pieces": None, "loop": nl.TileConfig(block_q=1, block_kv=256)}


def right(name: str, x: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return {
        "softmax": lambda: torch.softmax(x, 1),
        "log_sum_exp": lambda: torch.logsumexp(x, 1),
        "l2_norm": lambda: x.norm(dim=1),
        "rms_norm_max": lambda: (x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt()).amax(1),
    }[name]()


@pytest.mark.one_in(24)
@pytest.mark.parametrize(
    ("name", "way", "dtype", "cols"),
    half(["softmax", "log_sum_exp", "l2_norm", "rms_norm_max"], WAYS, BOUNDS, [1303, 1306, 2047, 1032]),
)
def test_rows_with_every_head(name: str, way: str, dtype: str, cols: int):
    """The rows lie between elements that are no numbers, so one of these in a result would show."""
    make = getattr(norms if "norm" in name else rows, name)
    kernel = nl.compile(make(9, cols, dtype=dtype), config=WAYS[way])
    aligned = cols * (4 if dtype == "float32" else 2) % 16 == 0
    assert ("_row = " in kernel.source) != aligned
    around = torch.full((9 * cols + 32,), torch.nan, dtype=getattr(torch, dtype))
    x = around[16:-16].view(9, cols)
    x.copy_(torch.randn(9, cols, generator=torch.Generator().manual_seed(cols)))
    x[3, 0], x[4, -1] = 20.0, 20.0
    found, expected = kernel(x).double(), right(name, x)
    assert ((found - expected).norm() / expected.norm()).item() < BOUNDS[dtype]


def test_a_slice_that_begins_there_by_itself_has_all_its_elements():
    """No other statement has the elements behind its last whole block."""
    head = "i*5%8"
    program = from_text(f"""
program p(x) -> y
  input   x  float16[i: 9, j: 1003]
  output  y  float16[i: 9, j: 64]

kernel p  grid (i: 9)
    y[i, 0:64] = x[i, {head}+944:{head}+944+64]
""")
    verify(program)
    source = " ".join(emit(program).text.split())
    assert "x_row + (944 + tl.arange(0, 64)), mask=j < 1003" in source


def test_only_whole_blocks_are_loaded_at_once():
    """So a kernel never reads past the end of its tensor, and 16 bytes are loaded or none."""
    source = nl.compile(rows.softmax(9, 1303, dtype="float16")).source
    assert "x_row = x_ptr + (i * 1303 + 7) // 8 * 8" in source
    assert "mask=tl.arange(0, 1024) < (1303 - (i % 8 + 1024)) // 8 * 8" in source


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_norms_along_tiles_count_elements_behind_heads(dtype: str, monkeypatch: pytest.MonkeyPatch):
    """Vectors along the rows are copied for each head, which few rows are not worth."""
    monkeypatch.setattr(align_row_loops, "MANY_ELEMENTS", 0)
    kernel = nl.compile(norms.layer_norm(9, 1303, dtype=dtype), config=WAYS["loop"])
    assert "_row = " in kernel.source
    assert "gamma_shifted" in kernel.source
    numbers = torch.Generator().manual_seed(0)
    x = (torch.randn(9, 1303, generator=numbers) + 5).to(getattr(torch, dtype))
    gamma, beta = (torch.randn(1303, generator=numbers).to(x.dtype) for _ in range(2))
    expected = torch.nn.functional.layer_norm(x.double(), (1303,), gamma.double(), beta.double())
    assert ((kernel(x, gamma, beta).double() - expected).norm() / expected.norm()).item() < BOUNDS[dtype]
