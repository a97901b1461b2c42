"""The clock that ends a tuning run; tests pass their own, so that no test depends on a machine's speed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from neptune_lab.runtime.process import WAKE_SECONDS

T = TypeVar("T")


class Cancelled(Exception):
    """The caller's `cancel` has said that the run shall end."""


class Clock(Protocol):
    """Reads the time, and waits for a result until a given time."""

    def now(self) -> float:
        """Seconds since a fixed moment; never goes back."""
        ...

    def get(self, results: queue.SimpleQueue[Any], until: float) -> Any:
        """The next of `results`; raises `queue.Empty` if there is none until `now()` reaches `until`."""
        ...


class MonotonicClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.monotonic()

    def get(self, results: queue.SimpleQueue[Any], until: float) -> Any:
        while (left := until - self.now()) > WAKE_SECONDS:
            with suppress(queue.Empty):
                return results.get(timeout=WAKE_SECONDS)
        return results.get(timeout=max(0.0, left))


def next_of(
    results: queue.SimpleQueue[Any], until: float, clock: Clock, cancel: Callable[[], bool] | None = None
) -> Any:
    """As `clock.get`; raises Cancelled at most `WAKE_SECONDS` after `cancel` is true."""
    if cancel is None:
        return clock.get(results, until)
    while not cancel():
        try:
            return clock.get(results, min(until, clock.now() + WAKE_SECONDS))
        except queue.Empty:
            if clock.now() >= until:
                raise
    raise Cancelled


def within(
    seconds: float,
    call: Callable[..., T],
    *args: Any,
    clock: Clock | None = None,
    cancel: Callable[[], bool] | None = None,
) -> T:
    """What `call` returns or raises. The call continues in its thread if this raises TimeoutError, after so many
    seconds, or Cancelled, when `cancel` is true."""
    outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcomes.put((call(*args), None))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            outcomes.put((None, error))

    clock = clock or MonotonicClock()
    until = clock.now() + seconds
    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = next_of(outcomes, until, clock, cancel)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return result
