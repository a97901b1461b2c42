"""Tables of the course: Markdown, which JupyterLab, GitHub and the documentation draw alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from neptune_widgets.course.show import show_markdown


def show_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; words between backquotes are code.

    Args:
        head: names of the columns.
        rows: a cell a column; numbers stand at the right.
    """
    body = [tuple(row) for row in rows]
    numbers = [bool(body) and all(isinstance(row[n], int | float) for row in body) for n in range(len(head))]
    lines = [head, ["---:" if number else ":---" for number in numbers], *body]
    show_markdown("\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines))


def _cell(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")
