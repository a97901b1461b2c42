"""The clock that ends a tuning run; tests pass one of their own, so that no test depends on a machine's speed."""

from __future__ import annotations

import queue
import time
from typing import Any, Protocol


class Clock(Protocol):
    """Reads the time, and waits for a result until a given time."""

    def now(self) -> float:
        """Seconds since a fixed moment; never goes back."""
        ...

    def get(self, results: queue.SimpleQueue[Any], until: float) -> Any:
        """The next of `results`; raises `queue.Empty` if there is none until `now()` reaches `until`."""
        ...


class MonotonicClock:
    """The machine's own."""

    def now(self) -> float:
        return time.monotonic()

    def get(self, results: queue.SimpleQueue[Any], until: float) -> Any:
        return results.get(timeout=max(0.0, until - self.now()))
