"""The students' version of the course: the same notebooks without the answers.

`python -m neptune_widgets.course.student notebooks build/student` writes it (`make student`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from neptune_lab.files import write_bytes, write_text


def without_answers(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook (its JSON) without the cells that are tagged as answers."""
    kept = [cell for cell in notebook["cells"] if "answer" not in cell["metadata"].get("tags", ())]
    return {**notebook, "cells": kept}


def write(course: Path, target: Path) -> list[Path]:
    """Writes every notebook of `course` without answers into `target`, with the recorded runs beside; their paths.

    A notebook that is there with other content may hold a student's work: it is kept as NAME.before-1.ipynb.
    """
    made = []
    for path in sorted(course.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        made.append(target / path.name)
        text = json.dumps(without_answers(notebook), indent=1, ensure_ascii=False) + "\n"
        _keep(made[-1], text)
        write_text(made[-1], text, parents=True)
    for path in sorted((course / "recorded").glob("*.json")):
        write_bytes(target / "recorded" / path.name, path.read_bytes(), parents=True)
    return made


def _keep(path: Path, text: str) -> None:
    """Copies the file at `path` to a free name if it is there and is not `text`."""
    if not path.is_file() or (old := path.read_bytes()) == text.encode():
        return
    number = 1
    while (copy := path.with_name(f"{path.stem}.before-{number}.ipynb")).exists():
        number += 1
    write_bytes(copy, old)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:3])
    print(f"{len(write(source, target))} notebooks without answers in {target}")
