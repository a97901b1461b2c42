"""any and all from tensor expressions to Triton, fused with the reduction that they read."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import te, tirx

from neptune_lab.htile.interpret import interpret
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_to_htile import translate
from neptune_lab.pipeline import compile

sys.path.insert(0, str(Path(__file__).parents[1] / "loop_schedule"))
import small_operators as small

REDUCERS = {
    "any": te.comm_reducer(lambda a, b: tirx.Or(a, b), lambda dtype: tirx.const(False, dtype), name="any"),
    "all": te.comm_reducer(lambda a, b: tirx.And(a, b), lambda dtype: tirx.const(True, dtype), name="all"),
}


@pytest.mark.parametrize("reducer", REDUCERS)
def test_truth_values_reach_triton(reducer):
    """o[i] is whether any (all) of x / (1 + max |x|) are positive; the rows differ in the answer."""
    x = small.matrix(n=4, m=5)
    r = small.fold("max", "r", 4, 5, lambda i, j: te.abs(x[i, j]))
    j = te.reduce_axis((0, 5), name="j")
    o = small.compute((4,), lambda i: REDUCERS[reducer](x[i, j] / (r[i] + 1.0) > 0.0, axis=j), name="o")
    sch = Schedule(small.operator(([x], [o])))
    sch.split("r.j", (None, 2))
    sch.split_k_update("o", "r.j0")
    for buffer in [b.name for b in sch.program.buffers if b.tagged]:
        sch.retire_tags(buffer)
    values = np.array([[1, 2, 3, 4, 5], [-1, -2, -3, -4, -5], [-1, 2, -3, 4, -5], [1, 2, 3, 4, -5]], np.float32)
    assert sch.check()
    expected = (values > 0).any(axis=1) if reducer == "any" else (values > 0).all(axis=1)
    assert len(set(expected.tolist())) == 2
    assert interpret(translate(sch.program), {"x": values})["o"].tolist() == expected.tolist()
    import torch

    assert compile(sch)(torch.tensor(values)).tolist() == expected.tolist()
