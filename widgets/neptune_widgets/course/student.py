"""The students' version of the course: the same notebooks without the answers.

`python -m neptune_widgets.course.student notebooks build/student` writes it (`make student`).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any


def without_answers(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook (its JSON) without the cells that are tagged as answers."""
    kept = [cell for cell in notebook["cells"] if "answer" not in cell["metadata"].get("tags", ())]
    return {**notebook, "cells": kept}


def write(course: Path, target: Path) -> list[Path]:
    """Writes every notebook of `course` without answers into `target`, with the recorded runs beside; their paths."""
    target.mkdir(parents=True, exist_ok=True)
    made = []
    for path in sorted(course.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        made.append(target / path.name)
        text = json.dumps(without_answers(notebook), indent=1, ensure_ascii=False)
        made[-1].write_text(text + "\n", encoding="utf-8")
    if (course / "recorded").is_dir():
        shutil.copytree(course / "recorded", target / "recorded", dirs_exist_ok=True)
    return made


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:3])
    print(f"{len(write(source, target))} notebooks without answers in {target}")
