"""Grades a folder of answered notebooks: one row per student, one column per exercise.

`python -m neptune_widgets.course.grade FOLDER` (`make grade FOLDER=…`).  Stored outputs are never read: the code that
each answer needs runs again, per notebook in a process of its own with limits on time, memory and files, and without a
network if the system allows that (`grade_one`).
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neptune_lab.errors import FileError
from neptune_lab.files import write_bytes, write_text
from neptune_lab.strict import json_text

SIGNS = {"right": "✓", "wrong": "✗", "open": "○", "missing": "–", "stopped": "!"}
_LEGEND = "✓ right, ✗ wrong, ○ not answered, – not handed in, ! stopped (see grades.json)"
_MOST_BYTES = 20 << 20


@dataclass(frozen=True, slots=True)
class Question:
    """An exercise of the course.

    Args:
        notebook: the notebook's name without suffix.
        number: counted from 1, in the notebook.
        module, function: of its judge.
    """

    notebook: str
    number: int
    module: str
    function: str

    @property
    def label(self) -> str:
        """Such as "01.2"."""
        return f"{self.notebook.partition('_')[0]}.{self.number}"


@dataclass(frozen=True, slots=True)
class Grade:
    """What one student's answer to one exercise is worth.

    Args:
        state: one of `SIGNS`.
        text: the verdict's.
    """

    state: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the process that runs one notebook's answers.

    Args:
        seconds: of CPU time, and three times as many by the clock.
        memory: bytes of address space; importing the compiler takes about 3 GiB.
        file: bytes of one file that it writes.
    """

    seconds: int = 120
    memory: int = 8 << 30
    file: int = 64 << 20


def questions(course: Path) -> list[Question]:
    """The exercises of the course's notebooks, in order; FileError if the folder holds none."""
    found = []
    for path in sorted(course.glob("*.ipynb")):
        cells = _cells(path)
        modules = _aliases(source for source, _ in cells)
        asked = [call for source, tags in cells if "exercise" in tags and (call := judged(source))]
        for number, (alias, function, _) in enumerate(asked, 1):
            found.append(Question(path.stem, number, modules[alias], function))
    if not found:
        raise FileError(
            f"{course} holds no notebook with exercises", help="give the course's folder, such as notebooks"
        )
    return found


def judged(source: str) -> tuple[str, str, list[ast.expr]] | None:
    """The judge that a cell's last line calls: its module's name in the cell, its own, and the arguments."""
    try:
        body = ast.parse(python_of(source)).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    match body[-1:]:
        case [ast.Expr(ast.Call(ast.Attribute(ast.Name(alias), function), arguments))]:
            return alias, function, arguments
    return None


def grade(folder: Path, course: Path, limits: Limits = Limits()) -> dict[str, dict[str, Grade]]:
    """Grades by student and exercise.

    Args:
        folder: answered notebooks: FOLDER/STUDENT/01_rolling_update.ipynb, or FOLDER/STUDENT_01_rolling_update.ipynb.
        course: the course's own notebooks, which say what the exercises are.
        limits: of each process.

    Raises:
        FileError: a folder holds no notebooks.
    """
    asked = questions(course)
    handed = _handed_in(folder, sorted({q.notebook for q in asked}))
    table: dict[str, dict[str, Grade]] = {}
    for student, notebooks in handed.items():
        table[student] = {q.label: Grade("missing") for q in asked}
        for name, path in notebooks.items():
            mine = [q for q in asked if q.notebook == name]
            for question, result in zip(mine, _run(path, course, mine, limits), strict=True):
                table[student][question.label] = result
    return table


def _handed_in(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Path]]:
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.rglob("*.ipynb")):
        name = next((name for name in names if name in path.stem), None)
        if name is None or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        own = path.stem.replace(name, "").strip("_-. ()")
        parents = path.relative_to(folder).parts[:-1]
        found.setdefault("/".join(parents) or own or "(no name)", {})[name] = path
    if not found:
        raise FileError(
            f"{folder} holds none of the course's notebooks",
            help="put them at FOLDER/STUDENT/01_rolling_update.ipynb, or name them STUDENT_01_rolling_update.ipynb",
        )
    return found


def _run(path: Path, course: Path, asked: Sequence[Question], limits: Limits) -> list[Grade]:
    """The grades of one notebook, from a process of its own; from another one after an exercise that ended it."""
    try:
        cells = [source for source, _ in _cells(path)]
    except FileError as error:
        return [Grade("stopped", f"the notebook cannot be read: {error}")] * len(asked)
    found: dict[int, Grade] = {}
    with tempfile.TemporaryDirectory() as home:
        for run in sorted((course / "recorded").glob("*.json")):
            write_bytes(Path(home) / "recorded" / run.name, run.read_bytes(), parents=True)
        while left := [q for q in asked if q.number not in found]:
            task = {"cells": cells, "questions": [asdict(q) for q in left], "limits": asdict(limits)}
            found = {**_reported(_in_process(json.dumps(task), home, limits)), **found}
            ended = next((q.number for q in left if q.number not in found), None)
            if ended is not None:  # the exercises after it run in another process
                found[ended] = Grade("stopped", "the process ended here: too much time or memory, or it was left")
    return [found[q.number] for q in asked]


