"""Tables of the course: Markdown, which JupyterLab, GitHub and the documentation draw alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from neptune_widgets.course.show import show_markdown


def show_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; words between backquotes are code.

    Args:
        head: names of the columns.
        rows: a cell a column; numbers are at the right, in groups of three digits if one of a column has seven.
    """
    body = [tuple(row) for row in rows]
    columns = [[row[n] for row in body] for n in range(len(head))]
    numbers = [bool(body) and all(isinstance(value, int | float) for value in column) for column in columns]
    large = [number and max(column) >= 1_000_000 for number, column in zip(numbers, columns, strict=True)]
    lines = [
        map(_cell, head),
        ("---:" if number else ":---" for number in numbers),
        *((f"{value:,}" if digits else _cell(value) for value, digits in zip(row, large, strict=True)) for row in body),
    ]
    show_markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
