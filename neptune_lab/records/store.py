"""The user's own records, in one SQLite file that several processes can use at the same time."""

from __future__ import annotations

import json
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any

from neptune_lab.errors import MeasureError, NeptuneError
from neptune_lab.files import quoted, write_text
from neptune_lab.records.record import SCHEMA, Record, dump, read
from neptune_lab.runtime import cache_directory
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_kind, check_number, items_of

_PATH = 'such as "records.sqlite"'
# The key of a measurement; a newer one with the same key replaces the older.
_KEY = ("workload", "device", "capability", "torch", "triton", "source", "cold")
_COLUMNS = (*_KEY, "us", "record")
_NAME = f"records_{SCHEMA}"
_TABLE = f"""
create table if not exists {_NAME} (
    workload text, device text, capability text, torch text, triton text, source text, cold integer,
    us real, record text not null,
    primary key ({", ".join(_KEY)})
)"""
_PUT = f"insert or replace into {_NAME} ({', '.join(_COLUMNS)}) values ({', '.join('?' * len(_COLUMNS))})"

# Seconds to wait for another process that writes; `look_up` waits less, since a launch waits for it.
PATIENCE = 20.0
LOOK_UP_PATIENCE = 2.0
# `check` writes and removes this many bytes, enough for many records.
_ROOM_BYTES = 1 << 18
# Suffixes of SQLite's auxiliary files.
_AUXILIARY = ("-wal", "-shm", "-journal")


class RecordsWarning(UserWarning):
    """A file of records, or some of its rows, cannot be read; the message says which and how to repair it."""


