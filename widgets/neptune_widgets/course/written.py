"""Runs a function that a student wrote: data that can be read once, and limits on lines and on memory.

The limits are counts, not times, so that a verdict is the same on every machine: executed lines of Python, and bytes
that are allocated at once (NumPy reports its arrays to `tracemalloc`).
"""

from __future__ import annotations

import gc
import linecache
import sys
import sysconfig
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from neptune_widgets.course.exercise import NotYet, StillOpen

# Where code is that is not the student's: it is not counted, so that a call of `print` costs one line.
_OTHERS = ("site-packages", "dist-packages", "<frozen", "<__array_function__", sysconfig.get_paths()["stdlib"])

SAME = "which comes from the compiler's native run"
OVERFLOW = "Subtract the maximum so far, of each query's own scores, in every exponential"
INVERTED = "before the first number the maximum is -inf, and exp(old - new) is 0, while exp(new - old) is infinite"
MANY = 60  # lines for each number or each tile


class Once:
    """Items that can be gone over once, made anew as they are asked for, so that only what is kept stays in memory.

    Args:
        name: what the items are, for messages.
        items: a function that makes the items.
    """

    def __init__(self, name: str, items: Callable[[], Iterator[Any]]) -> None:
        self._name, self._items, self._begun = name, items, False

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise NotYet(f"it goes over the {self._name} a second time; they can be read once only")
        self._begun = True
        return self._items()

    def __getitem__(self, index: object) -> Any:
        raise NotYet(f"it reads the {self._name} by index; the loop sees them one after the other: `for … in …`")


def numbers_once(values: Sequence[float]) -> Once:
    """Numbers, each as a float."""
    return Once("numbers", lambda: (float(x) for x in values))


def tiles_once(arrays: Sequence[np.ndarray], size: int) -> Once:
    """Tiles of several arrays side by side, (size, width) each, which cannot be changed.

    Args:
        arrays: each (rows, width).
        size: rows of a tile.
    """

    def items() -> Iterator[tuple[np.ndarray, ...]]:
        for begin in range(0, len(arrays[0]), size):
            yield tuple(constant(a[begin : begin + size]) for a in arrays)

    return Once("tiles", items)


def constant(array: np.ndarray) -> np.ndarray:
    """A float64 copy that cannot be changed."""
    copy = np.array(array, dtype="float64")
    copy.flags.writeable = False
    return copy


def check_function(function: object, example: str) -> None:
    """NotYet unless `function` can be called."""
    if not callable(function):
        raise NotYet(f"expected a function, such as `{example}`, found {function!r}")


class _TooManyLines(BaseException):
    """Ends the student's function; no `except Exception` in it catches this."""


def result_of(function: Callable[..., Any], *arguments: Any, lines: int, slow: str) -> Any:
    """The function's result, with its own warnings of NumPy silenced.

    Args:
        function: the student's.
        arguments: passed to it.
        lines: how many lines of Python it may execute.
        slow: what to say if it executes more.

    Raises:
        NotYet: it executes more lines, or raises; the message names the error and the line.
        StillOpen: it raises NotImplementedError, as the cell does before it is filled in.
    """
    budget = lines

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal budget
        if event == "call" and any(part in frame.f_code.co_filename for part in _OTHERS):
            return None
        budget -= 1
        if budget < 0:
            raise _TooManyLines
        return trace

    try:
        with np.errstate(all="ignore"), _untraced():
            sys.settrace(trace)
            try:
                return function(*arguments)
            finally:
                sys.settrace(None)
    except _TooManyLines:
        raise NotYet(slow) from None
    except NotYet:
        raise
    except NotImplementedError:
        raise StillOpen("fill in the function and run this cell again") from None
    except Exception as error:  # noqa: BLE001  whatever a student's code raises is told
        raise NotYet(_raised(error)) from None


@contextmanager
def _untraced() -> Iterator[None]:
    """Sets aside a tracer or profiler that runs already: what it allocates is not the student's."""
    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(None)
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])


def peak_of(call: Callable[[], Any]) -> int:
    """Bytes that are allocated at once during a call, at most, beyond those allocated before."""
    running = tracemalloc.is_tracing()
    if running:
        gc.collect()  # garbage that is freed during the call would hide what the call allocates
    else:
        tracemalloc.start()  # knows nothing of what was allocated before
    try:
        with _untraced():
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            call()
            return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not running:
            tracemalloc.stop()


def array_of(value: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """The value as a float64 array of the shape; NotYet with what is wrong otherwise."""
    if value is None:
        raise NotYet(f"{what} is missing: the function returns None")
    try:
        array = np.asarray(value, dtype="float64")
    except (TypeError, ValueError):
        raise NotYet(f"{what} should be numbers of shape {shape}, found {_short(value)}") from None
    if array.shape != shape:
        raise NotYet(f"{what} should have the shape {shape}, found {array.shape}")
    return array


def _raised(error: Exception) -> str:
    """What was raised, and the last line of the student's code that led to it."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not any(part in frame.filename for part in _OTHERS)
    ]
    text = f"it raises {type(error).__name__}: {error}"
    if not own:
        return text
    line = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip()
    return f"{text}, in line {own[-1].lineno} of its cell" + (f": `{line}`" if line else "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}…"
