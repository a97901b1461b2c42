"""How far a tuning run is, as data, and the bar that shows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from neptune_lab.pipeline import Choice
from neptune_lab.records import Record
from neptune_lab.target import Target

Phase: TypeAlias = Literal["starting", "searching", "timing again", "ending"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A candidate that was tried.

    Args:
        candidate: the template and its options.
        us: its time in microseconds; None: it failed.
        failure: why; empty if it did not.
        record: its measurement; None if it was not measured.
    """

    candidate: Choice
    us: float | None
    failure: str = ""
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """How far a run of `tune` is.

    Args:
        phase: "starting" the workers, "searching", "timing again" the fastest in turns, or "ending": waiting for
            candidates that are on a GPU.
        seconds: time since the start.
        limit: time limit of the run, in seconds.
        device: the GPU's name; empty while it is not known.
        target: the GPU as the search plans for it; None while it is not known.
        tried: how many candidates have an outcome.
        failed: how many of them have no time: refused by the compiler, wrong, or not measured.
        best: the record of the fastest candidate so far; None if no candidate has a time.
        latest: the candidate that this is said of; None if the phase changed.
    """

    phase: Phase
    seconds: float
    limit: float
    device: str = ""
    target: Target | None = None
    tried: int = 0
    failed: int = 0
    best: Record | None = None
    latest: Attempt | None = None

    def __str__(self) -> str:
        if self.phase == "starting":
            return "starting the workers"
        if self.tried == 0:
            return "compiling the first candidates"
        best = "none yet" if self.best is None else f"{self.best.us:.1f} us ({Choice.from_json(self.best.candidate)})"
        phase = "" if self.phase == "searching" else f"{self.phase}; "
        return f"{phase}{self.tried} tried, {self.failed} failed; best {best}"


Report: TypeAlias = Callable[[TuneProgress], None]


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
        self._task = self._bar.add_task(title, total=seconds, said="starting the workers")

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def __call__(self, now: TuneProgress) -> None:
        """Moves the bar and updates its text."""
        self._bar.update(self._task, completed=now.seconds, said=str(now))


@contextmanager
def reports(progress: bool | Report, title: str, seconds: float) -> Iterator[Report]:
    """What a run reports to: a `Bar` while the run lasts, the caller's function, or nothing.

    A machine that only measures may be without rich: then there is no bar.
    """
    if callable(progress):
        yield progress
        return
    try:
        shown = Bar(title, seconds) if progress else None
    except ModuleNotFoundError:
        shown = None
    if shown is None:
        yield lambda _: None
        return
    with shown:
        yield shown


__all__ = ["Attempt", "Phase", "Report", "TuneProgress", "reports"]
