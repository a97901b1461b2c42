"""A time limit for the algebra, since some terms take too long: (c + r)**100 has 101 terms to separate.

A second thread watches the one that solves, and ends it by an exception that Python raises there between two bytecodes
(`PyThreadState_SetAsyncExc`). So SymPy's long calls end too, in any thread, without slowing it down. The expressions of
a problem have symbols of their own, so an interruption affects no other problem, and its result is not cached.

A browser has no threads.  There the solving thread watches itself (`_Look`), at the starts of functions.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import Any, Protocol, TypeVar

from neptune_lab.errors import RepairError

SECONDS = 10.0
"""Default limit of the processor time of a question."""

# Characters of a term.
_SHOWN = 200
# Between two reads of the clock, and before the exception is sent again if it was swallowed.
_LOOK_SECONDS = 0.25
# Calls of functions between two reads of the clock, without threads.
_CALLS = 256
# Until the next check of a thread that is in one of Python's callbacks.
_CALLBACK_SECONDS = 0.005
# Code in these files may be a callback of a weak reference, or an import.
_CALLBACK_FILES = (
    weakref.WeakValueDictionary.__init__.__code__.co_filename,
    weakref.WeakSet.__init__.__code__.co_filename,
    "<frozen importlib",
)

T = TypeVar("T")


class Stop(Protocol):
    """What says that a derivation is to end: a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether it is."""
        ...


_seconds: ContextVar[float] = ContextVar("seconds", default=SECONDS)
_stop: ContextVar[Stop | None] = ContextVar("stop", default=None)


@contextmanager
def time_limit(seconds: float, stop: Stop | None = None) -> Iterator[None]:
    """Limits the processor time of each repair that is solved in the `with` block; without it, the limit is 10 s.

    Args:
        seconds: of processor time, so that the load of the machine has no effect; math.inf: no limit.
        stop: an event, such as a `threading.Event`: when it is set, the derivation ends at once.

    Returns:
        A context manager.

    Raises:
        RepairError: `seconds` is not a number, or is negative.

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
    """Calls `call` within the time limit.

    Args:
        call: the derivation.
        expression: the term, for the error.
        clock: returns seconds; None: the processor time of the calling thread.

    Returns:
        The result of `call`.

    Raises:
        RepairError: step "time": the call took longer, or was stopped.
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
            watch.done = True  # an assignment, which nothing interrupts: nothing is sent from now on
            watch.receive()
    except watch.expired:
        pass
    except BaseException:
        watch.receive()  # Ctrl+C may have come first
        raise
    return outcome[0] if outcome else watch.refuse(shown(expression))


def shown(g: object) -> str:
    """A term as text for an error, shortened to its beginning."""
    text = str(g)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def thread_clock() -> Callable[[], float]:
    """A clock of the calling thread's processor time that any thread can read; wall time if the system has none."""
    try:
        name = time.pthread_getcpuclockid(threading.get_ident())
        time.clock_gettime(name)
    except (AttributeError, OSError):
        return time.monotonic
    return lambda: time.clock_gettime(name)


