"""The user's Python that an operator was traced from, line by line, with the stages that each line became."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PythonLine:
    """A line of the user's Python.

    Args:
        number: in its file or cell, from 1.
        text: with the indentation of the file.
        stages: names of the stages that the line became.
        within: names of stages of other lines whose expression contains what this line computes.
    """

    number: int
    text: str
    stages: tuple[str, ...] = ()
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function of the user's.

    Args:
        title: its name and where it is, for readers, such as "attention in model.py".
        lines: from its first line (of a decorator, if it has one) to its last.
    """

    title: str
    lines: tuple[PythonLine, ...]
