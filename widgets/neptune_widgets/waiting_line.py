"""A line in the notebook that says what a long compile is doing; it is gone when the explorer is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any

from neptune_lab.progress import listening

# Seconds until the line is shown, and between two of its texts.
PATIENCE = 2.0
_EVERY = 0.5
# Characters of a step.
_MOST = 70


@contextmanager
def waiting_line(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """While the body runs in a notebook's kernel for longer than two seconds, a line says what is done; elsewhere,
    nothing is shown.

    Args:
        clock: the time in seconds.
    """
    if not _in_notebook():
        yield
        return
    line = _Line(clock, clock())
    try:
        with listening(line.tell):
            yield
    finally:
        line.clear()


def _in_notebook() -> bool:
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


@dataclass(slots=True)
class _Line:
    clock: Callable[[], float]
    start: float
    steps: int = 0
    shown: float | None = None
    handle: Any = field(default=None)

    def tell(self, kind: str, what: object) -> None:
        """Notes what begins, and shows it if it is time to."""
        now = self.clock()
        self.steps += kind == "step"
        if now - self.start < PATIENCE or (self.shown is not None and now - self.shown < _EVERY):
            return
        self.shown = now
        text = f"{kind} {what}".strip()
        text = text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"
        self.show(f"Compiling for the explorer: {now - self.start:.0f} s, steps tried: {self.steps}; now: {text}")

    def show(self, text: str) -> None:
        """Shows a text in place of the one before."""
        from IPython.display import display

        # An output of its own: the cell's other outputs stay as they are.
        data = {"text/plain": text, "text/html": f'<div role="status">{escape(text)}</div>' if text else ""}
        if self.handle is None:
            self.handle = display(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)

    def clear(self) -> None:
        """The line is empty, if there was one."""
        if self.handle is not None:
            self.show("")


__all__ = ["waiting_line"]
