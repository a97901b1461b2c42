"""How an error of ours is shown in a cell of a notebook, by IPython's own shell."""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from neptune_lab.errors import TraceError


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    yield InteractiveShell.instance(colors="nocolor")
    InteractiveShell.clear_instance()


FAILS = """\
import neptune_lab as nl
def apply(schedule):
    schedule.split("s_max.jj", (None, 3))
apply(nl.Schedule(nl.operators.softmax.figure1()))
"""


def test_a_notebook_shows_the_users_lines_and_none_of_ours(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]):
    shell.run_cell(FAILS)
    shown = capsys.readouterr().out
    assert 'schedule.split("s_max.jj", (None, 3))' in shown
    assert "apply(nl.Schedule(nl.operators.softmax.figure1()))" in shown
    assert "neptune_lab/" not in shown
    assert shown.rstrip().endswith("help: did you mean 'j'? The loops around s_max: i, j")
    shell.run_cell('nl.explore("no such file.json")')
    shown = capsys.readouterr().out
    assert "FileNotFoundError" not in shown, "what it was raised from has no line of the user's"
    assert "no such file.json" in shown


def test_a_library_that_pickles_any_error_changes_nothing(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """dask imports tblib, whose reducer of errors keeps what they were raised from."""
    tblib = pytest.importorskip("tblib.pickling_support")
    monkeypatch.setitem(copyreg.dispatch_table, TraceError, tblib.pickle_exception)
    shell.run_cell("import neptune_lab as nl")
    shell.run_cell('nl.explore("no such file.json")')
    assert "FileNotFoundError" not in capsys.readouterr().out
    made = pickle.loads(pickle.dumps(TraceError("no such file", node="file"))).with_fix("look again")
    assert (made.node, made.help) == ("file", "look again")


def test_every_frame_can_be_shown(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]):
    shell.run_line_magic("xmode", "Verbose")
    shell.run_cell(FAILS)
    assert "neptune_lab/loop_schedule" in capsys.readouterr().out
    shell.run_line_magic("xmode", "Context")
