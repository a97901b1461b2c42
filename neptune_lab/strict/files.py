"""Reads files of a limited size as bytes or text; errors are of the caller's class."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from neptune_lab.strict.console import printable, shown
from neptune_lab.strict.values import Refusal

MIB = 1 << 20

_HELP = {
    errno.ENOENT: "check the path, which starts at the current folder unless it starts with /",
    errno.ENOTDIR: "a part of the path is a file: give a path whose folders are folders",
    errno.EISDIR: "this is a folder: give the path of a file",
    errno.EACCES: "give a file that you may read",
    errno.EPERM: "give a file that you may read",
}


def read_bytes(path: str | os.PathLike[str], most: int, error: Refusal, *, help: str | None = None) -> bytes:
    """The contents of a file of at most `most` bytes.

    Raises:
        error: there is no such file, it cannot be read, or it is larger; the message names it. Without `help`, the help
            is of the system's error.
    """
    name = shown_path(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(most + 1)
    except OSError as cause:
        raise error(f"cannot read {name}: {cause.strerror or cause}", help=help or help_of(cause)) from cause
    except (ValueError, TypeError) as cause:  # a NUL in the path; no path at all
        raise error(f"cannot read {name}: {cause}", help="give the path of a file") from cause
    except MemoryError as cause:
        raise error(f"cannot read {name}: there is not enough memory for it") from cause
    if len(data) > most:
        raise error(f"{name} has more than {most:,} bytes, the most that is read", help=help)
    return data


def help_of(error: OSError) -> str:
    """What to do about a path that cannot be read.

    >>> help_of(IsADirectoryError(errno.EISDIR, "Is a directory"))
    'this is a folder: give the path of a file'
    """
    return _HELP.get(error.errno or 0, "give the path of another file")


def read_text(path: str | os.PathLike[str], most: int, error: Refusal, *, help: str | None = None) -> str:
    """The contents of a UTF-8 file of at most `most` bytes; `error` as of `read_bytes`, and if it is not UTF-8."""
    return _decoded(read_bytes(path, most, error, help=help), shown_path(path), error, help)


def read_standard_input(most: int, error: Refusal, *, help: str | None = None) -> str:
    """Standard input up to its end, at most `most` bytes of UTF-8 text; else `error`."""
    data = sys.stdin.buffer.read(most + 1)
    if len(data) > most:
        raise error(f"standard input has more than {most:,} bytes, the most that is read", help=help)
    return _decoded(data, "standard input", error, help)


def _decoded(data: bytes, name: str, error: Refusal, help: str | None) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise error(f"{name}: not UTF-8 text (byte {cause.start:,})", help=help) from cause


def shown_path(path: object) -> str:
    """A path as messages show it."""
    return printable(os.fspath(path)) if isinstance(path, str | Path) else shown(path)


def inside(folder: Path, name: str, error: Refusal) -> Path:
    """The file `name` of `folder`; `error` if it is anywhere else, by "..", an absolute path or a link."""
    try:
        path = (folder / name).resolve()
        fits = path.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError) as cause:
        raise error(f"{shown_path(folder)}: {shown(name)} is no file's name: {cause}") from cause
    if not fits:
        raise error(
            f"{shown_path(folder)}: {shown(name)} is outside of the folder",
            help="the files that it names must be inside of it",
        )
    return path
