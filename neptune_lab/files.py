"""Saves files whole or not at all.  Every file that the package, its widgets and its scripts save goes through here.

The new contents go to a temporary file in the same folder, which replaces the old file in one step once they are on
the disk.  A full disk, an interrupt or a crash leaves the old file as it was.
"""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from neptune_lab.errors import FileError, printable

# A killed process may leave such a file behind; the name says that it is ours.
TEMPORARY = ".neptune_lab-{}.part"

_HELP = {
    errno.ENOSPC: "free some space, or give a path on another disk",
    errno.EDQUOT: "free some of your quota, or give a path on another disk",
    errno.EROFS: "the disk is read-only: give a path on another one",
    errno.EACCES: "give a path that you may write",
    errno.EPERM: "give a path that you may write",
    errno.ENOTDIR: "a part of the path is a file: give a path whose folders are folders",
    errno.EISDIR: "this is a folder: give the path of a file",
    errno.ENAMETOOLONG: "give a shorter name",
}


def write_text(path: str | os.PathLike[str], text: str, *, parents: bool = False) -> Path:
    """Saves a text as UTF-8; see `write_bytes`."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FileError(
            f"cannot write {os.fspath(path)!r}: the text has {text[error.start]!r} at character {error.start:,}, "
            "which UTF-8 cannot encode",
            help="remove the character from the text",
        ) from error
    return write_bytes(path, data, parents=parents)


def write_bytes(path: str | os.PathLike[str], data: bytes, *, parents: bool = False) -> Path:
    """Saves `data`, whole or not at all; the path.

    An existing file keeps its permissions.  A link is followed.  A device or a pipe, such as /dev/stdout, is written
    directly, because it cannot be replaced.

    Args:
        path: of the file.
        data: the new contents.
        parents: make missing folders.

    Raises:
        FileError: the file cannot be written; an existing file is unchanged, and no temporary file is left.
    """
    if not isinstance(path, str | os.PathLike):
        raise FileError(
            f"cannot write {path!r}: expected the path of a file", help="add the name of a file to the folder"
        )
    target = Path(path)
    try:
        if parents:
            target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, data)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _refusal(target, error) from error
    return target


def writable(path: Path | None) -> Path | None:
    """The path of a file that is to be written after long work, checked before it; nothing is written yet.

    An option of the command line has it as its callback.

    Raises:
        FileError: the file could not be written.
    """
    if path is None:
        return None
    try:
        old = _replaced(path)
        folder = Path(os.path.realpath(path)).parent
        if old is None or not _written_directly(old):
            if not stat.S_ISDIR(folder.stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from error
    return path


class LongRun:
    """The file that a long run saves after each step. If saving fails, the run continues and keeps the text.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text: str | None = None

    def save(self, text: str) -> str | None:
        """Saves the run's whole text so far, replacing the last one; a message about the first failure, else None."""
        told = self._text is not None
        try:
            write_text(self.path, text)
        except FileError as error:
            self._text = text
            return None if told else f"not saved yet, and kept in memory: {error.reason}"
        self._text = None
        return None

    def finish(self) -> None:
        """Saves what could not be saved before; if that fails, to a new file in the folder for temporary files.

        Raises:
            FileError: the file cannot be written; the message has the place of the text.
        """
        if self._text is None:
            return
        try:
            write_text(self.path, self._text)
        except FileError as error:
            elsewhere = write_text(_elsewhere(self.path), self._text)
            raise FileError(
                f"{error.reason}; everything is in {str(elsewhere)!r}",
                help=f"{error.help}, and move the file there: mv {quoted(elsewhere)} {quoted(self.path)}",
            ) from error
        self._text = None


def _elsewhere(path: Path) -> Path:
    try:
        folder = Path(tempfile.gettempdir())
    except OSError:  # no folder can be written
        folder = Path.cwd()
    return folder / f"{path.stem}-{os.getpid()}{path.suffix}"


def _refusal(target: Path, error: OSError | ValueError) -> FileError:
    if isinstance(error, OSError):
        why, help = error.strerror or str(error), _HELP.get(error.errno or 0, "give another path")
        if error.errno == errno.ENOENT:
            help = _help_without_folder(target)
    else:
        why, help = str(error), "give another path"
    kept = "; the file that was there is unchanged" if _is_file(target) else ""
    return FileError(f"cannot write {str(target)!r}: {why}{kept}", help=help)


def _help_without_folder(target: Path) -> str:
    """The help if there is no folder for a file; a link leads to the folder of what it names."""
    folder = target.parent
    if folder.is_dir():
        folder = Path(os.path.realpath(target)).parent
    if folder.is_dir():
        return "give a path in another folder, since this one keeps no files"  # such as /proc
    return f"make the folder first: mkdir -p {quoted(folder)}"


def quoted(path: str | os.PathLike[str]) -> str:
    """A path as a shell takes it, for commands in messages."""
    return shlex.quote(printable(os.fspath(path)))


def _is_file(target: Path) -> bool:
    try:
        return target.is_file()
    except (OSError, ValueError):
        return False


def _write(target: Path, data: bytes) -> None:
    old = _replaced(target)
    if old is not None and _written_directly(old):
        target.write_bytes(data)
        return
    real = Path(os.path.realpath(target))
    part = real.with_name(TEMPORARY.format(secrets.token_hex(8)))
    try:
        _fill(part, data, old)
        os.replace(part, real)
    except BaseException:  # an interrupt too
        with suppress(OSError):
            part.unlink()
        raise
    with suppress(OSError):  # the new file is in place; this makes its name survive a power cut on most file systems
        _sync_folder(real.parent)


def _replaced(target: Path) -> os.stat_result | None:
    """The file that is there, if there is one; OSError if it may not be written."""
    old = _stat(target)
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if old is not None and not os.access(target, os.W_OK):  # a rename needs only a writable folder
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return old


def _written_directly(old: os.stat_result) -> bool:
    return not stat.S_ISREG(old.st_mode) or _is_output(old)


def _stat(target: Path) -> os.stat_result | None:
    try:
        return target.stat()
    except FileNotFoundError:
        return None


def _is_output(old: os.stat_result) -> bool:
    """Whether it is this process's standard output or error, which a shell has directed to a file."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), old):
                return True
    return False


def _fill(part: Path, data: bytes, old: os.stat_result | None) -> None:
    """Writes a new file to the disk, with the owner and the permissions of the old one."""
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
        made = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if old is None:
        return
    if hasattr(os, "chown") and (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):  # only root may give files away
            os.chown(part, old.st_uid, old.st_gid)
    if stat.S_IMODE(made.st_mode) != stat.S_IMODE(old.st_mode):
        os.chmod(part, stat.S_IMODE(old.st_mode))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
