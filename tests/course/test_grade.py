"""Grading: answers run again in a limited process; stored outputs, exits and endless cells change nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from neptune_widgets.course import grade as grading
from neptune_widgets.course.grade_one import needed
from notebook_checks import CODE_IN_ANSWER, NOTEBOOKS, read, tagged

from neptune_lab.errors import FileError

# An exercise without the compiler, so that a process starts fast.
TOY = """
from neptune_widgets.course.exercise import NotYet, exercise

@exercise("one more", hints=("add",))
def one_more(answer):
    if answer != 4:
        raise NotYet(f"{answer} is not one more than 3")
    return "it is"

@exercise("two more", hints=("add",))
def two_more(function):
    if function(3) != 5:
        raise NotYet("not two more")
    return "it is"
"""
FIRST, SECOND = "value = None\nexercises.one_more(value)", "f = None\nexercises.two_more(f)"


def notebook(path: Path, *cells: str, forged: bool = False) -> None:
    made = nbformat.v4.new_notebook()
    for source in cells:
        cell = nbformat.v4.new_code_cell(source)
        if "exercises." in source:
            cell.metadata["tags"] = ["exercise"]
        if forged:
            cell.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "✓ Right: it is"})]
        made.cells.append(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)


IMPORTS = "import toy_exercises as exercises\nbase = 3"


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "toy_exercises.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    notebook(tmp_path / "course" / "01_toy.ipynb", IMPORTS, FIRST, SECOND)
    return tmp_path / "course"


def states(grades: dict[str, Any]) -> list[str]:
    return [grade.state for grade in grades.values()]


@pytest.mark.nightly
def test_a_class_is_graded_from_executed_copies(course: Path, tmp_path: Path):
    folder = tmp_path / "class"
    plot = "raise SystemError('this cell is not needed')"
    right = "f = lambda x: x + 2\nexercises.two_more(f)"
    notebook(folder / "ada" / "01_toy.ipynb", IMPORTS, plot, "value = base + 1\nexercises.one_more(value)", right)
    notebook(folder / "ben" / "01_toy.ipynb", IMPORTS, "value = 7\nexercises.one_more(value)", SECOND, forged=True)
    notebook(folder / "cy_01_toy.ipynb", IMPORTS, "1/0\nexercises.one_more(4)")
    (folder / "dan").mkdir()
    (folder / "dan" / "01_toy.ipynb").write_text("not a notebook")
    cheat = "exercises.one_more.__class__.__call__ = print\nvalue = 1\nexercises.one_more(value)"
    notebook(folder / "eve" / "01_toy.ipynb", IMPORTS, cheat + "\nimport os; os._exit(0)\nexercises.one_more(4)", right)
    table = grading.grade(folder, course, grading.Limits(seconds=20))
    assert {student: states(grades) for student, grades in table.items()} == {
        "ada": ["right", "right"],
        "ben": ["wrong", "open"],
        "cy": ["wrong", "missing"],
        "dan": ["stopped", "stopped"],
        "eve": ["stopped", "right"],
    }
    assert "7 is not one more" in table["ben"]["01.1"].text
    assert "ZeroDivisionError" in table["cy"]["01.1"].text
    assert grading.as_csv(table).splitlines()[1] == "ada,right,right,2"
    assert "ben" in grading.as_text(table)


@pytest.mark.nightly
def test_an_endless_or_greedy_cell_is_stopped(course: Path, tmp_path: Path):
    folder = tmp_path / "class"
    right = "f = lambda x: x + 2\nexercises.two_more(f)"
    notebook(folder / "a" / "01_toy.ipynb", IMPORTS, right, "while True: pass\nexercises.one_more(4)")
    notebook(folder / "b" / "01_toy.ipynb", IMPORTS, "x = bytearray(1 << 40)\nexercises.one_more(4)", right)
    table = grading.grade(folder, course, grading.Limits(seconds=3, memory=2 << 30))
    assert states(table["a"]) == ["stopped", "right"], "an exercise after the endless one has a process of its own"
    assert "MemoryError" in table["b"]["01.1"].text
    assert states(table["b"]) == ["wrong", "right"]


@pytest.mark.nightly
def test_a_cell_that_is_no_python_is_wrong_and_not_missing(course: Path, tmp_path: Path):
    notebook(tmp_path / "class" / "a" / "01_toy.ipynb", IMPORTS, "value = (\nexercises.one_more(value)")
    grades = grading.grade(tmp_path / "class", course)["a"]
    assert states(grades) == ["wrong", "missing"]
    assert "SyntaxError: '(' was never closed" in grades["01.1"].text


@pytest.mark.nightly
def test_notebooks_that_nobody_handed_in_have_no_column_on_the_terminal(course: Path, tmp_path: Path):
    notebook(course / "02_more.ipynb", IMPORTS, FIRST)
    notebook(tmp_path / "class" / "a" / "01_toy.ipynb", IMPORTS, FIRST)
    table = grading.grade(tmp_path / "class", course)
    assert grading.as_text(table).splitlines()[0].split() == ["student", "01.1", "01.2", "right"]
    assert "02.1" in grading.as_csv(table).splitlines()[0]


@pytest.mark.nightly
def test_the_process_has_no_secrets_of_the_teachers(course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEACHERS_TOKEN", "secret")
    folder = tmp_path / "class"
    peek = 'import os\nexercises.one_more(4 if "TEACHERS_TOKEN" not in os.environ else 0)'
    notebook(folder / "a" / "01_toy.ipynb", IMPORTS, peek)
    assert grading.grade(folder, course)["a"]["01.1"].state == "right"


def test_the_command_writes_a_table(course: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder, out = tmp_path / "class", tmp_path / "grades"
    notebook(folder / "a" / "01_toy.ipynb", IMPORTS, "exercises.one_more(4)")
    assert grading.main([str(folder), "--course", str(course), "--out", str(out)]) == 0
    assert "✓" in capsys.readouterr().out
    assert json.loads((out / "grades.json").read_text())["a"]["01.1"]["text"] == "it is"
    assert (out / "grades.csv").read_text().splitlines()[0] == "student,01.1,01.2,right"
    assert grading.main([str(tmp_path / "lib"), "--course", str(course)]) == 1
    with pytest.raises(FileError, match="no notebook with exercises"):
        grading.questions(tmp_path)


def test_every_exercise_of_the_course_can_be_graded():
    asked = grading.questions(NOTEBOOKS)
    cells = [c for path in NOTEBOOKS.glob("*.ipynb") for c in read(path).cells if tagged(c, "exercise")]
    assert len(asked) == len(cells)
    assert all(q.module.startswith("neptune_widgets.course.") for q in asked)
    assert "01.7" in [q.label for q in asked]


@pytest.mark.nightly
def test_answers_of_the_course_are_graded_right(tmp_path: Path):
    """Notebook 02 as a student would hand it in, with the course's own answers."""
    made = read(NOTEBOOKS / "02_algebra.ipynb")
    for before, cell in zip(made.cells, made.cells[1:], strict=False):
        if tagged(cell, "answer"):
            before.source = CODE_IN_ANSWER.search(cell.source)[1]  # pyright: ignore[reportOptionalSubscript]
    (tmp_path / "a").mkdir()
    nbformat.write(made, tmp_path / "a" / "02_algebra.ipynb")
    grades = grading.grade(tmp_path, NOTEBOOKS)["a"]
    assert {label: grade.state for label, grade in grades.items() if label.startswith("02")} == {
        f"02.{n}": "right" for n in range(1, 6)
    }, grades


def test_only_needed_cells_run():
    assert needed(["import numpy as np", "x = np.ones(3)", "y = 2", "def f(): return x", "g(f)"], 4) == [0, 1, 3, 4]
