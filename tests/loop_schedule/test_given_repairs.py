"""Schedules with a repair that the caller gives: accepted, refused, or taken in unproved and marked in every view."""

from __future__ import annotations

import math

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.errors import RepairError, ScheduleError
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.repairing import RepairRefused
from neptune_lab.operators import attention, softmax
from neptune_lab.pipeline.record import refused_step, schedule_trace
from neptune_lab.trace.json_form import from_json, to_json

RIGHT, EXCHANGED = "t * exp(xmax_before - xmax_now)", "t * exp(xmax_now - xmax_before)"


def figure1(rows: int = 2, cols: int = 4) -> Schedule:
    return Schedule(softmax.figure1(rows, cols))


def rolled(repair: str, *, proved: bool = True) -> Schedule:
    sch = figure1()
    sch.rolling_update("s_sum", "s_max.j", repair=repair, proved=proved)
    return sch


def rolled_attention(**arguments: object) -> Schedule:
    sch = Schedule(attention.causal(seq=8, head_dim=2, heads=1))
    sch.tile("qk", i=4, j=2)
    sch.reverse_compute_at("score", "qk.j0")
    sch.rolling_update("s_max", "qk.j0")
    sch.rolling_update("s_sum", "qk.j0")
    sch.rolling_update("acc", "qk.j0", **arguments)  # type: ignore[arg-type]
    return sch


def test_a_right_repair_gives_the_program_of_the_derived_one():
    derived = figure1()
    derived.rolling_update("s_sum", "s_max.j")
    given = rolled(RIGHT)
    assert given.program == derived.program
    phase = given.phases[2]
    assert "given and is proved" in phase.note
    assert phase.derivation is not None
    assert phase.derivation.as_record()["h"] == "t*exp(xmax - xmax')"
    assert [p.wrong for p in given.phases] == [p.wrong for p in derived.phases]


def test_a_right_repair_of_attention_and_of_a_split():
    derived, given = rolled_attention(), rolled_attention(repair="t * exp(s_max_before) / exp(s_max_now)")
    assert given.program == derived.program
    split = figure1(2, 8)
    split.split("s_max.j", (4, None))
    split.split_k_update("s_sum", "s_max.j0", repair=RIGHT)
    assert split.check()
    assert not any(p.wrong for p in split.phases[2:] if p.key == "repaired")


