"""Rows that are the digits of flattened dimensions are validated at small sizes, as rows of one dimension are."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import NeptuneError
from neptune_lab.operators import Operator
from neptune_lab.operators.custom import custom
from neptune_lab.operators.reverse_mode import training
from neptune_lab.pipeline import schedule
from neptune_lab.pipeline.validate import reference, replay, resize, sizes


def sums(high: int, low: int, width: int, more: int = 0, again: bool = False) -> Operator:
    """The sum of each row of a tensor of three dimensions; `more`: rows of it that are not read along the second one;
    `again`: also the sum of all rows of a tensor of two, at the same digits."""
    x = te.placeholder((high, low + more, width), "float32", name="x")
    t = te.placeholder((high, low), "float32", name="t")
    c: Any = te.reduce_axis((0, width), name="c")
    d: Any = te.reduce_axis((0, high * low), name="d")
    s = te.compute((high * low,), lambda r: te.sum(x[r // low, r % low, c], axis=c), name="s")
    if not again:
        return custom("sums", [x], [s])
    total = te.compute((), lambda: te.sum(t[d // low, d % low] * s[d], axis=d), name="total")
    return custom("sums", [x, t], [total])


@pytest.mark.parametrize("again", [False, True])
def test_flattened_rows_are_run_at_small_sizes(again: bool):
    sch = schedule(sums(8, 1024, 700, again=again), block_kv=64)
    planned = sizes.plan(sch)
    assert max(n for b in planned.definition.buffers for n in b.shape[:2]) <= 12
    validated = nl.compile(sch).validated
    assert validated is not None
    assert validated.stages == ("Triton",)
    if not again:  # tiles of flattened rows have no small form of their own: their steps are applied at small sizes
        assert resize.resized_schedule(sch, planned).program == replay.small_schedule(sch, planned).program


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(20))
def test_small_digits_are_the_digits_of_small_rows(seed: int):
    """Of the small definition, each row is one of the tensor, in order, whatever the sizes of the large one are."""
    rng = random.Random(seed)
    high, low, width = rng.choice([2, 3, 8, 64]), rng.choice([2, 3, 10, 500, 1024]), rng.choice([5, 64, 700])
    more, again = rng.choice([0, 0, 3]), rng.choice([True, False])
    sch = schedule(sums(high, low, width, more, again), block_kv=rng.choice([32, 64]))
    try:
        small = sizes.plan(sch).definition
    except NeptuneError:
        assert width == 5  # the only one that may have nothing to make smaller
        return
    inputs = {n: np.random.default_rng(seed).standard_normal(small.buffer(n).shape) for n in small.inputs}
    x = inputs["x"]
    rows = x[:, : x.shape[1] - more] if more else x
    want = rows.sum(-1)
    if more:
        assert x.shape[1] == low + more  # only whole digits become smaller
    found = reference.evaluate(small, inputs, wide=True)
    if again:
        np.testing.assert_allclose(found["total"], (want * inputs["t"]).sum(), rtol=1e-9)
    else:
        np.testing.assert_allclose(found["s"], want.reshape(-1), rtol=1e-9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_of_long_flattened_rows_is_run_at_small_sizes(reduction: str):
    x, t = torch.empty(8, 1024, 32000, dtype=torch.bfloat16), torch.zeros(8, 1024, dtype=torch.long)
    op = nl.from_torch(lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten(), reduction=reduction), x, t)
    passes = training(op)
    for each in (passes.forward, passes.backward):
        validated = nl.compile(each).validated
        assert validated is not None
        assert validated.stages == ("Triton",)
        assert max(int(n) for n in re.findall(r"\d+", validated.sizes)) <= 64
