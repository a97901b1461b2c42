"""The code that makes again what an explorer shows is run: the same kernel comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from neptune_widgets import payload
from neptune_widgets.repeat import as_python
from neptune_widgets.session import Session
from tvm import te

import neptune_lab as nl
from neptune_lab.operators import attention, custom, norms, softmax


def run(code: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(code.replace("nl.compile(sch", 'nl.compile(sch, validate="none"'), found)
    return found


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "make",
    [
        lambda: nl.compile(attention.causal(1, 2, 64, head_dim=16), validate="none"),
        lambda: nl.compile(attention.gqa(heads=4, kv_heads=2, seq=64, head_dim=16, dtype="bfloat16"), validate="none"),
        lambda: nl.compile(norms.layer_norm_statistics(8, 64), validate="none"),
        lambda: nl.compile(softmax.figure1(4, 64), disable_passes=("drop_dead_tiles",), validate="none"),
    ],
)
def test_it_makes_the_same_kernel(make: Callable[[], nl.Kernel]):
    kernel = make()
    made = run(as_python(Session(kernel.schedule, kernel)))["kernel"]
    assert made.source == kernel.source
    assert made.schedule.steps == kernel.schedule.steps


def test_after_an_edit_it_makes_the_edited_one():
    session = Session(nl.Schedule(softmax.figure1(2, 4)))
    session.edit([{"primitive": "rolling_update", "arguments": {"block": "s_sum", "loop": "s_max.j", "maps": "keep"}}])
    text = json.loads(payload.live(session).text)["python"]
    assert text == as_python(session)
    assert "sch.rolling_update('s_sum', 's_max.j'" in text
    found = run(text)
    assert found["sch"].program == session.schedule.program


def test_an_operator_of_one_s_own_is_named():
    x = te.placeholder((4, 16), "float32", name="x")
    j = te.reduce_axis((0, 16), name="j")
    total = te.compute((4,), lambda i: te.sum(x[i, j], axis=j), name="total")
    code = as_python(Session(nl.Schedule(custom("mine", [x], [total]))))
    assert "op = ...  # your operator mine\n" in code
    compile(code, "code", "exec")