class _Watch:
    """Watches one call of one thread."""

    def __init__(self, seconds: float, stop: Stop | None, clock: Callable[[], float]) -> None:
        # A new class for each watch, so that nested limits end their own calls. `except Exception` does not catch it.
        self.expired: type[BaseException] = type("Expired", (BaseException,), {})
        self.done = False
        self._seconds, self._stop, self._clock = seconds, stop, clock
        self.thread, self._began = threading.get_ident(), clock()
        self._ended = threading.Event()

    @property
    def over(self) -> bool:
        """Whether the time is over, or the call was stopped."""
        return self._seconds <= 0 or self._stopped or self._clock() - self._began >= self._seconds

    @property
    def _stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def begin(self) -> None:
        try:
            threading.Thread(target=self._run, name="neptune_lab time limit", daemon=True).start()
        except RuntimeError:  # no threads here, or no more of them
            if _MONITORING is None:
                raise
            _alone.append(self)
            _watch_calls()

    def receive(self) -> None:
        """Called in the watched thread when no exception will be sent any more: catches one that was sent but not
        raised.

        Python raises it at the next call or iteration of a loop. PyThreadState_SetAsyncExc(thread, NULL) cannot take it
        back: Python 3.11 and 3.12 then check for it for ever, and in 3.11 a profiler or debugger that is started later
        hangs.
        """
        try:
            self._ended.set()
            for _ in range(2):
                pass
        except self.expired:
            self._ended.set()
        if self in _alone:
            _alone.remove(self)
            _watch_calls()

    def refuse(self, expression: str) -> Any:
        """Raises the RepairError."""
        if self._stopped:
            raise RepairError("the derivation was stopped", step="time", expression=expression, help="ask it again")
        raise RepairError(
            f"no answer within {self._seconds:g} s of processor time: the term is too large for the algebra",
            step="time",
            expression=expression,
            help="write the term with smaller powers or fewer factors, or give it more time: "
            "with neptune_lab.repair.time_limit(60): ...",
        )

    def _run(self) -> None:
        send = ctypes.pythonapi.PyThreadState_SetAsyncExc
        thread, expired = ctypes.c_ulong(self.thread), ctypes.py_object(self.expired)
        pause = self._pause()
        while not self._ended.wait(pause) and not self.done:
            pause = self._pause()
            if not self.over:
                continue
            if not _may_be_ended(self.thread):
                pause = _CALLBACK_SECONDS
                continue
            # Python switches threads at the end of a call or an iteration, so not between these two statements.
            if not self.done:
                send(thread, expired)

    def _pause(self) -> float:
        left = self._seconds - (self._clock() - self._began)
        return _LOOK_SECONDS if left <= 0 else min(left, _LOOK_SECONDS)


# Watches whose thread looks at the clock itself, the outermost first.
_alone: list[_Watch] = []
_MONITORING: Any = getattr(sys, "monitoring", None)  # since Python 3.12
_TOOL = 4  # of sys.monitoring, which has 0 to 2 and 5 for debuggers and profilers


def _watch_calls() -> None:
    """Lets Python call a `_Look` at the start of each function while there are watches without a thread."""
    start, watching = _MONITORING.events.PY_START, _MONITORING.get_tool(_TOOL) is not None
    if _alone and not watching:
        _MONITORING.use_tool_id(_TOOL, "neptune_lab time limit")
        _MONITORING.register_callback(_TOOL, start, _Look())
        _MONITORING.set_events(_TOOL, start)
    elif not _alone and watching:
        _MONITORING.set_events(_TOOL, 0)
        _MONITORING.register_callback(_TOOL, start, None)
        _MONITORING.free_tool_id(_TOOL)


class _Look:
    """Called at the start of a function: ends the watched call when its time is over."""

    def __init__(self) -> None:
        self._calls, self._next = 0, 0.0

    def __call__(self, code: CodeType, offset: int) -> None:
        self._calls += 1
        if self._calls % _CALLS:
            return
        now = time.monotonic()
        if now < self._next:
            return
        for watch in _alone:
            if watch.over and not watch.done:
                if _may_be_ended(watch.thread):
                    raise watch.expired
                return  # look again soon
        self._next = now + _LOOK_SECONDS


def _may_be_ended(thread: int) -> bool:
    """Whether an exception raised in a thread now reaches the limited call, without leaving Python in a broken state.

    Python prints and drops an exception in a finalizer or in a callback of the garbage collector or of a weak
    reference. An interrupted import leaves incomplete modules. All of these end soon.
    """
    collecting = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    frame = sys._current_frames().get(thread)
    while frame is not None and (code := frame.f_code) is not limited.__code__:
        if code in collecting or code.co_name == "__del__" or code.co_filename.startswith(_CALLBACK_FILES):
            return False
        frame = frame.f_back
    return True
