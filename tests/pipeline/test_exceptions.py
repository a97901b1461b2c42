"""kernel.remarks names the exceptions of docs/concepts/numbers.md that a program meets, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import by_name
import pytest
import torch

import neptune_lab as nl
from neptune_lab.operators import attention, norms, rows
from neptune_lab.pipeline.exceptions import repaired_by_vectors
from tests.pipeline.odd import operator

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "numbers.md"
SUMS, REPAIRS, VECTOR = "near the largest float", "beyond 1e-18 to 1e18", "vector repairs"
TANH = "absolute errors"
MASKS, OFFSETS, HALVES = "masked tiles are not visited", "large common offsets", "float16 outputs"
DISTRIBUTED = "distributed products"

OPERATORS = {
    "causal": (
        lambda: attention.causal(batch=1, heads=1, seq=8, head_dim=4),
        {"block_q": 4, "block_kv": 4},
        (SUMS, REPAIRS, MASKS, OFFSETS, HALVES),
    ),
    "softcap": (
        lambda: attention.softcap(batch=1, heads=1, seq=8, head_dim=4),
        {"block_q": 4, "block_kv": 4},
        (SUMS, REPAIRS, TANH, MASKS, OFFSETS, HALVES),
    ),
    "softmax": (lambda: rows.softmax(rows=4, cols=8), {"block_kv": 4}, (SUMS, REPAIRS, OFFSETS)),
    "held": (lambda: rows.softmax(rows=4, cols=8), {"block_kv": 8}, (SUMS, OFFSETS)),
    "layer_norm": (
        lambda: norms.layer_norm(rows=4, cols=8, dtype="float32"),
        {"block_kv": 4},
        (SUMS, REPAIRS, VECTOR),
    ),
    "elementwise": (lambda: operator("elementwise"), {}, ()),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", OPERATORS)
def test_remarks_name_what_the_program_meets(name: str):
    build, options, expected = OPERATORS[name]
    kernel = by_name.compile(build(), "rolling_update" if options else None, validate="none", **options)
    said = [remark for remark in kernel.remarks if remark.startswith("Numbers")]
    assert said == ([f"Numbers, with these exceptions: {'; '.join(expected)}."] if expected else [])


def test_the_choice_of_a_template_comes_first():
    kernel = nl.compile(rows.softmax(rows=4, cols=8), validate="none")
    assert [remark.partition(":")[0] for remark in kernel.remarks] == [
        "rolling_update",
        "Numbers, with these exceptions",
    ]


def test_every_exception_of_the_page_has_a_name():
    listed = re.findall(r"^- \*\*(.+?)[.:]?\*\*", PAGE.read_text().partition("## Exceptions")[2], re.MULTILINE)
    assert [title.lower() for title in listed] == [SUMS, REPAIRS, TANH, VECTOR, MASKS, DISTRIBUTED, OFFSETS, HALVES]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_products_that_are_distributed_in_16_bits(dtype: torch.dtype):
    """Rounded to 16 bits by themselves, the terms of a difference may cancel."""

    def function(a, b, v):
        return (torch.tanh(a) - torch.tanh(b)) @ v

    a, b, v = (torch.randn(16, 16, dtype=dtype) for _ in range(3))
    sch = nl.Schedule(nl.from_torch(function, a, b, v))
    (product,) = (name for name in sch.blocks if "matmul" in name)
    sch.distribute(product)
    kernel = nl.compile(nl.templates.rolling_update(sch), validate="none")
    assert any(DISTRIBUTED in remark for remark in kernel.remarks) == (dtype == torch.float16)


def test_a_repair_that_came_to_nothing_is_no_repair():
    """What was tried is shown in front of a remark; it belongs to no step of the kernel."""
    sch = nl.Schedule(norms.layer_norm_statistics(rows=4, cols=6))
    sch.split("x_sum.j", (None, 3))
    sch.rolling_update("deviation_sum", "x_sum.j0")
    assert repaired_by_vectors(sch) == {"deviation_sum"}
    other = nl.Schedule(sch.operator)
    other.remark("tried")
    other.preface(sch.phases)
    assert not repaired_by_vectors(other)
