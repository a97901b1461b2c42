"""A saved record made again: the same programs, then films, traffic and edits; or a refusal that says why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from neptune_widgets.explorer import Explorer
from neptune_widgets.revive import can_revive

import neptune_lab as nl
from neptune_lab import trace as traces
from neptune_lab.errors import ScheduleError
from neptune_lab.operators import attention, custom, rows, softmax


@pytest.fixture(scope="module")
def kernel() -> nl.Kernel:
    return nl.compile(attention.causal(heads=2, seq=32, head_dim=16), block_q=16, block_kv=16, validate="none")


def asked(explorer: Explorer, kind: str, **message: Any) -> dict[str, Any]:
    """The last answer to a message."""
    sent: list[dict[str, Any]] = []
    explorer.send = lambda content, *_: sent.append(content)  # type: ignore[method-assign]
    explorer._received(explorer, {"kind": kind, "seq": 7, **message}, [])
    if explorer._messages is not None:
        explorer._messages.wait()
    return sent[-1]


@pytest.mark.nightly
def test_a_record_has_everything_again(kernel, tmp_path):
    path = tmp_path / "record.json"
    traces.save(kernel.trace, path)
    explorer = nl.explore(path)
    first = json.loads(explorer.payload)
    assert (first["live"], first["again"]) == (False, True)
    assert "Recompile" in first["tags_note"]
    answer = asked(explorer, "recompile")
    assert (answer["kind"], answer["note"]) == ("recompiled", "")
    now = json.loads(answer["payload"])
    assert now["live"] is True
    assert now["trace"]["kernel"]["source"] == kernel.source
    assert explorer.kernel is not None
    assert [s.template for s in explorer.trace.steps] == [s.template for s in kernel.trace.steps]
    assert asked(explorer, "traffic")["traffic"]["forms"]
    step = now["panes"]["play"]["plays"][0]["step"]
    assert asked(explorer, "play", step=step)["film"]["sides"]
    assert asked(explorer, "remake", values={"kv_len": 128})["kind"] == "edited"
    assert "This page has no" not in explorer.export_html()
    with pytest.raises(ScheduleError, match="not a saved record"):
        explorer.recompile()


@pytest.mark.nightly
def test_a_kernel_of_other_options_is_said_to_differ():
    swapped = nl.CodeOptions(disable_passes=("exponentials_to_base_two",))
    made = nl.compile(attention.causal(heads=2, seq=64, head_dim=16), code=swapped, validate="none")
    assert "text differs from the saved one" in Explorer(made.trace).recompile()


def test_what_is_not_the_record_s_is_refused(kernel):
    program = kernel.trace.program
    last = kernel.trace.steps[-1]
    other = replace(program[-1], text=program[-1].text + " + 1")
    phases = (*last.phases[:-1], replace(last.phases[-1], program=(*program[:-1], other)))
    forged = replace(kernel.trace, steps=(*kernel.trace.steps[:-1], replace(last, phases=phases)))
    explorer = Explorer(forged)
    assert "make another loop program" in asked(explorer, "recompile")["message"]
    assert explorer._messages is None
    assert json.loads(explorer.payload)["live"] is False
    operator = kernel.trace.operator
    longer = replace(kernel.trace, operator=replace(operator, params={**operator.params, "kv_len": 65}))
    assert "other inputs or outputs" in asked(Explorer(longer), "recompile")["message"]
    for params in ({**operator.params, "heads": "two"}, {**operator.params, "heads": None}, {}):
        broken = replace(kernel.trace, operator=replace(operator, params=params))
        answer = asked(Explorer(broken), "recompile")
        assert answer["kind"] == "failed", params


def test_an_operator_of_one_s_own_is_not_taken_for_one_of_the_library():
    from tvm import te

    x = te.placeholder((2, 4), "float32", name="x")
    own = custom("row_square", [x], [te.compute((2, 4), lambda i, j: x[i, j] * x[i, j], name="out")])
    trace = nl.explore(own).trace
    assert not can_revive(trace)
    assert "not an operator that this library can make" in asked(Explorer(trace), "recompile")["message"]
    assert "They need the operator itself" in json.loads(Explorer(trace).payload)["tags_note"]
    namesake = custom("softmax", [x], [te.compute((2, 4), lambda i, j: x[i, j] * x[i, j], name="out")])
    answer = asked(Explorer(nl.explore(namesake).trace), "recompile")
    assert answer["kind"] == "failed"


@pytest.mark.nightly
def test_a_refused_step_and_an_unfinished_schedule_are_made_again():
    schedule = nl.Schedule(softmax.figure1(2, 4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    explorer = Explorer(nl.explore(schedule).trace)
    assert explorer.recompile() == ""
    assert explorer.schedule.steps == schedule.steps
    assert can_revive(nl.explore(rows.softmax(2, 4)).trace)
