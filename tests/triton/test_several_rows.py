"""Programs that hold a row of each of two tensors: how many registers a thread has, and which programs these are."""

from __future__ import annotations

import re

import pytest

from neptune_lab.htile import from_text
from neptune_lab.htile_to_triton import emit
from neptune_lab.htile_to_triton.options import EmitOptions
from neptune_lab.target import as_target

TEXT = """
program p(x, g, h, v, m) -> y
  input   x  bfloat16[i: 3, j: 4096]
  input   g  bfloat16[i: 3, j: 4096]
  input   h  bfloat16[i: 3, j: 4096]
  input   v  bfloat16[j: 4096]
  input   m  float32[i: 3]
  output  y  bfloat16[i: 3, j: 4096]
  chip    w  float32[i: 3, j: 4096]
  chip    s  float32[i: 3]
  chip    t  float32[i: 3]

kernel p  grid (i: 3)  num_warps=8
    {}
"""
WEIGHTS = "w[i, 0:4096] = exp2(float32(x[i, 0:4096]) - m[i])"
SUM = "s[i] = reduce(sum, float32(g[i, 0:4096]) * w[i, 0:4096], dim=0)"
OUT = "y[i, 0:4096] = bfloat16((float32(g[i, 0:4096]) - s[i]) * w[i, 0:4096])"


def registers(*lines: str, target: str = "h200", warps: int = 8) -> str | None:
    text = TEXT.format("\n    ".join(lines)).replace("num_warps=8", f"num_warps={warps}")
    found = re.search(r"maxnreg=(\d+)", emit(from_text(text), EmitOptions(target=as_target(target))).text)
    return found and found[1]


@pytest.mark.parametrize(("warps", "limit"), [(16, "32"), (32, "32"), (8, None), (4, None)])
def test_one_more_program_has_room(warps: int, limit: str | None):
    """2 x 8 elements of a lane in 16 warps and 16 registers beside them leave room for 4 programs of 512 threads."""
    assert registers(WEIGHTS, SUM, OUT, warps=warps) == limit


def test_other_gpus_are_left_alone():
    assert registers(WEIGHTS, SUM, OUT, target="gfx942", warps=16) is None


@pytest.mark.parametrize(
    "lines",
    [
        (WEIGHTS, SUM, OUT.replace("- s[i])", "- s[i] + float32(x[i, 0:4096]))")),
        (WEIGHTS, SUM, OUT.replace("- s[i])", "- s[i] + float32(h[i, 0:4096]))")),
        (WEIGHTS, SUM, OUT.replace("- s[i])", "- s[i] + float32(v[0:4096]))")),
        (WEIGHTS, SUM, "t[i] = reduce(max, float32(g[i, 0:4096]) + s[i], dim=0)", OUT.replace("s[i]", "t[i]")),
        tuple(line.replace("w[i, 0:4096]", WEIGHTS[15:]) for line in (SUM, OUT)),
    ],
    ids=["the row too", "a third row", "a vector", "two sums", "computed twice"],
)
def test_programs_that_may_hold_more_are_left_alone(lines: tuple[str, ...]):
    assert registers(*lines, warps=16) is None
