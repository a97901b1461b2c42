"""While the explorer of a large operator is made, a line in the notebook says what is done, and goes away."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from neptune_widgets import waiting_line

import neptune_lab as nl
from neptune_lab.errors import ScheduleError


class Outputs:
    """What a notebook was told to show, in order; None for an output that was made empty."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Outputs:
        self.update(data, raw=raw)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(data["text/html"])


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    made = Outputs()
    monkeypatch.setattr("IPython.display.display", made.display)
    monkeypatch.setattr(waiting_line, "_in_notebook", lambda: True)
    return made


def _scheduled() -> Any:
    sch = nl.Schedule(nl.operators.softmax.figure1())
    sch.rolling_update("s_sum", "s_max.j", maps="keep")
    return sch


def test_a_slow_compile_says_what_it_does_and_leaves_nothing(outputs: Outputs):
    seconds = itertools.count(step=3)
    with waiting_line.waiting_line(lambda: next(seconds)):
        _scheduled()
    shown, gone = outputs.shown
    assert shown.startswith('<div role="status">Compiling for the explorer: 3 s, steps tried: 1; now: step rolling_upd')
    assert "&#x27;s_sum&#x27;" in shown
    assert gone == ""


def test_a_fast_one_shows_nothing(outputs: Outputs):
    with waiting_line.waiting_line(lambda: 0.0):
        _scheduled()
    assert not outputs.shown


def test_nothing_is_shown_outside_of_notebooks(outputs: Outputs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting_line, "_in_notebook", lambda: False)
    seconds = itertools.count(step=3)
    with waiting_line.waiting_line(lambda: next(seconds)):
        _scheduled()
    assert not outputs.shown


def test_the_line_goes_if_the_compile_is_refused(outputs: Outputs):
    seconds = itertools.count(step=3)
    with pytest.raises(ScheduleError), waiting_line.waiting_line(lambda: next(seconds)):
        nl.Schedule(nl.operators.softmax.figure1()).inline("no_block")
    assert outputs.shown[1:] == [""]


def test_explore_tells_of_its_steps(outputs: Outputs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting_line, "PATIENCE", 0.0)
    nl.explore(nl.operators.softmax.figure1())
    assert "steps tried" in outputs.shown[0]
    assert outputs.shown[-1] == ""