class Store:
    """Records on disk.  Each `put` is committed before it returns, so a crash loses no measurements.

    Reading creates neither a file nor a table.

    Args:
        path: of the file, which the first `put` creates; None: `records.sqlite` in the cache directory.
        patience: seconds to wait while another process locks the file.
    """

    def __init__(self, path: str | Path | None = None, *, patience: float = PATIENCE) -> None:
        if path is not None:
            check_kind("path", path, (str, PathLike), "the path of a file, or None", MeasureError, help=_PATH)
        check_number("patience", patience, MeasureError, from_zero=True)
        self.path = Path(path) if path is not None else cache_directory() / "records.sqlite"
        self.patience = patience

    def put(self, *records: Record, patience: float | None = None) -> None:
        """Adds records; they replace those of the same workload, device, versions, source and `cold`.

        Args:
            records: to add.
            patience: seconds to wait for another process; None: the store's own.

        Raises:
            MeasureError: they cannot be stored; then none of them is, and the file is unchanged.
        """
        for record in records:
            check_kind(
                "records", record, Record, "Records", MeasureError, help="such as those of another store's find()"
            )
        rows = [(*(getattr(r, name) for name in _KEY), r.us, json.dumps(r.to_json(), allow_nan=False)) for r in records]
        with self._writing(self.patience if patience is None else patience) as db:
            db.executemany(_PUT, rows)

    def check(self, patience: float | None = None) -> None:
        """Checks that records can be stored: the file is intact and not locked, and the disk has free space.

        Args:
            patience: as for `put`.

        Raises:
            MeasureError: they cannot be stored.
        """
        wait = self.patience if patience is None else patience
        with self._writing(wait) as db:
            (verdict,) = db.execute("pragma quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            db.execute("create table if not exists room (bytes blob)")
            db.execute("insert into room values (zeroblob(?))", (_ROOM_BYTES,))
        with self._writing(wait) as db:  # only a commit writes to the disk
            db.execute("drop table if exists room")

    def find(
        self,
        *,
        workload: str | None = None,
        device: str | None = None,
        source: str | None = None,
        cold: bool | None = None,
    ) -> tuple[Record, ...]:
        """The records with these values, the fastest first, failures last; none if there is no file yet.

        Rows that cannot be read are left out, with a `RecordsWarning`.

        Args:
            workload: the key of an operator's definition, shapes and dtypes (`records.workload_key`).
            device: a GPU's name, such as "NVIDIA H200".
            source: a digest of the emitted module.
            cold: whether each run started with a cold L2 cache.

        Raises:
            MeasureError: the file cannot be read at all.
        """
        wanted = {"workload": workload, "device": device, "source": source, "cold": cold}
        for name, value in (("workload", workload), ("device", device), ("source", source)):
            check_kind(name, value, (str, NoneType), "a text or None", MeasureError)
        check_kind("cold", cold, (bool, NoneType), "True, False or None", MeasureError)
        return self._select(wanted, self.patience)

    def look_up(self, *, workload: str | None = None, device: str | None = None) -> tuple[Record, ...]:
        """As `find`, but a file that cannot be read gives a `RecordsWarning` and no records."""
        try:
            return self._select({"workload": workload, "device": device}, min(self.patience, LOOK_UP_PATIENCE))
        except MeasureError as error:
            warnings.warn(f"going on without your records: {error}", RecordsWarning, stacklevel=3)
            return ()

    def export(self, path: str | Path, records: Iterable[Record] | None = None) -> Path:
        """Saves records to a JSON file.

        Args:
            path: of the file.
            records: to save; None: all.

        Returns:
            The path.

        Raises:
            FileError: the file cannot be written; an existing file is unchanged.
        """
        chosen = self.find() if records is None else items_of(records)
        if chosen is None or not all(isinstance(record, Record) for record in chosen):
            raise MeasureError(f"records={shown(records)}: expected Records, or None", help="such as store.find()")
        return write_text(path, dump(chosen))

    def load(self, path: str | Path) -> int:
        """Adds the records of a JSON file that `export` wrote.

        Returns:
            How many records the file has.

        Raises:
            MeasureError: the file cannot be read, or the records cannot be stored.
        """
        records = read(path)
        self.put(*records)
        return len(records)

    def mend(self) -> tuple[int, Path]:
        """Replaces a damaged file by a new one with the records that can be read; the damaged file is kept.  A link is
        followed.

        Returns:
            How many records were kept, and the new path of the damaged file.

        Raises:
            MeasureError: there is no file, it is a folder, another process uses it, or its folder cannot be written.
        """
        if not self._there():
            raise MeasureError(
                f"there are no records in {self.path}", help="make some with nl.tune, or `neptune-lab tune`"
            )
        if self.path.is_dir():
            raise MeasureError(
                f"{self.path} is a folder", help="name the file of records, such as records.sqlite in that folder"
            )
        records = self._salvage()
        file = self.path.resolve()
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        fresh, aside = (file.with_name(f"{file.name}.{what}-{stamp}") for what in ("new", "damaged"))
        Store(fresh).put(*records)
        with self._errors(lambda _: f"move {file} to another folder yourself"):
            for end in _AUXILIARY:
                with suppress(FileNotFoundError):
                    file.with_name(file.name + end).rename(aside.with_name(aside.name + end))
            file.rename(aside)
            fresh.rename(file)
        return len(records), aside

    # -- rows ---------------------------------------------------------------------------------------------------

    def _select(self, wanted: Mapping[str, Any], patience: float) -> tuple[Record, ...]:
        """The records with the values of `wanted` that are not None, sorted; rows that cannot be read give a
        warning."""
        stated = {name: value for name, value in wanted.items() if value is not None}
        where = " and ".join(f"{name} = ?" for name in stated) or "true"
        query, values = f"select {', '.join(_COLUMNS)} from {_NAME} where {where}", tuple(stated.values())
        records: list[Record] = []
        wrong: list[str] = []
        with self._errors(self._help):
            if self._there():
                with self._reading(patience) as db:
                    rows = db.execute(query, values) if _has_table(db) else ()
                    for record, why in map(_parsed, rows):
                        if record is None:
                            wrong.append(why)
                        else:
                            records.append(record)
        if wrong:
            warnings.warn(
                f"{len(wrong)} of the records in {self.path} cannot be read, the other {len(records)} are used; "
                f"the first: {wrong[0]}\n  help: {_mend(self.path)}",
                RecordsWarning,
                stacklevel=4,
            )
        return tuple(sorted(records, key=lambda r: (r.us is None, r.us or 0.0)))

    def _there(self) -> bool:
        with self._errors(self._help):
            try:
                return self.path.stat().st_size > 0
            except (FileNotFoundError, NotADirectoryError):
                return False

    # -- connections --------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self, patience: float) -> Iterator[sqlite3.Connection]:
        """A transaction on a new connection, since connections cannot be shared between threads."""
        until = time.monotonic() + patience
        with self._errors(self._help):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, timeout=patience, isolation_level=None)
            try:
                with suppress(sqlite3.OperationalError):  # only for concurrent readers; correct without it too
                    db.execute("pragma journal_mode = wal")
                db.execute(f"pragma busy_timeout = {max(0, int(1e3 * (until - time.monotonic())))}")
                db.execute("begin immediate")
                try:
                    db.execute(_TABLE)
                    yield db
                    db.execute("commit")
                except BaseException:
                    with suppress(sqlite3.Error):  # SQLite rolls back some failures itself
                        db.execute("rollback")
                    raise
            finally:
                db.close()

    @contextmanager
    def _reading(self, patience: float) -> Iterator[sqlite3.Connection]:
        """A connection that does not create the file."""
        address = self.path.absolute().as_uri()
        db = sqlite3.connect(f"{address}?mode=rw", timeout=patience, uri=True, isolation_level=None)
        try:
            try:
                db.execute("select 1 from sqlite_master").fetchone()
            except sqlite3.OperationalError as error:
                if _code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                    raise
                # On a read-only disk, SQLite cannot create its auxiliary files, and no process changes the file.
                db.close()
                db = sqlite3.connect(f"{address}?immutable=1", timeout=patience, uri=True, isolation_level=None)
            db.text_factory = bytes  # text that is not UTF-8 makes one bad row, and does not end the query
            yield db
        finally:
            db.close()

    def _salvage(self) -> list[Record]:
        """The readable records of a damaged file, which is locked meanwhile."""
        records: list[Record] = []
        with self._errors(self._help):
            try:
                with self._reading(self.patience) as db:
                    db.execute("begin immediate")
                    rows = db.execute(f"select {', '.join(_COLUMNS)} from {_NAME}")
                    records += (record for record, _ in map(_parsed, rows) if record is not None)
            except sqlite3.DatabaseError as error:
                if _code(error) in _LOCKED:
                    raise
        return records

    @contextmanager
    def _errors(self, help: Callable[[Exception], str]) -> Iterator[None]:
        """Converts errors of SQLite and of the disk to MeasureError."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            raise MeasureError(f"the records in {self.path} cannot be used: {error}", help=help(error)) from error

    def _help(self, error: Exception) -> str:
        code = _code(error)
        if code in _LOCKED:
            return "another process writes to the file: wait for it or end it, or name another file"
        if code == sqlite3.SQLITE_FULL:
            return "free some space, or name a file on another disk (--records FILE, or NEPTUNE_LAB_CACHE=FOLDER)"
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or type(error) is sqlite3.DatabaseError:
            return _mend(self.path)
        return "name a file that can be written (--records FILE), or set NEPTUNE_LAB_CACHE to such a folder"


_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 for an error that is not SQLite's."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _mend(path: Path) -> str:
    return (
        f"neptune-lab records --mend --records {quoted(path)} keeps what can be read and moves the damaged file aside"
    )


def _has_table(db: sqlite3.Connection) -> bool:
    query = "select 1 from sqlite_master where type = 'table' and name = ?"
    return db.execute(query, (_NAME,)).fetchone() is not None


def _parsed(row: tuple[Any, ...]) -> tuple[Record | None, str]:
    """The record of a row, or why there is none."""
    try:
        values = [value.decode() if isinstance(value, bytes) else value for value in row]
        record = Record.from_json(json.loads(values[-1]))
        differ = [n for n, value in zip(_KEY, values, strict=False) if getattr(record, n) != value]
        if differ:
            return None, f"its {differ[0]} is not the row's"
        return record, ""
    except NeptuneError as error:
        return None, error.reason
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return None, f"{type(error).__name__}: {error}"
