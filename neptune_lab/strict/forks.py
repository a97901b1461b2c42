"""Locks in a process that is forked from this one.

`fork` copies the memory of all threads, and goes on in one of them. A lock that another thread held at this moment
would never be free in the child, and what that thread had replaced, such as `sys.stderr`, would stay replaced.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType


class ReentrantLock:
    """`threading.RLock`, which is free in a forked process if a thread that is not there held it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget another thread that holds the lock."""
        if self._lock.acquire(blocking=False):  # free, or held by this thread, which will release it
            self._lock.release()
        else:
            self._lock = threading.RLock()


def after_fork(work: Callable[[], object]) -> None:
    """Call `work` in every forked process before it goes on; nothing where there is no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=work)


def fork_waits_for(lock: threading.RLock) -> None:
    """Let every fork wait until no other thread holds `lock`: what is done under it changes something for all threads,
    and changes it back at its end."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def _renew_locks() -> None:
    for lock in list(_locks):
        lock.renew()


_locks: weakref.WeakSet[ReentrantLock] = weakref.WeakSet()
after_fork(_renew_locks)


__all__ = ["ReentrantLock", "after_fork", "fork_waits_for"]
