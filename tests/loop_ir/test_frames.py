"""A run as frames: in the order of execution, with every write at its place, and as the tag table judges it."""

from __future__ import annotations

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.frames import PlayedRun, played
from neptune_lab.loop_ir.tags import record
from neptune_lab.operators import attention, softmax


def figure1() -> nl.Schedule:
    schedule = nl.Schedule(softmax.figure1(rows=2, cols=4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    return schedule


def run_of(schedule: nl.Schedule, phase: str, rolling: str = "j") -> PlayedRun:
    program = next(p.program for p in schedule.phases if p.key == phase)
    inputs = schedule.operator.random_inputs(0)
    return played(record(program, inputs), record(schedule.definition, inputs), rolling=rolling)


def test_a_frame_is_an_iteration_of_the_rolling_loop():
    run = run_of(figure1(), "repaired")
    assert [f.name for f in run.frames] == ["j = 0", "j = 1", "j = 2", "j = 3"]
    assert {f.segment for f in run.frames} == {0}
    assert run.frames[0].loop == "loop:i.j@s_max"
    assert run.frames[0].blocks[0] == "s_max"
    kinds = {t.name: t.kind for t in run.tensors}
    assert kinds["inp"] == "input"
    assert kinds["xmax"] == kinds["xsum"] == "running"
    assert kinds["xexp"] == "tile"
    # Both rows run side by side: one column of the input per frame.
    assert [[w.index for w in frame] for frame in run.tensor("inp").frames] == [[(0, j), (1, j)] for j in range(4)]
    assert all(len(frame) == 2 for t in run.tensors for frame in t.frames)


def test_values_are_those_of_the_run_without_their_tags():
    schedule = figure1()
    x = schedule.operator.random_inputs(0)["inp"].astype(np.float64)
    run = run_of(schedule, "repaired")
    running = run.tensor("xmax")
    assert running.shape == (2,)
    for j, frame in enumerate(running.frames):
        assert {w.index: w.value for w in frame} == {(i,): x[i, : j + 1].max() for i in range(2)}
    total = np.exp(x - x.max(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(run.values("xsum"), total, rtol=1e-6)
    assert not np.allclose(run_of(schedule, "naive").values("xsum"), total, rtol=1e-3)


def test_marks_are_those_of_the_tag_table():
    schedule = figure1()
    for phase in ("naive", "repaired"):
        table = schedule.tag_table("j", phase=phase)
        rows = [r for r in table.rows if r.kind == "value"]
        cells = {(r.label, c): cell for r in rows for c, cell in zip(table.columns, r.cells, strict=True)}
        run = run_of(schedule, phase)
        shown = {(w.label, w.column): w for t in run.tensors if t.kind != "input" for f in t.frames for w in f}
        assert {place for place, cell in cells.items() if cell is not None} == set(shown)
        assert all(w.cell == cells[place] and w.value == cells[place].value for place, w in shown.items())


def test_each_loop_of_a_split_has_frames_of_its_own():
    schedule = nl.templates.split_k_update(nl.Schedule(attention.full(1, 1, q_len=2, kv_len=8, head_dim=2)), block_kv=2)
    step = next(a for a in schedule.history if a.step.primitive == "split_k_update" and "acc" in str(a.step))
    program = step.outcome.phases[-1].program
    inputs = schedule.operator.random_inputs(0)
    run = played(record(program, inputs), rolling="j0")
    assert [f.name for f in run.frames[:5]] == ["j0 = 0", "j0 = 1", "j0 = 2", "j0 = 3", "j0 = 0"]
    assert run.frames[4].segment == 1
    # A sum of all splits starts when the maximum of all splits is complete.
    last_maximum = max(n for n, f in enumerate(run.tensor("s_max").frames) if f)
    first_sum = min(n for n, f in enumerate(run.tensor("s_sum").frames) if f)
    assert last_maximum < first_sum
    assert run.tensor("s_max_local").kind == "part"


def test_statements_outside_the_loop_have_frames():
    schedule = nl.templates.rolling_update(
        nl.Schedule(attention.causal(1, 1, seq=8, head_dim=2)), block_q=2, block_kv=2
    )
    inputs = schedule.operator.random_inputs(0)
    run = played(record(schedule.program, inputs), rolling="j0")
    names = [f.name for f in run.frames]
    assert (names[0], names[-1]) == ("before j0", "after j0")
    assert run.frames[0].loop == ""
    assert run.tensor("out").kind == "result"


def test_an_unknown_loop_is_refused():
    schedule = figure1()
    with pytest.raises(ScheduleError, match="has no loop 'k'"):
        run_of(schedule, "naive", rolling="k")
