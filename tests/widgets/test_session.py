"""What an edit keeps: the template of each step, and the options that the kernel was compiled with."""

from __future__ import annotations

import pytest
from neptune_widgets.repeat import as_python
from neptune_widgets.session import Refused, Session

import neptune_lab as nl
from neptune_lab.operators import attention
from neptune_lab.pipeline import Choice, TileConfig

SWAPPED = nl.CodeOptions(loop_stages=3, disable_passes=("exponentials_to_base_two",))


@pytest.fixture(scope="module")
def kernel() -> nl.Kernel:
    return nl.compile(attention.causal(1, 2, 64, head_dim=16), code=SWAPPED, validate="none")


def steps_of(session: Session) -> list[dict]:
    return [step.as_record() for step in session.schedule.steps]


def templates(session: Session) -> list[str]:
    return [step.template for step in session.trace.steps[1:]]


@pytest.mark.nightly
def test_a_step_of_a_template_stays_one_after_an_edit(kernel):
    session = Session(kernel.schedule, kernel)
    before, steps = templates(session), steps_of(session)
    assert set(before[1:]) == {"rolling_update"}
    tile = next(n for n, step in enumerate(steps) if step["primitive"] == "tile")
    steps[tile]["arguments"]["tiles"]["i"] = 32
    session.edit(steps)
    assert templates(session) == before
    # A step that was removed, and one that was added.
    dropped = next(n for n, step in enumerate(steps) if step["primitive"] == "set_scope")
    session.edit([*steps[:dropped], *steps[dropped + 1 :]])
    assert templates(session) == [*before[:dropped], *before[dropped + 1 :]]
    session.undo()
    mine = {"primitive": "remark", "arguments": {"text": "mine"}}
    session.edit([*steps[:4], mine, *steps[4:]])
    assert templates(session) == [*before[:4], "", *before[4:]]


def test_a_step_written_as_text_keeps_or_gets_its_template(kernel):
    session = Session(kernel.schedule, kernel)
    before = templates(session)
    session.edit_text(session.schedule.to_python().replace("i=64", "i=32"))
    assert templates(session) == before
    session.edit_text("nl.templates.rolling_update(sch, block_q=32)\nsch.remark('mine')\n")
    assert templates(session)[-1] == ""
    assert set(templates(session)[:-1]) == {"rolling_update"}


def test_an_edit_keeps_the_options_that_the_kernel_was_compiled_with(kernel):
    session = Session(kernel.schedule, kernel)
    assert "exp2(" not in session.kernel.source
    steps = steps_of(session)
    next(s for s in steps if s["primitive"] == "tile")["arguments"]["tiles"]["i"] = 32
    session.edit(steps)
    assert session.kernel.code == SWAPPED
    assert "exp2(" not in session.kernel.source
    assert "code=nl.CodeOptions(loop_stages=3, disable_passes=('exponentials_to_base_two',))" in as_python(session)
    assert session.other(steps).source == session.kernel.source
    session.with_default_code()
    assert session.kernel.code == nl.CodeOptions()
    assert "exp2(" in session.kernel.source
    session.undo()
    assert session.kernel.code == SWAPPED
    session.undo()
    assert session.kernel.source == kernel.source


@pytest.mark.nightly
def test_a_choice_of_the_tuner_is_taken_and_undone(kernel):
    session = Session(kernel.schedule, kernel)
    choice = Choice("rolling_update", TileConfig(block_q=16, block_kv=32), nl.CodeOptions(loop_stages=2))
    session.take(choice)
    assert (session.kernel.code.loop_stages, session.undoable) == (2, 1)
    assert {"i": 16, "j": 32} in [s["arguments"].get("tiles") for s in steps_of(session)]
    session.take(choice)
    assert session.undoable == 1, "nothing changed"
    with pytest.raises(Refused):
        session.take(Choice("rolling_update", TileConfig(block_q=(16, 16))))
    assert session.kernel.code.loop_stages == 2
    session.undo()
    assert session.kernel.source == kernel.source