def test_a_wrong_repair_is_refused_with_a_counterexample_and_the_derived_one():
    sch = figure1()
    with pytest.raises(RepairRefused, match=r"step 'prove Eq\. 3' failed") as refused:
        sch.rolling_update("s_sum", "s_max.j", repair=EXCHANGED)
    assert sch.steps == ()
    error = refused.value
    assert "before and now are exchanged; the derived h is t*exp(xmax_before - xmax_now)" in (error.help or "")
    assert (error.failed_step, error.expression) == ("prove Eq. 3", EXCHANGED)
    assert isinstance(error.__cause__, RepairError)
    example = error.counterexample
    assert example is not None
    before, now = dict(example.previous)["xmax"], dict(example.current)["xmax"]
    (term,) = example.inputs
    assert example.t == pytest.approx(math.exp(dict(term)["inp"] - before))
    assert example.expected == pytest.approx(math.exp(dict(term)["inp"] - now))
    assert example.found == pytest.approx(example.t * math.exp(now - before))
    last = refused_step(error, error.step, 1, sch.program).phases[-1]  # type: ignore[attr-defined]
    assert (last.key, last.derivation.accepted) == ("repair", False)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "message", "help"),
    [
        ({"repair": "t * exp(xmx_before - xmax_now)"}, "'xmx_before'", "t, xmax_before and xmax_now"),
        ({"repair": 3}, "repair=3, expected a formula", "xmax_before"),
        ({"repair": RIGHT, "proved": "no"}, "proved='no', expected True or False", "pass True or False"),
        ({"proved": False}, "proved=False is for a repair that is given", "leave proved out"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message, help):
    with pytest.raises(ScheduleError, match=message) as refused:
        figure1().rolling_update("s_sum", "s_max.j", **arguments)
    assert help in (refused.value.help or "")


def test_where_nothing_needs_repair_none_is_taken():
    sch = Schedule(attention.causal(seq=8, head_dim=2, heads=1))
    sch.tile("qk", i=4, j=2)
    sch.reverse_compute_at("score", "qk.j0")
    with pytest.raises(ScheduleError, match="a repair is given, but s_max reads no reduction"):
        sch.rolling_update("s_max", "qk.j0", repair="t")


def test_an_unproved_repair_is_wrong_everywhere_and_becomes_no_kernel():
    sch = rolled(EXCHANGED, proved=False)
    assert [p.wrong for p in sch.phases] == [False, True, True, True]
    assert "not proved" in str(sch)
    assert not sch.check()
    with pytest.raises(ScheduleError, match=r"'s_sum' is repaired by h = .* not proved: no kernel") as refused:
        nl.compile(sch)
    assert refused.value.node == "s_sum"
    sch.retire_tags("s_max")
    assert sch.phases[0].wrong
    with pytest.raises(ScheduleError, match="not proved"):
        nl.compile(sch)
    sch.undo()
    sch.undo()
    assert sch.program == sch.definition


def test_a_right_repair_is_proved_whether_it_needs_to_be_or_not():
    sch = rolled(RIGHT, proved=False)
    assert sch.check()
    assert not any(b.unproved for b in blocks(sch.program))
    assert not sch.phases[-1].wrong


def test_steps_are_data_and_the_record_says_what_is_not_proved():
    sch = rolled(EXCHANGED, proved=False)
    assert sch.to_python() == f"sch.rolling_update('s_sum', 's_max.j', repair={EXCHANGED!r}, proved=False)\n"
    assert Schedule.replay(sch.operator, sch.to_json()).program == sch.program
    sch.undo()
    sch.redo()
    trace = schedule_trace(sch)
    assert from_json(to_json(trace)) == trace
    repair, repaired = trace.steps[1].phases[2:]
    assert repair.derivation is not None
    assert not repair.derivation.accepted
    assert "is not proved" in repair.derivation.summary
    assert [s.title for s in repair.derivation.steps if not s.ok] == ["Prove Eq. 3: not proved"]
    assert repaired.wrong
    assert {e.kind for e in repaired.graph.edges if (e.source, e.target) == ("s_max", "s_sum")} == {"early"}


INP = np.array([[3.0, 1.0, 4.0, 2.0], [2.0, 1.0, 0.0, -1.0]], np.float32)


def test_the_tag_table_names_the_first_iteration_that_is_wrong():
    """The maximum of row 0 grows at j = 2 only, that of row 1 never: so long, any power of exp(0) is right."""
    table = rolled(EXCHANGED, proved=False).tag_table("j", inputs={"inp": INP})
    (found,) = table.first_wrong
    assert (found.label, found.column) == ("xsum[0]", "j = 2")
    assert found.value == pytest.approx((1 + math.exp(-2)) * math.exp(1) + 1, rel=1e-5)
    assert found.should_be == pytest.approx(sum(math.exp(x - 4) for x in (3, 1, 4)), rel=1e-5)
    cells = [c for c in table.row("xsum[0]").cells if c is not None]
    assert [c.signs for c in cells] == ["! ✓", "! ✓", "✗", "✗"]
    assert table.row("xsum[1]").first_wrong is None
    for shown in (table.to_text(), table.to_html()):
        for words in ("xsum[0]: first wrong at j = 2", f"≠ {found.should_be:.4g}", "not what it should hold"):
            assert words in shown


@pytest.mark.parametrize("maps", ["auto", "keep"])
def test_a_repair_that_does_nothing_is_right_until_its_producer_moves(maps: str):
    # h reads no producer, and with maps="keep" the term reads its producer by a stage between.
    inp = np.array([[1, 3, 2, 4]], np.float32)
    sch = figure1(rows=1)
    sch.rolling_update("s_sum", "s_max.j", maps, repair="t", proved=False)
    (found,) = sch.tag_table("j", inputs={"inp": inp}).first_wrong
    assert (found.column, found.value) == ("j = 1", pytest.approx(2))
    assert found.should_be == pytest.approx(1 + math.exp(1 - 3))
    sch = figure1(rows=1, cols=4)
    sch.split("s_max.j", (None, 2))
    sch.rolling_update("s_sum", "s_max.j0", maps, repair="t", proved=False)
    (found,) = sch.tag_table("j0", inputs={"inp": inp}).first_wrong
    assert (found.column, found.value) == ("j0 = 1", pytest.approx(1 + math.exp(1 - 3) + 1 + math.exp(2 - 4)))


def test_right_repairs_are_shown_as_before():
    sch = figure1()
    sch.rolling_update("s_sum", "s_max.j")
    table = sch.tag_table("j", inputs={"inp": INP})
    assert table.first_wrong == ()
    assert "✗" not in table.to_text()
    assert [c.signs for c in table.row("xsum[0]").cells if c is not None] == ["↻", "↻", "↻ ✓", "↻ ✓"]


def test_tiles_that_do_not_divide_are_held_against_what_they_have_seen():
    sch = figure1(2, 9)
    sch.split("s_max.j", (None, 4))
    sch.rolling_update("s_sum", "s_max.j0", repair=EXCHANGED, proved=False)
    inp = np.array([[0, 1, 0, 0, 0, 0, 0, 0, 2], [3, 0, 0, 0, 0, 0, 0, 0, 0]], np.float32)
    (found,) = sch.tag_table("j0", inputs={"inp": inp}).first_wrong
    assert (found.label, found.column) == ("xsum[0]", "j0 = 2")
    assert found.should_be == pytest.approx(np.exp(inp[0] - 2).sum(), rel=1e-5)


def test_a_split_is_held_against_the_whole_of_its_producer():
    sch = figure1(2, 4)
    sch.split("s_max.j", (2, None))
    sch.split_k_update("s_sum", "s_max.j0", repair=EXCHANGED, proved=False)
    assert not sch.check()
    (found,) = sch.tag_table("j0", inputs={"inp": np.array([[4, 1, 3, 2], [2, 1, 2, 0]], np.float32)}).first_wrong
    assert (found.label, found.column) == ("xsum[0]", "j0 = 1")
    assert found.value == pytest.approx(1 + math.exp(-3) + math.exp(1) * (1 + math.exp(-1)), rel=1e-5)
    assert found.should_be == pytest.approx(sum(math.exp(x - 4) for x in (4, 1, 3, 2)), rel=1e-5)


def test_wrong_elements_of_long_tables_are_shown_before_others():
    sch = rolled_attention(repair="t * exp(s_max_now - s_max_before)", proved=False)
    table = sch.tag_table("j0")
    assert table.hidden
    assert table.first_wrong
    for found in table.first_wrong:
        assert found.label.startswith("acc[")
        assert table.row(found.label).first_wrong == table.columns.index(found.column)
