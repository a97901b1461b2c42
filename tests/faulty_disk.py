"""A disk that fails at the n-th operation of `neptune_lab.files`, and a process that is killed there."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

from neptune_lab.errors import FileError

# What changes the disk. `open` counts where it makes a file.
OPERATIONS = ("open", "write", "fsync", "close", "chown", "chmod", "replace")


class FaultyDisk:
    """Takes the place of `os` in `neptune_lab.files`.

    Args:
        at: number of the operation that fails, from 0; those after it fail too, as on a disk that is full.
        fault: called at it with the operation's name, and raises (or kills); `once` only there.
    """

    def __init__(self, at: int, fault: Callable[[str], None], once: bool = False) -> None:
        self.at, self.fault, self.once = at, fault, once
        self.count = 0

    @property
    def reached(self) -> bool:
        """Whether there were so many operations."""
        return self.count > self.at

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name not in OPERATIONS:
            return found

        def faulty(*args: Any, **options: Any) -> Any:
            number, self.count = self.count, self.count + 1
            if number == self.at or (number > self.at and not self.once and name != "close"):
                if name == "write":  # half of it fits
                    found(args[0], bytes(args[1])[: len(args[1]) // 2])
                if name == "close":
                    found(*args)
                self.fault(name)
            return found(*args, **options)

        return faulty


def full(_: str) -> None:
    """The disk is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only(_: str) -> None:
    """The disk is read-only."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def interrupted(_: str) -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


def killed(_: str) -> None:
    """kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def at_each(
    monkeypatch: Any, save: Callable[[], object], fault: Callable[[str], None], check: Callable[[], None]
) -> int:
    """Saves with a fault at the first operation, the second, and so on, until one save meets none; their number.

    `check` runs after each save that failed, on a disk that works again.
    """
    number = 0
    while True:
        disk = FaultyDisk(number, fault)
        with monkeypatch.context() as patch:
            patch.setattr("neptune_lab.files.os", disk)
            try:
                save()
            except (FileError, KeyboardInterrupt):
                assert disk.reached
        if not disk.reached:
            return number
        check()
        number += 1
