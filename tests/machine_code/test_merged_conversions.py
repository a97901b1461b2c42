"""Conversions to 8 bits in machine code: what an instruction merges with was made before.

Of two conversions of the same registers, ptxas 12.8 keeps one that merges with a register to which nothing was written
(see `_ROUNDED` in htile_to_gluon/helpers.py, and `_TO_EIGHT` in htile_to_triton/helpers.py).
"""

from __future__ import annotations

import re

import pytest

import neptune_lab as nl
from neptune_lab.operators import attention

E4 = "float8_e4m3fn"
MERGES = re.compile(r"F2FP\.SATFINITE\S*E4M3\S*MERGE_C R\d+, .*?(R\d+|RZ)(?:\.reuse)? ;")


def merged_with_others(sass: str) -> list[str]:
    """The conversions whose last operand is not the result of a conversion."""
    lines = [line.split("*/", 1)[1].strip() for line in sass.splitlines() if re.search(r"/\*[0-9a-f]{4,}\*/", line)]
    found = []
    for n, line in enumerate(lines):
        merges = MERGES.search(line)
        if merges and merges[1] != "RZ":
            defined = re.compile(rf"^(@!?U?P\d+ )?\S+ (PT, )?{merges[1]}\b")
            before = next((line for line in reversed(lines[:n]) if defined.search(line)), "nothing")
            if "F2FP.SATFINITE" not in before:
                found.append(f"{line}  after  {before}")
    return found


def test_the_judge_finds_what_ptxas_makes():
    good = "/*0010*/ F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R4, R2, R3, RZ ;\n"
    merged = "/*0020*/ F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R5, R2, R3, R4 ;\n"
    assert merged_with_others(good + merged) == []
    assert len(merged_with_others("/*0010*/ LDC R4, c[0x0][0x28] ;\n" + merged)) == 1
    assert len(merged_with_others(merged)) == 1


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("code", "weights"), [("gluon", "split"), ("gluon", "single"), ("triton", "split"), ("triton", "single")]
)
def test_masked_weights_merge_with_conversions_only(code: str, weights: str):
    """Keys that a causal mask hides from all rows of a consumer have one weight; rests of half of the keys are 0."""
    formats = dict.fromkeys(("q_dtype", "k_dtype", "v_dtype", "weights_dtype"), E4)
    mask = lambda b, h, q, kv: q >= kv  # noqa: E731
    size = 128 if code == "gluon" else 64
    op = attention.general(1, 2, 256, 256, size, None, mask, "bfloat16", v_transposed=True, **formats)  # type: ignore[arg-type]
    kernel = nl.compile(
        op,
        "rolling_update",
        config=nl.TileConfig(block_q=size, block_kv=size),
        code=nl.CodeOptions(code=code, rounded_weights=weights),  # type: ignore[arg-type]
        target="h200",
        validate="none",
    )
    sass = kernel.machine_code("sm_90").text("sass")
    assert len(MERGES.findall(sass)) > 30
    assert merged_with_others(sass) == []
