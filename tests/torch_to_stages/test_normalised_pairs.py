"""A plain and a clever spelling of one function become the same kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch_to_stages.patterns import ATTENTION, BEYOND

import neptune_lab as nl
from neptune_lab.pipeline import schedule_trace
from neptune_lab.pipeline.normalise import normalised


def sink_after_the_product(q, k, v, sink):
    """As `sink_attention_by_hand`, and the quotient is taken after the product."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    top = torch.maximum(scores.amax(-1, keepdim=True), sink[:, None, None])
    e = torch.exp(scores - top)
    total = e.sum(-1, keepdim=True)
    return (e @ v) / (total + torch.exp(sink[:, None, None] - top))


def two_products(q1, q2, k1, k2, v):
    """As `differential`, with a product for each softmax, and quotients after them."""
    s1 = q1 @ k1.mT / math.sqrt(q1.shape[-1])
    e1 = torch.exp(s1 - s1.amax(-1, keepdim=True))
    r1 = e1.sum(-1, keepdim=True)
    s2 = q2 @ k2.mT / math.sqrt(q2.shape[-1])
    e2 = torch.exp(s2 - s2.amax(-1, keepdim=True))
    r2 = e2.sum(-1, keepdim=True)
    return (e1 @ v) / r1 - (e2 @ v) / r2 * 0.3


PAIRS: dict[str, Callable[..., torch.Tensor]] = {
    "sink_attention": sink_after_the_product,
    "sink_attention_by_hand": sink_after_the_product,
    "differential": two_products,
}


def outline_without_names(kernel: nl.Kernel) -> list[str]:
    """The lines of the outline; the names of stages, which are the user's, and counts of lines are left out."""
    lines = kernel.outline.splitlines()[1:]
    return [re.sub(r"^kernel \w+ |\d+ lines of Triton$|(?<=dots     )\w+|(?<=reduces  )\w+", "", x) for x in lines]


def normalised_kernel(function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> nl.Kernel:
    """The kernel with every normalisation that applies; test_patterns.py shows that the compiler chooses them."""
    operator = nl.from_torch(function, *inputs)
    starts, _ = normalised(operator)
    started = starts[-1] if starts else nl.Schedule(operator)
    return nl.compile(nl.templates.rolling_update(started, block_kv=16), validate="none")


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAIRS)
def test_both_spellings_are_one_kernel(name: str):
    function, make = {**ATTENTION, **BEYOND}[name]
    torch.manual_seed(0)
    inputs = make()
    plain, clever = (normalised_kernel(f, inputs) for f in (function, PAIRS[name]))
    assert len(plain.htile.kernels) == 1
    assert outline_without_names(plain) == outline_without_names(clever)
    torch.testing.assert_close(plain(*inputs), clever(*inputs), rtol=2e-3, atol=2e-3)


def norm(x, w):
    """As a person writes it once."""
    y = x * 2.0
    centred = y - y.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * w


def norm_written_twice(x, w):
    """The mean, and the rows that it is of, in two spellings."""
    y = x * 2.0
    spread = ((x * 2.0 - (x * 2.0).mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True)
    return (y - y.mean(-1, keepdim=True)) * torch.rsqrt(spread + 1e-5) * w


@pytest.mark.nightly
def test_statistics_that_are_written_twice_are_computed_once():
    torch.manual_seed(0)
    x, w = torch.randn(16, 96), torch.randn(96)
    once, twice = (nl.compile(nl.from_torch(f, x, w), block_kv=32) for f in (norm, norm_written_twice))
    assert len(once.htile.kernels) == len(twice.htile.kernels) == 1
    reductions = [[x for x in outline_without_names(k) if "reduces" in x] for k in (once, twice)]
    assert reductions[0] == reductions[1]
    torch.testing.assert_close(twice(x, w), norm(x, w))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_softmax_of_scaled_rows_is_one_kernel(dtype: torch.dtype):
    x = torch.randn(8, 96, dtype=dtype)
    kernel = nl.compile(nl.from_torch(lambda x: torch.softmax(x * 0.5 + 1.0, -1), x), block_kv=32)
    assert len(kernel.htile.kernels) == 1
    torch.testing.assert_close(kernel(x), torch.softmax(x * 0.5 + 1.0, -1), rtol=2**-9, atol=1e-5)


@pytest.mark.nightly
def test_the_definition_stays_if_normalisation_is_off():
    function, make = BEYOND["sink_attention_by_hand"]
    config = nl.TileConfig(block_kv=16, normalise=False)
    kernel = nl.compile(nl.from_torch(function, *make()), "rolling_update", config=config, validate="none")
    assert len(kernel.htile.kernels) == 2
    assert kernel.schedule.base is kernel.schedule.definition


@pytest.mark.nightly
def test_the_record_links_new_stages_to_the_definition():
    function, make = BEYOND["sink_attention_by_hand"]
    schedule = nl.Schedule(nl.from_torch(function, *make()))
    schedule.move_scale("matmul_2")
    assert schedule.sources == {"matmul_2_unscaled": "matmul_2"}
    assert schedule.check()
    (phase,) = schedule_trace(schedule).steps[-1].phases
    assert {line.origin for line in phase.program if "matmul_2_unscaled" in line.text} == {"matmul_2"}
    assert schedule.undo().primitive == "move_scale"
    assert schedule.base is schedule.definition
