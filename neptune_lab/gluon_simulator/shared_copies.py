"""When the copy engine, products and loads read and write shared memory, and what groups of warps have stored there.

Between its start and the wait for it, hardware may read a tile at any time.  So what is read is not a number if the
tile has changed meanwhile, and it has changed if it can: copies to shared memory land once no other group can go on,
and a tile is read at the end, after these.  A tile that a group has stored is seen by the copy engine and by products
only after the group's `fence_async_shared`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from neptune_lab.gluon_simulator.steps import current

# Work that an exact comparison of two strided tiles may take.
_MOST_WORK: Any = 10_000
_here = threading.local()
# Arrays that groups have stored without a fence since, by thread, and in it by place.
_stored: dict[int, dict[tuple[Any, ...], Any]] = {}


def begin(rest: Callable[..., None]) -> None:
    """A group of warps starts, in this thread; `rest` as `Crew.rest`."""
    _here.copies, _here.rest = [], rest
    _stored[threading.get_ident()] = {}


def end() -> None:
    """It ends: its copies are done by then."""
    wait_for_copies(0)
    _stored.pop(threading.get_ident(), None)
    _here.rest = None


def land() -> None:
    """Before a copy is in shared memory: other groups go on as far as they can."""
    _rest(last=False)


def started(array: Any) -> Callable[[], Any]:
    """A read of a tile in shared memory starts here, and ends when the function is called that is returned: its values
    then, and if they have changed since, none."""
    before = array.tobytes()

    def read() -> Any:
        _rest(last=True)
        return array.copy() if array.tobytes() == before else np.full(array.shape, np.nan, array.dtype)

    return read


def _rest(*, last: bool) -> None:
    rest = getattr(_here, "rest", None)
    if rest is not None:
        rest(last=last)


def copy_later(put: Callable[[Any], None], source: Any) -> None:
    """Starts a copy of an array in shared memory, which `put` stores."""
    check_fence(source)
    read = started(source)
    group = current()
    if group is not None:
        group.fly("copy")
    _copies().append(lambda: put(read()))


def wait_for_copies(running: int) -> None:
    """Until all but the last `running` copies that the group started have read shared memory."""
    copies = _copies()
    while len(copies) > running:
        copies.pop(0)()


def has_stored(array: Any) -> None:
    """The group has stored an array in shared memory."""
    place = (*array.__array_interface__["data"], array.shape, array.strides)
    _stored.setdefault(threading.get_ident(), {})[place] = array


def fence() -> None:
    """What the group has stored is seen by the copy engine and by products."""
    _stored.pop(threading.get_ident(), None)


def check_fence(array: Any) -> None:
    """Raises AssertionError if a part of an array that is read was stored without a fence."""
    for of_group in tuple(_stored.values()):
        for stored in tuple(of_group.values()):
            assert not _overlap(stored, array), "a stored tile is read by a copy or a product without a fence between"


def _overlap(a: Any, b: Any) -> bool:
    try:
        return np.shares_memory(a, b, _MOST_WORK)
    except np.exceptions.TooHardError:
        return False


def _copies() -> list[Callable[[], None]]:
    if not hasattr(_here, "copies"):
        _here.copies = []
    return _here.copies


__all__ = ["begin", "check_fence", "copy_later", "end", "fence", "has_stored", "land", "started", "wait_for_copies"]
