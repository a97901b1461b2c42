"""A time limit for the algebra, which may be asked for more than it can do: (c + r)**100 has 101 terms to separate.

A second thread watches the one that solves, and ends it by an exception that Python raises there between two bytecodes
(`PyThreadState_SetAsyncExc`). So SymPy's long calls end too, in any thread, and nothing is slower meanwhile. What is
interrupted is an expression of this question alone: its symbols are new ones, no other question sees them, and an
interrupted answer is not kept.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from neptune_lab.errors import RepairError

SECONDS = 10.0
"""Processor time of a question where nothing else is said."""

# Characters of a term.
_SHOWN = 200
# Between two looks at the clock, and before the exception is sent again where it was swallowed.
_LOOK_SECONDS = 0.25

T = TypeVar("T")
_seconds: ContextVar[float] = ContextVar("seconds", default=SECONDS)
_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


@contextmanager
def time_limit(seconds: float, stop: threading.Event | None = None) -> Iterator[None]:
    """Questions asked inside have so much time, in place of 10 s each.

    Args:
        seconds: of processor time, so that a busy machine refuses nothing that an idle one solves; math.inf: no limit.
        stop: ends a question at once when it is set, from any thread.

    Raises:
        RepairError: `seconds` is no number, or negative.

    >>> from neptune_lab.repair import solve, text
    >>> with time_limit(60):
    ...     print(text(solve("sum", "exp(c - r)", ["r"]).h))
    t*exp(r - r')
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise RepairError(
            f"seconds={seconds!r}: expected a number that is not negative",
            step="time",
            expression=repr(seconds),
            help="time_limit(60)",
        )
    tokens = _seconds.set(seconds), _stop.set(stop)
    try:
        yield
    finally:
        _seconds.reset(tokens[0])
        _stop.reset(tokens[1])


def limited(call: Callable[[], T], expression: object, clock: Callable[[], float] | None = None) -> T:
    """What `call` returns or raises, within the time limit.

    Args:
        expression: what it is about, such as g, for the error.
        clock: seconds that count; None: the processor time of the calling thread.

    Raises:
        RepairError: step "time", where it took longer, or was stopped.
    """
    watch = _Watch(_seconds.get(), _stop.get(), clock or thread_clock())
    if watch.over:
        return watch.refuse(shown(expression))
    outcome: list[T] = []
    try:
        try:
            watch.begin()
            outcome.append(call())
        finally:
            watch.end()
    except watch.expired:
        watch.heard = True  # the last exception that is sent, unless one is under way
        try:
            watch.end()
        except watch.expired:
            watch.end()
    return outcome[0] if outcome else watch.refuse(shown(expression))


def shown(g: object) -> str:
    """A term as an error has it: its beginning."""
    text = str(g)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def thread_clock() -> Callable[[], float]:
    """The processor time of the calling thread, to be read from any; the time itself where a system has none."""
    try:
        name = time.pthread_getcpuclockid(threading.get_ident())
        time.clock_gettime(name)
    except (AttributeError, OSError):
        return time.monotonic
    return lambda: time.clock_gettime(name)


class _Watch:
    """Watches one call of one thread."""

    def __init__(self, seconds: float, stop: threading.Event | None, clock: Callable[[], float]) -> None:
        # A class of its own, so that a limit around another one ends its own call. No `except Exception` takes it.
        self.expired: type[BaseException] = type("Expired", (BaseException,), {})
        self.heard = False
        self._seconds, self._stop, self._clock = seconds, stop, clock
        self._thread, self._began = threading.get_ident(), clock()
        self._lock, self._done = threading.Lock(), threading.Event()

    @property
    def over(self) -> bool:
        """The time is over, or the call was stopped."""
        return self._seconds <= 0 or self._stopped or self._clock() - self._began >= self._seconds

    @property
    def _stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def begin(self) -> None:
        threading.Thread(target=self._run, name="neptune_lab time limit", daemon=True).start()

    def end(self) -> None:
        """Nothing is sent from now on, and what was sent and has not come is taken back."""
        with self._lock:
            self._done.set()
            _send(self._thread, None)

    def refuse(self, expression: str) -> Any:
        """Raises the RepairError."""
        if self._stopped:
            raise RepairError("the question was stopped", step="time", expression=expression, help="ask it again")
        raise RepairError(
            f"no answer within {self._seconds:g} s of processor time: the term is too large for the algebra",
            step="time",
            expression=expression,
            help="write the term with smaller powers or fewer factors, or give it more time: "
            "with neptune_lab.repair.time_limit(60): ...",
        )

    def _run(self) -> None:
        while not self._done.wait(self._pause()):
            if self.over:
                with self._lock:
                    if not self._done.is_set() and not self.heard:
                        _send(self._thread, self.expired)

    def _pause(self) -> float:
        left = self._seconds - (self._clock() - self._began)
        return _LOOK_SECONDS if left <= 0 else min(left, _LOOK_SECONDS)


def _send(thread: int, error: type[BaseException] | None) -> None:
    """Has `error` raised in a thread; None takes back one that has not been raised."""
    value = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), value)
