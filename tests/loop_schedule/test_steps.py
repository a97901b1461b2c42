"""Steps are data: written down, replayed, undone, printed as Python."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_schedule import Schedule, Step
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.operators import attention, softmax


def by_hand(sch: Schedule) -> Schedule:
    """Every way of writing arguments: lists, mappings, names, defaults."""
    sch.split("s_max.j", (None, 2), names=("outer", "inner"))
    sch.rolling_update("s_sum", "s_max.outer", maps="keep")
    sch.retire_tags("s_max")
    sch.annotate("s_max.i", "num_warps", 4)
    sch.bind("s_max.i", "blockIdx.x")
    return sch


def tiled(sch: Schedule) -> Schedule:
    sch.tile("s_exp", i=2, j=4)
    sch.reorder("s_exp", "j0", "i0")
    sch.fuse("s_exp", "i1", "j1")
    sch.fuse("s_exp", "j0", "i0", name="tiles")
    sch.cache_read("s_sum", "xexp")
    sch.cache_write("s_max")
    sch.decompose_reduction("s_sum", "s_sum.j")
    sch.set_scope("s_exp", "shared")
    return sch


FIGURE_1 = softmax.figure1(4, 6)
ATTENTION = attention.causal(1, 1, q_len=4, kv_len=5, head_dim=2)
SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "by hand": lambda: by_hand(Schedule(FIGURE_1)),
    "tiled": lambda: tiled(Schedule(FIGURE_1)),
    **{
        f"{name} of {op.name}": lambda name=name, op=op: TEMPLATES[name](Schedule(op), block_q=2, block_kv=2)
        for name in TEMPLATES
        for op in (FIGURE_1, ATTENTION)
    },
}
EACH = pytest.mark.parametrize("name", SCHEDULES)


@EACH
def test_json_and_back(name: str):
    sch = SCHEDULES[name]()
    again = Schedule.replay(sch.operator, sch.to_json())
    assert again.program == sch.program
    assert again.steps == sch.steps
    assert again.to_json() == sch.to_json()
    assert [s["primitive"] for s in json.loads(sch.to_json())] == [s.primitive for s in sch.steps]


@EACH
def test_steps_replay(name: str):
    sch = SCHEDULES[name]()
    assert Schedule.replay(sch.operator, sch.steps).program == sch.program


@EACH
def test_python_text_runs(name: str):
    sch = SCHEDULES[name]()
    fresh = Schedule(sch.operator)
    exec(sch.to_python(), {"sch": fresh})
    assert fresh.program == sch.program
    assert fresh.steps == sch.steps


@pytest.mark.parametrize("name", ["is", "block", "tiles"])
def test_python_text_has_loops_whose_names_are_taken(name: str):
    op = softmax.figure1(3, 5)
    sch = Schedule(op)
    sch.split("s_max.j", (None, 2), names=[name, "j1"])
    sch.tile("s_max", **{name: 2, "i": 2})
    again = Schedule(op)
    exec(sch.to_python(), {"sch": again})
    assert again.program == sch.program


def test_python_text_reads_like_a_schedule():
    assert tiled(Schedule(FIGURE_1)).to_python() == (
        "sch.tile('s_exp', i=2, j=4)\n"
        "sch.reorder('s_exp', 'j0', 'i0')\n"
        "sch.fuse('s_exp', 'i1', 'j1')\n"
        "sch.fuse('s_exp', 'j0', 'i0', name='tiles')\n"
        "sch.cache_read('s_sum', buffer='xexp', scope='shared')\n"
        "sch.cache_write('s_max', scope='local')\n"
        "sch.decompose_reduction('s_sum', 's_sum.j')\n"
        "sch.set_scope('s_exp', scope='shared')\n"
    )
    assert by_hand(Schedule(FIGURE_1)).to_python().splitlines()[:2] == [
        "sch.split('s_max.j', factors=[None, 2], names=['outer', 'inner'])",
        "sch.rolling_update('s_sum', 's_max.outer', maps='keep')",
    ]


def test_undo_and_redo():
    sch = by_hand(Schedule(FIGURE_1))
    programs = [FIGURE_1.program, *(a.outcome.program for a in sch.history)]
    steps = sch.steps
    for n in range(len(steps) - 1, -1, -1):
        assert sch.undo() == steps[n]
        assert sch.program == programs[n]
    with pytest.raises(ScheduleError, match="no step to undo"):
        sch.undo()
    for n, step in enumerate(steps):
        assert sch.redo() == step
        assert sch.program == programs[n + 1]
    with pytest.raises(ScheduleError, match="no step to redo"):
        sch.redo()


def test_a_new_step_forgets_what_was_undone():
    sch = Schedule(FIGURE_1)
    sch.split("s_max.j", (None, 2))
    sch.undo()
    sch.split("s_max.j", (None, 3))
    with pytest.raises(ScheduleError, match="no step to redo"):
        sch.redo()


def test_a_refused_step_forgets_nothing():
    sch = Schedule(FIGURE_1)
    sch.split("s_max.j", (None, 2))
    sch.undo()
    with pytest.raises(ScheduleError):
        sch.split("s_max.k", (None, 3))
    sch.redo()
    assert sch.loops("s_max") == ("s_max.i", "s_max.j0", "s_max.j1")


def test_copies_are_independent():
    sch = Schedule(FIGURE_1)
    sch.split("s_max.j", (None, 2))
    copy = sch.copy()
    copy.rolling_update("s_sum", "s_max.j0")
    assert len(sch.steps) == 1
    assert sch.blocks == ("s_max", "s_exp", "s_sum")
    sch.undo()
    assert len(copy.steps) == 2
    assert copy.check()


def test_history_chains():
    sch = by_hand(Schedule(FIGURE_1))
    before = FIGURE_1.program
    for applied in sch.history:
        assert applied.before is before
        assert applied.outcome.phases[-1].program is applied.outcome.program
        before = applied.outcome.program
    assert sch.program is before


@pytest.mark.parametrize("text", ["not json", "[1, 2]", '[{"primitive": "split"}]', '{"a": 1}'])
def test_text_that_is_no_schedule(text: str):
    with pytest.raises(ScheduleError, match="this is not a list of steps"):
        Schedule.replay(FIGURE_1, text)


def test_check_takes_a_seed_and_reads_as_a_sentence():
    sch = Schedule(FIGURE_1)
    assert str(sch.check(seed=3)) == "equals the definition: relative error 0.0e+00 in float64 (tolerance 1e-09)"


def test_a_schedule_prints_its_program():
    sch = Schedule(FIGURE_1)
    assert repr(sch).startswith("<Schedule of softmax_figure1, steps: 0>\nfor i, j in grid(4, 6):\n")


def test_templates_refuse_operators_without_a_reduction():
    from small_operators import doubled, schedule

    for template in TEMPLATES.values():
        with pytest.raises(ScheduleError, match="chain has no reduction: there is nothing to fuse"):
            template(schedule(doubled()))


def test_tvmscript_on_request():
    sch = Schedule(softmax.figure1())
    sch.rolling_update("s_sum", "s_max.j")
    text = sch.tvmscript()
    assert "@T.prim_func" in text
    assert 'with T.sblock("s_max")' in text
    assert "T.axis.remap" in text


def test_a_step_may_be_given_by_name():
    sch, method = Schedule(FIGURE_1), Schedule(FIGURE_1)
    made = sch.apply("split", loop="s_max.j", factors=(None, 2))
    assert made == method.split("s_max.j", (None, 2))
    assert sch.program == method.program
    assert sch.steps == method.steps


@pytest.mark.parametrize("step", [Step.of("inline", block="x"), Step.of("bind", loop="j", thread="blockIdx.x")])
def test_a_refusal_has_its_step_wherever_it_is_refused(step: Step):
    with pytest.raises(ScheduleError) as refused:
        Schedule(FIGURE_1).apply(step)
    assert refused.value.step == step  # type: ignore[attr-defined]