def _reported(lines: str) -> dict[int, Grade]:
    """The grades in a process's report; lines that say anything else are skipped."""
    found: dict[int, Grade] = {}
    for line in lines.splitlines():
        try:
            row = json_text.parse(line, FileError)
            found[int(row["number"])] = Grade(str(row["state"]), str(row["text"])[:4000])
        except (FileError, KeyError, TypeError, ValueError):
            continue
    return found


def _in_process(task: str, home: str, limits: Limits) -> str:
    """What the limited process reports, a line an exercise; its process group is killed when the time is over."""
    read, write = os.pipe()
    command = [*_without_network(), sys.executable, "-m", "neptune_widgets.course.grade_one", str(write)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(write,),
        cwd=home,
        env=_environment(home),
        start_new_session=True,
        text=True,
    ) as process:
        os.close(write)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(task, timeout=3 * limits.seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    with os.fdopen(read, encoding="utf-8", errors="replace") as pipe:
        os.set_blocking(read, False)
        return pipe.read() or ""


def _environment(home: str) -> Mapping[str, str]:
    """No tokens or settings of the teacher's: only what Python needs to start, and this package."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "SYSTEMROOT") if name in os.environ}
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), *sys.path]))
    own = {"HOME": home, "TMPDIR": home, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return {**kept, **own}


def _without_network() -> list[str]:
    """The command that starts another one without a network; empty if this system has none."""
    found = shutil.which("unshare")
    prefix = [found, "--map-root-user", "--net"] if found else []
    tried = prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if tried else []


def _cells(path: Path) -> list[tuple[str, list[str]]]:
    """Source and tags of the code cells of a notebook; FileError if it is none."""
    if path.stat().st_size > _MOST_BYTES:
        raise FileError(f"{path.name} has more than {_MOST_BYTES >> 20} MiB", help="clear its outputs")
    notebook = json_text.parse(path.read_bytes(), FileError, where=path.name)
    try:
        return [
            ("".join(cell["source"]), list(cell.get("metadata", {}).get("tags", ())))
            for cell in notebook["cells"]
            if cell["cell_type"] == "code"
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise FileError(f"{path.name} is no notebook: {error!r}", help="hand in the .ipynb file") from None


def _aliases(sources: Any) -> dict[str, str]:
    """What modules are called in a notebook: name to module."""
    found = {}
    for source in sources:
        for node in ast.walk(ast.parse(python_of(source))):
            if isinstance(node, ast.ImportFrom):
                found |= {n.asname or n.name: f"{node.module}.{n.name}" for n in node.names}
            elif isinstance(node, ast.Import):
                found |= {n.asname or n.name: n.name for n in node.names}
    return found


def python_of(source: str) -> str:
    """A cell's source without Jupyter's own commands."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())


def as_csv(table: Mapping[str, Mapping[str, Grade]]) -> str:
    """One row per student: a state per exercise, and how many are right."""
    labels = list(next(iter(table.values())))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["student", *labels, "right"])
    for student, grades in table.items():
        states = [grades[label].state for label in labels]
        writer.writerow([student, *states, states.count("right")])
    return out.getvalue()


def as_text(table: Mapping[str, Mapping[str, Grade]]) -> str:
    """The table in signs, for a terminal, without the notebooks that nobody handed in."""
    given = {label[:2] for grades in table.values() for label, grade in grades.items() if grade.state != "missing"}
    labels = [label for label in next(iter(table.values())) if label[:2] in given]
    width = max(len(student) for student in [*table, "student"])
    lines = [f"{'student':{width}}  {' '.join(labels)}  right"]
    for student, grades in table.items():
        signs = [SIGNS.get(grades[label].state, "?") for label in labels]
        row = " ".join(f"{sign:^{len(label)}}" for sign, label in zip(signs, labels, strict=True))
        lines.append(f"{student:{width}}  {row}  {signs.count('✓'):5}")
    return "\n".join([*lines, _LEGEND])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: prints the table, writes grades.csv and grades.json."""
    parser = argparse.ArgumentParser(prog="make grade", description=__doc__)
    parser.add_argument("folder", type=Path, help="answered notebooks: FOLDER/STUDENT/01_rolling_update.ipynb")
    parser.add_argument("--course", type=Path, default=Path("notebooks"), help="the course's own notebooks")
    parser.add_argument("--out", type=Path, default=Path("build/grades"), help="where grades.csv and grades.json go")
    parser.add_argument("--seconds", type=int, default=Limits().seconds, help="CPU time of a process")
    given = parser.parse_args(arguments)
    try:
        table = grade(given.folder, given.course, Limits(given.seconds))
    except FileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    details = {s: {label: asdict(g) for label, g in grades.items()} for s, grades in table.items()}
    write_text(given.out / "grades.csv", as_csv(table), parents=True)
    write_text(given.out / "grades.json", json.dumps(details, indent=1, ensure_ascii=False) + "\n")
    print(as_text(table))
    print(f"{given.out / 'grades.csv'}, and what each verdict says: {given.out / 'grades.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
