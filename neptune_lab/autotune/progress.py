"""The progress display of a tuning run: time spent, candidates tried, the best so far."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self


class ProgressDisplay(Protocol):
    """Shows every candidate; a context manager around the run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def update(self, seconds: float, tried: int, failed: int, best: str) -> None:
        """After a candidate: seconds so far, how many were tried and failed, and the best one with its time."""
        ...


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, seconds: float, tried: int, failed: int, best: str) -> None:
        """Nothing."""


class Bar:
    """A progress bar over the time, on standard error, drawn by rich.

    Args:
        title: the operator's name.
        seconds: time limit of the run.
    """

    def __init__(self, title: str, seconds: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        # Not `rich.get_console()`: standard output is for results.
        self._progress: AbstractContextManager[Any] = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            TextColumn("{task.fields[said]}"),
            console=Console(file=sys.stderr),
        )
        self._bar: Any = self._progress
        self._task = self._bar.add_task(title, total=seconds, said="compiling the first candidates")

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def update(self, seconds: float, tried: int, failed: int, best: str) -> None:
        """Moves the bar and updates its text."""
        self._bar.update(self._task, completed=seconds, said=f"{tried} tried, {failed} failed; best {best}")


def bar(title: str, seconds: float) -> ProgressDisplay:
    """A `Bar`; `Silent` on a machine without rich, such as one that only measures."""
    try:
        return Bar(title, seconds)
    except ModuleNotFoundError:
        return Silent()
